//! `task cancel` and `task requeue`, for tasks given by id or by filters.

use std::collections::BTreeSet;

use clap::Args;
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use super::fields::OtherLimits;
use super::list;
use super::selection::{Changed, Selection};
use crate::CommandError;
use crate::confirm::confirm;
use crate::ids::path;
use crate::interrupt::or_interrupted;
use crate::progress::{Progress, number, tasks};
use crate::server_calls::{Server, read};
use crate::show::{self, Shown};
use crate::{columns, ids, quota, term};
use bloom_api::answers::{BulkResult, NotChanged};
use bloom_api::bulk::{Bulk, BulkRequeue, Named};
use bloom_api::lists::MAX_IDS;
use bloom_api::new_tasks::MAX_BATCH;
use bloom_api::requests::Requeue;
use bloom_api::tasks::Task;
use bloom_api::time_limit::PolicyChange;
use bloom_api::words::Word;
use bloom_core::task::Status;

/// A million tasks in total. Without a limit, the command would never end while a client keeps creating matching tasks.
const MAX_ROUNDS: usize = 1000;

/// How many calls look for the tasks that were left as they are, and how many of these are listed.
const MAX_LOOK_UPS: usize = 10;
const MAX_REASONS: usize = 20;

#[derive(Args, Debug)]
pub struct RequeueArgs {
    #[command(flatten)]
    limits: OtherLimits,
    /// Also queue the tasks again that were cancelled because these did not complete, directly or through others
    #[arg(long)]
    with_dependents: bool,
    /// Taken only to say what changes it.
    #[arg(long, hide = true)]
    model: Option<String>,
    #[command(flatten)]
    tasks: Changed,
}

#[derive(Clone, Copy)]
pub(crate) enum BulkAction {
    Cancel,
    Requeue,
}

impl BulkAction {
    fn verb(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Requeue => "requeue",
        }
    }

    /// Statuses by which people choose tasks for this.
    fn usual(self) -> &'static str {
        match self {
            Self::Cancel => "queued",
            Self::Requeue => "failed,dead",
        }
    }

    /// Whether a task with this status can't have been changed.
    fn never_changes(self, status: &Word<Status>) -> bool {
        match (self, status) {
            (Self::Cancel, Word::Known(status)) => matches!(status, Status::Completed | Status::Failed | Status::Dead),
            // Tasks with other statuses may have been requeued meanwhile, and may already run again.
            (Self::Requeue, Word::Known(status)) => *status == Status::Completed,
            (_, Word::Other(_)) => false,
        }
    }

    /// What a call does besides, which its answer does not count.
    fn besides(self) -> &'static str {
        match self {
            Self::Cancel => ", and the tasks that depend on them",
            Self::Requeue => "",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Cancel => "cancelled, or their workers were told to stop; tasks that depend on them are cancelled, too",
            Self::Requeue => "queued again",
        }
    }
}

/// What a requeue does besides.
#[derive(Clone, Default)]
struct Extra {
    policy: Option<PolicyChange>,
    with_dependents: bool,
}

const NOTHING: BulkResult = BulkResult { matched: 0, dependents: 0, changed: 0, more: false, as_of: None, not_changed: Vec::new() };

fn add(all: &mut BulkResult, other: &BulkResult) {
    all.matched += other.matched;
    all.dependents += other.dependents;
    all.changed += other.changed;
    all.more |= other.more;
    all.as_of = all.as_of.or(other.as_of);
    all.not_changed.extend(other.not_changed.iter().cloned());
}

fn print(result: &BulkResult, shown: Shown) -> Result<(), CommandError> {
    match shown.form() {
        Some(form) if form.is_data() => show::as_it_came(form, result),
        _ => Ok(()),
    }
}

pub(crate) async fn requeue(args: RequeueArgs, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let Selection { ids, filters } = &args.tasks.selection;
    // `--agent` is a filter.
    if args.model.is_some() || !(ids.is_empty() || filters.is_empty()) {
        let id = ids.first().map_or("ID", String::as_str);
        return Err(CommandError::usage(format!(
            "give either ids or filters: a task is queued again as it is. For a new task that asks another agent or model for the same: \
             bloom-runtime task submit --like {id} --agent NAME --model NAME"
        )));
    }
    let extra = Extra { policy: args.limits.change(), with_dependents: args.with_dependents };
    run(BulkAction::Requeue, args.tasks, extra, server, shown).await
}

pub(crate) async fn cancel(args: Changed, server: &Server, shown: Shown) -> Result<(), CommandError> {
    run(BulkAction::Cancel, args, Extra::default(), server, shown).await
}

/// Changes the tasks that are found, whatever the others are.
async fn run(action: BulkAction, args: Changed, extra: Extra, server: &Server, shown: Shown) -> Result<(), CommandError> {
    args.selection.check(action.verb(), action.usual())?;
    let (ids, mut failures) = ids::each(server, &args.selection.ids).await;
    if !ids.is_empty() || failures.is_empty() {
        let selection = Selection { ids, filters: args.selection.filters.resolved(server).await? };
        failures.extend(change(action, Changed { selection, ..args }, extra, server, shown).await.err());
    }
    match CommandError::all(&failures) {
        Err(failure) => Err(quota::with_what_to_do(failure, server).await),
        done => done,
    }
}

async fn change(action: BulkAction, args: Changed, extra: Extra, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let verb = action.verb();
    match args.selection.ids.as_slice() {
        [] => by_filter(action, &args, &extra, server, shown).await,
        [id] if !args.dry_run && !extra.with_dependents => {
            let answer = server.post(&path(id, &format!("/{verb}")), &Requeue { policy: extra.policy }).await.map_err(|failure| {
                let is_completed = failure.message.contains("requeue task with status 'completed'");
                let same =
                    if is_completed { format!("; for the same again: bloom-runtime task submit --like {id}") } else { String::new() };
                CommandError { message: failure.message + &same, ..failure }.about(id)
            })?;
            if matches!(action, BulkAction::Requeue) {
                tell_of_dependents(server, &args.selection.ids).await;
            }
            match shown.form() {
                Some(form) => show::one(form, &columns::TASKS, &answer),
                None => {
                    let task: Task = read(&answer)?;
                    let is_stopping = task.cancel_requested && task.status != Status::Cancelled;
                    let status = task.status.to_string();
                    let state = match task.status {
                        _ if is_stopping => "still running; its worker was told to stop".to_owned(),
                        Word::Known(Status::Queued) if task.suspend => {
                            format!("queued, but suspended: it waits for bloom-runtime task resume {id}")
                        }
                        _ => status,
                    };
                    term::info(&format!("task {id}: {state}"));
                    Ok(())
                }
            }
        }
        ids => by_ids(action, ids, (args.dry_run, extra), server, shown).await,
    }
}

/// Says how many tasks stay cancelled because they depend on these, which were just requeued.
async fn tell_of_dependents(server: &Server, ids: &[String]) {
    let mut all = NOTHING;
    for ids in ids.chunks(MAX_BATCH) {
        let body = json!({ "ids": ids, "dry_run": true, "with_dependents": true });
        // The call is needed only for a hint, so the command does not fail if it does.
        let Ok(found) = call(BulkAction::Requeue, &body, server).await else { return };
        add(&mut all, &found);
    }
    if all.dependents > 0 {
        let named = if let [id] = ids { id } else { "ID …" };
        let stay = stay(&all, ids.len());
        term::info(&format!("{stay}. To queue them again as well: bloom-runtime task retry {named} --with-dependents"));
    }
}

/// Says how many tasks were cancelled because of others, which are so many, according to a dry run.
fn stay(counted: &BulkResult, others: usize) -> String {
    let on = if others == 1 { "it" } else { "them" };
    let more = if counted.more { " or more" } else { "" };
    match counted.dependents {
        1 if more.is_empty() => format!("1 task that was cancelled because of {on} stays cancelled"),
        count => format!("{}{more} tasks that were cancelled because of {on} stay cancelled", number(count)),
    }
}

async fn by_ids(
    action: BulkAction,
    ids: &[String],
    (dry_run, extra): (bool, Extra),
    server: &Server,
    shown: Shown,
) -> Result<(), CommandError> {
    let progress = Progress::new(ids.len() as u64);
    let calls = async {
        let mut all = NOTHING;
        for ids in ids.chunks(MAX_BATCH) {
            let with_dependents = extra.with_dependents.then_some(true);
            let body = json!({ "ids": ids, "dry_run": dry_run, "policy": extra.policy, "with_dependents": with_dependents });
            for _ in 0..MAX_ROUNDS {
                let round = call(action, &body, server).await?;
                add(&mut all, &round);
                // The dependents of the tasks may be more than one call changes.
                if !round.more || round.changed == 0 {
                    break;
                }
            }
            progress.add(ids.len() as u64);
        }
        Ok(all)
    };
    let all = or_interrupted(calls, || stopped(action, &progress, ids.len() as u64)).await?;
    drop(progress);
    print(&all, shown)?;
    if matches!(action, BulkAction::Requeue) && all.changed > 0 && !extra.with_dependents {
        tell_of_dependents(server, ids).await;
    }
    let done = if dry_run { all.matched } else { all.changed };
    let what = if dry_run { format!("to {}", action.verb()) } else { action.done().to_owned() };
    // The tasks that depend on those that are named count, too.
    let meant = if all.dependents > 0 { all.matched as usize } else { ids.len() };
    let told = format!("{} of {}: {what}", number(done), tasks(meant as i64));
    if done as usize == meant {
        term::info(&told);
        return Ok(());
    }
    let count = meant.saturating_sub(done as usize);
    Err(format!("{told}; {}", left(action, ids, count, &all.not_changed, server).await).into())
}

fn reason(task: &NotChanged) -> String {
    format!("\n  {}: {}", task.id, task.message)
}

/// Why so many of the tasks were left as they are. The answer of a bulk call has their number, and names those that have to wait for something.
async fn left(action: BulkAction, ids: &[String], count: usize, not_changed: &[NotChanged], server: &Server) -> String {
    let different: Vec<Uuid> = ids.iter().filter_map(|id| id.parse().ok()).collect::<BTreeSet<_>>().into_iter().collect();
    let mut reasons: Vec<String> = not_changed.iter().map(reason).collect();
    for some in different.chunks(MAX_IDS).take(MAX_LOOK_UPS) {
        // The tasks are changed already, so the command does not fail if the look-up does. The other tasks are then reported without
        // details.
        let Ok(found) = ids::existing(server, some).await else { break };
        reasons.extend(some.iter().filter_map(|id| {
            let Some(task) = found.iter().find(|task| task["id"] == id.to_string()) else {
                return Some(format!("\n  {id}: Task not found"));
            };
            let task = read::<Task>(task).ok().filter(|task| action.never_changes(&task.status))?;
            Some(format!("\n  {id}: it is {}", task.status))
        }));
    }
    let others = match action {
        BulkAction::Cancel => "are finished, had been cancelled before, do not exist, or were given twice",
        BulkAction::Requeue => "are not finished, do not exist, or were given twice",
    };
    let named = reasons.iter().take(MAX_REASONS).cloned().collect::<String>();
    match reasons.len() {
        0 => format!("the others {others}"),
        named_count if named_count == count && count <= MAX_REASONS => format!("not these:{named}"),
        _ => format!("not these:{named}\nThe others {others}."),
    }
}

async fn by_filter(action: BulkAction, args: &Changed, extra: &Extra, server: &Server, shown: Shown) -> Result<(), CommandError> {
    let filters = args.selection.filters.body();
    let body = |dry_run, as_of, with_dependents| BulkRequeue {
        bulk: Bulk { named: Named::Filter(Box::new(filters.clone())), dry_run, as_of },
        policy: extra.policy.clone(),
        with_dependents,
    };
    let meant = call(action, &body(true, None, extra.with_dependents), server).await?;
    if matches!(action, BulkAction::Requeue) && !extra.with_dependents && meant.matched > 0 {
        // The call is needed only for a hint, so the command does not fail if it does.
        let with_dependents = call(action, &body(true, meant.as_of, true), server).await.unwrap_or(NOTHING);
        if with_dependents.dependents > 0 {
            let stay = stay(&with_dependents, meant.matched as usize);
            term::info(&format!("{stay}, unless you give --with-dependents"));
        }
    }
    let count = if meant.more { format!("{} or more", tasks(meant.matched)) } else { tasks(meant.matched) };
    if args.dry_run || meant.matched == 0 {
        let besides = if meant.matched == 0 { "" } else { action.besides() };
        term::info(&format!("{count} to {}{besides}", action.verb()));
        if meant.matched == 0 {
            list::hint(server, &args.selection.filters).await;
        }
        return print(&meant, shown);
    }
    if !args.yes && !confirm(action.verb(), &(count + action.besides())).await? {
        term::info("Nothing was changed.");
        return Ok(());
    }
    let total = u64::try_from(meant.matched).unwrap_or_default();
    let progress = Progress::new(total);
    let rounds = async {
        let mut all = NOTHING;
        for _ in 0..MAX_ROUNDS {
            // Only the counted tasks are changed, because the user has not confirmed those that match since then.
            let round = call(action, &body(false, meant.as_of, extra.with_dependents), server).await?;
            progress.add(u64::try_from(round.changed).unwrap_or_default());
            // Tasks that a round leaves unchanged are met again in the next one, which may change them.
            (all.more, all.not_changed) = (false, Vec::new());
            add(&mut all, &round);
            // Further rounds would not change anything.
            if !round.more || round.changed == 0 {
                break;
            }
        }
        Ok(all)
    };
    let all = or_interrupted(rounds, || stopped(action, &progress, total)).await?;
    drop(progress);
    let not_changed = all.not_changed.iter().map(reason).collect::<String>();
    if !not_changed.is_empty() {
        print(&all, shown)?;
        let (changed, matched) = (number(all.changed), tasks(meant.matched));
        return Err(format!("{changed} of {matched}: {}; not these:{not_changed}", action.done()).into());
    }
    term::info(&format!("{}: {}", tasks(all.changed), action.done()));
    print(&all, shown)?;
    if all.more {
        return Err(format!("there are more: run the command again to {} them as well", action.verb()).into());
    }
    Ok(())
}

/// What an interrupted command has done.
fn stopped(action: BulkAction, progress: &Progress, total: u64) -> String {
    let (done, total) = (number(progress.done()), number(total.max(progress.done())));
    format!(
        "interrupted: {done} of {total} tasks: {}; the server may still carry out the last call. \
         Give the same command again to go on with the others.",
        action.done()
    )
}

async fn call(action: BulkAction, body: &impl Serialize, server: &Server) -> Result<BulkResult, CommandError> {
    read(&server.post(&format!("api/runtime/llm-tasks:{}", action.verb()), body).await?)
}
