//! Runs in a sandbox: what they reach, how they end, and what an agent needs for it.

use super::contained::{BOTH, Means, has_no_cgroups};
use super::*;
use crate::support::agent::{Agent, AgentPlan};
use crate::support::{Database, Server};

const SHELL: &str = "runner = \"command\"\ncommand = [\"/bin/sh\"]\n";
/// Starts the agent as a user without any rights, who owns the agent's directory. It makes sandboxes by namespaces of users.
pub(super) const AS_A_USER: &str = r#"
    chown -R nobody . && exec setpriv --pdeathsig KILL --reuid nobody --regid nogroup --clear-groups --bounding-set=-all --no-new-privs "$0" "$@" 7<."#;
pub(super) const AS_ROOT: &str = r#"exec "$0" "$@" 7<."#;

fn three_profiles(plan: AgentPlan) -> AgentPlan {
    plan.profiles(&format!(
        "[profiles.open]\n{SHELL}\n[profiles.closed]\n{SHELL}sandbox = \"bubblewrap\"\n\
         [profiles.offline]\n{SHELL}sandbox = {{ type = \"bubblewrap\", network = false }}\n"
    ))
}

/// What a run of this profile prints.
pub async fn printed(server: &Server, profile: &str, context: &str, script: &str) -> String {
    let task = server.crew().task().with("agent_slug", json!(profile)).context(context).prompt(script).create().await;
    task.reaches("completed").await;
    result(&task).await["output"].as_str().expect("text").to_owned()
}

/// The directory of the only context that has this file.
pub(super) async fn context_with(agent: &Agent, file: &str) -> PathBuf {
    eventually("a run has made the file", || async {
        let contexts = std::fs::read_dir(agent.work_dir().join("contexts")).into_iter().flatten().flatten();
        contexts.map(|entry| entry.path()).find(|path| path.join(file).exists())
    })
    .await
}

#[test]
fn a_run_reaches_nothing_of_the_agent() {
    for user in [AS_ROOT, AS_A_USER] {
        run(async {
            let server = Server::on(Database::Sqlite).keyed().start();
            let plan = three_profiles(AgentPlan::at(server.base(), "box").through(user));
            let (dir, outside) = (plan.dir().clone(), janitor::new_path("outside"));
            let key = dir.join("agent.key");
            std::fs::write(&key, server::OWN_KEY).expect("a key");
            std::fs::write(&outside, "").expect("a file");
            let agent = plan.env("BLOOM_KEY_FILE", key.display()).start();
            printed(&server, "open", "other", "echo private >note").await;

            let attempts = [
                ("key", format!("cat {}", key.display())),
                ("state", format!("cat {}/work/agent.json", dir.display())),
                ("runs", format!("cat {}/work/runs/*/run.json", dir.display())),
                ("context", format!("cat {}/work/contexts/other-*/note", dir.display())),
                ("tmp", format!("cat {}", outside.display())),
                ("services", "ls /run".to_owned()),
                ("process", format!("cat /proc/{}/cmdline", agent.pid())),
                ("signal", format!("kill -0 {}", agent.pid())),
                // A directory that was open when the agent was started.
                ("inherited", "ls /proc/self/fd/7/".to_owned()),
                ("network", format!("bash -c 'echo >/dev/tcp/{}'", server.base().trim_start_matches("http://").replace(':', "/"))),
            ];
            let attempts: String = attempts
                .iter()
                .map(|(name, command)| format!("if {command} >/dev/null 2>&1; then echo {name}; fi\n"))
                .chain([format!("touch {}/left\n", dir.display())])
                .collect();
            let reached = printed(&server, "open", "mine", &attempts).await;
            assert_eq!(reached, "key\nstate\nruns\ncontext\ntmp\nservices\nprocess\nsignal\nnetwork\n", "without a sandbox");
            std::fs::remove_file(dir.join("left")).expect("what the run has left");
            assert_eq!(printed(&server, "closed", "mine", &attempts).await, "network\n");
            assert_eq!(printed(&server, "offline", "mine", &attempts).await, "");
            assert!(!dir.join("left").exists());

            let writes = "for dir in /usr /etc /opt / /proc/sys/kernel; do touch $dir/left 2>/dev/null && echo $dir; done; \
                          echo one >here; echo two >$HOME/there; echo three >/tmp/there; cat $HOME/there /tmp/there; grep CapEff /proc/self/status";
            assert_eq!(printed(&server, "closed", "mine", writes).await, "two\nthree\nCapEff:\t0000000000000000\n");
            let settings = "for file in /proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches; do ( : >>$file ) 2>/dev/null && echo $file; done; true";
            assert_eq!(printed(&server, "closed", "mine", settings).await, "", "of the machine");
            let later = printed(&server, "offline", "mine", "cat here; cat $HOME/there /tmp/there 2>/dev/null; true").await;
            assert_eq!(later, "one\n", "only the context's directory stays");
            agent.has_no_processes().await;
            let _ = std::fs::remove_file(outside);
        });
    }
}

#[test]
fn what_a_run_in_a_sandbox_left_is_not_for_others() {
    run(async {
        let server = Server::on(Database::Sqlite).keyed().start();
        let _agent = three_profiles(server.agent("box")).start();
        printed(&server, "closed", "mine", "echo left >here").await;
        let task = server.crew().task().with("agent_slug", json!("open")).context("mine").prompt("cat here").create().await;
        let failure = task.reaches("failed").await["failure"].clone();
        assert!(failure["message"].as_str().unwrap().contains("in a sandbox"), "{failure}");
        assert_eq!(printed(&server, "offline", "mine", "cat here").await, "left\n");
        assert_eq!(printed(&server, "open", "another", "echo fine").await, "fine\n");
    });
}

#[test]
fn a_sandbox_that_cannot_be_made_any_more_pauses_its_profile() {
    run(async {
        let server = Server::on(Database::Sqlite).keyed().start();
        let shown = janitor::new_path("shown");
        std::fs::create_dir_all(&shown).expect("a directory");
        let sandbox = format!("sandbox = {{ type = \"bubblewrap\", readable = [\"{}\"] }}", shown.display());
        let agent = server.agent("box").profile(&format!("{SHELL}{sandbox}")).start();
        printed(&server, "default", "mine", "echo fine").await;
        let said =
            server.crew().task().with("agent_slug", json!("default")).attempts(1).prompt("echo 'bwrap: no' >&2; exit 1").create().await;
        assert_eq!(said.reaches("dead").await["failure"]["reason"], json!("agent_error"), "a run that says so pauses nothing");
        std::fs::remove_dir_all(&shown).expect("the directory goes away");
        let task = server.crew().task().with("agent_slug", json!("default")).attempts(1).prompt("echo back").create().await;
        let pause = eventually("the profile is paused", || async {
            let worker = server.get("workers/box").await.ok();
            worker["pauses"].as_array()?.first().cloned()
        })
        .await;
        assert_eq!((&pause["kind"], &pause["cause"]), (&json!("profile"), &json!("start")), "{pause}");
        assert!(pause["message"].as_str().unwrap().contains("does not exist"), "{pause}");
        eventually("the task is handed back", || async {
            let task = task.now().await;
            (task["status"] == json!("queued") && task["failure"]["reason"] == json!("spawn_failed")).then_some(())
        })
        .await;
        assert_eq!(task.now().await["attempts"], json!(0));
        drop(agent);
    });
}

/// Processes with this word among their arguments, on the whole machine.
fn alive(word: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.split('\0').any(|argument| argument == word)).collect()
}

/// A shell script that starts a daemon without any environment, which does not heed SIGTERM and has the word among its arguments.
fn daemon(word: &str) -> String {
    format!("(env -i setsid sh -c 'trap \"\" TERM; touch begun; while :; do sleep 0.1; done' {word} </dev/null >/dev/null 2>&1 &)")
}

fn with_daemon(means: Means, body: impl for<'a> AsyncFnOnce(&'a Server, &Agent, &str) -> Task<'a>) {
    run(async {
        let server = Server::on(Database::Sqlite).keyed().start();
        let agent = means.limit(server.agent("box").profile(&format!("{SHELL}sandbox = \"bubblewrap\""))).start();
        let word = unique("daemon");
        let task = body(&server, &agent, &word).await;
        eventually("the daemon has ended", || async { alive(&word).is_empty().then_some(()) }).await;
        agent.has_no_processes().await;
        means.is_used(&agent).await;
        has_no_cgroups(&task).await;
    });
}

#[test]
fn a_cancel_asks_all_to_end_and_then_ends_all() {
    for means in BOTH {
        with_daemon(means, async |server, agent, word| {
            // What a process starts to end is not asked to end itself.
            let prompt = format!("trap 'sleep 0.3 && : > asked; exit' TERM; {}; while :; do sleep 0.1; done", daemon(word));
            let task = server.crew().task().prompt(&prompt).create().await;
            let context = context_with(agent, "begun").await;
            // A child that it has just forked for `sleep` has its arguments, too.
            eventually("the daemon runs", || async { (alive(word).len() == 1).then_some(()) }).await;
            assert_eq!(agent.cgroups().len(), usize::from(means == Means::Cgroup));
            task.cancel().await.ok();
            task.reaches("cancelled").await;
            assert!(context.join("asked").exists(), "the run had time to end by itself");
            task
        });
    }
}

#[test]
fn what_is_left_ends_with_a_success() {
    for means in BOTH {
        with_daemon(means, async |server, _, word| {
            let prompt = format!("{}; while [ ! -e begun ]; do sleep 0.05; done; echo done", daemon(word));
            let task = server.crew().task().prompt(&prompt).create().await;
            task.reaches("completed").await;
            assert_eq!(result(&task).await["output"], json!("done\n"));
            task
        });
    }
}

#[test]
fn the_sandbox_ends_with_its_supervisor() {
    for means in BOTH {
        with_daemon(means, async |server, agent, word| {
            let prompt = format!("[ -e begun ] && {{ echo again; exit; }}; {}; while :; do sleep 0.1; done", daemon(word));
            let task = server.crew().task().prompt(&prompt).create().await;
            context_with(agent, "begun").await;
            for pid in agent.supervisors() {
                janitor::signal(pid, "KILL");
            }
            let done = task.reaches("completed").await;
            assert_eq!((&done["infra_retries"], &result(&task).await["output"]), (&json!(1), &json!("again\n")));
            task
        });
    }
}

#[test]
fn a_run_in_a_sandbox_goes_on_while_its_agent_is_gone() {
    run(async {
        let server = Server::on(Database::Sqlite).keyed().start();
        let agent = server.agent("box").profile(&format!("{SHELL}sandbox = \"bubblewrap\"")).start();
        let prompt = "touch begun; while [ ! -e latch ]; do sleep 0.05; done; echo done; echo why >&2; exit 7";
        let task = server.crew().task().prompt(prompt).attempts(1).create().await;
        let context = context_with(&agent, "begun").await;
        agent.kill9();
        std::fs::write(context.join("latch"), "").expect("a file");
        agent.has_no_processes().await;
        agent.start_again();
        let failure = task.reaches("dead").await["failure"].clone();
        assert_eq!(failure["message"], json!("ended with status 7 and without a result: why"));
    });
}

#[test]
fn sandboxes_that_cannot_be_made_stop_the_start() {
    run(async {
        let server = Server::on(Database::Sqlite).keyed().start();
        let closed = |sandbox: &str| server.agent("box").profile(&format!("{SHELL}sandbox = {sandbox}"));
        let word = "\"bubblewrap\"";
        let without = r#"PATH=/nonexistent exec "$0" "$@""#;
        let forbidden = r#"exec setpriv --bounding-set=-sys_admin "$0" "$@""#;
        for (plan, parts) in [
            (closed(word).through(without), ["profile default: its sandbox needs the program bwrap", "install the package bubblewrap"]),
            (closed(word).through(forbidden), ["profile default: its sandbox can't be made here: bwrap: ", "user namespaces"]),
            (closed("{ type = \"bubblewrap\", readable = [\".\"] }"), ["profile default: its runs could read", "move one of them"]),
            (
                closed("{ type = \"bubblewrap\", writable = [\"none\"] }"),
                ["profile default: sandbox.writable names", "which does not exist"],
            ),
            (closed("\"firejail\""), ["\"firejail\" is not one of its values", "\"bubblewrap\""]),
            (closed("true"), ["sandbox must be \"bubblewrap\", or a table with type = \"bubblewrap\"", "line "]),
        ] {
            let (code, said) = plan.start_in_vain();
            assert!(code.is_some_and(|code| code != 0) && parts.iter().all(|part| said.contains(part)), "{parts:?}: {said}");
        }
    });
}

#[test]
fn a_sandbox_with_network_needs_a_server_with_keys() {
    run(async {
        let open = Server::on(Database::Sqlite).start();
        let (code, said) = open.agent("box").profile(&format!("{SHELL}sandbox = \"bubblewrap\"")).start_in_vain();
        assert_eq!(code, Some(1), "{said}");
        for part in ["profile default: the runs in its sandbox reach the server", "RUNTIME_API_KEY", "network = false"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let offline = "sandbox = { type = \"bubblewrap\", network = false }";
        let _agent = open.agent("box").profile(&format!("{SHELL}{offline}")).start();
        assert_eq!(printed(&open, "default", "mine", "echo fine").await, "fine\n");
        let keyed = Server::on(Database::Sqlite).keyed().start();
        let _agent = keyed.agent("box").profile(&format!("{SHELL}sandbox = \"bubblewrap\"")).start();
        assert_eq!(printed(&keyed, "default", "mine", "echo fine").await, "fine\n");
    });
}
