//! Questions of runs to people, and the answers.

use super::cases::Case;
use super::table::check;
use bloom_core::command::{Op, Rejection};
use bloom_core::ids::{LeaseId, TaskId};
use bloom_core::limits::ASKED_MS;
use bloom_core::op;
use bloom_core::question::Answer;
use bloom_core::task::{Status, TaskSpec};
use bloom_test_world::world::{World, spec, world};
use uuid::Uuid;

const MINUTE_MS: i64 = 60_000;

fn ask(task: TaskId, lease: LeaseId, id: u128, limit_ms: i64) -> op::AskPerson {
    let question = op::NewQuestion { tool: "Bash".into(), input: "{}".into(), texts: Vec::new(), limit_ms };
    op::AskPerson { task, lease, id: Uuid::from_u128(id), question: Some(question) }
}

fn over(task: TaskId, lease: LeaseId, id: u128) -> op::AskPerson {
    op::AskPerson { question: None, ..ask(task, lease, id, 1) }
}

fn answer(task: TaskId, allow: bool) -> op::AnswerQuestion {
    op::AnswerQuestion { task, question: None, answer: Answer { allow, message: None, texts: Vec::new() } }
}

/// A run that a worker has claimed, with a minute of time.
fn claimed() -> (World, TaskId, LeaseId) {
    claimed_for(60)
}

fn claimed_for(timeout_sec: i64) -> (World, TaskId, LeaseId) {
    claimed_as(TaskSpec { timeout_sec, ..spec("c") })
}

fn claimed_as(spec: TaskSpec) -> (World, TaskId, LeaseId) {
    let mut world = world().worker("w1", 4);
    let task = world.create(spec);
    world.claim("w1", 1);
    world.heartbeat(task);
    let lease = world.lease_of(task);
    (world, task, lease)
}

/// The latest end of the lease, in ms from the start of the lease.
fn end(world: &World, task: TaskId) -> i64 {
    let lease = world.task(task).lease.as_ref().unwrap();
    lease.hard_end_at.unwrap() - lease.started_at
}

#[test]
fn a_question_in_every_state() {
    check(
        |case| Op::AskPerson(ask(case.task, case.lease.unwrap_or(Case::no_lease()), 1, 1_000)),
        "
        ✗ Lease not found or already expired <- queued | waits for a dependency | waits for its time | waits in its context
            | waits for its key | queued after an expiry | dead by an expiry | waits after a failure | dead after a failure | completed | failed
            | cancelled | requeued after death
        leased 1/3 on w1 till 300; task_asked by w1 <- leased by a call
        leased 1/3 on w1 till 180; task_asked by w1 <- leased by a claim | leased by a push
        running 1/3 on w1 till 300; task_asked by w1 <- running by a call
        running 1/3 on w1 till 179; task_asked by w1 <- running by a claim | running by a push
        running 1/1 on w1 till 300; task_asked by w1 <- on its last attempt
        leased 1/3 on w1 till 300 cancel; task_asked by w1 <- leased, cancel requested
        running 1/1 on w1 till 300 cancel; task_asked by w1 <- running, cancel requested",
    );
}

#[test]
fn a_question_is_answered_once_and_in_time() {
    let (mut world, task, lease) = claimed();
    let refused = |world: &mut World, answer: op::AnswerQuestion, why: &str| match world.run(answer) {
        Err(Rejection::CannotAnswer { why: told, .. }) => assert_eq!(told, why),
        other => panic!("{why}: {other:?}"),
    };
    refused(&mut world, answer(task, true), "its run asks nothing now");
    world.ok(ask(task, lease, 1, 1_000));
    let first = world.task(task).clone();
    assert!(world.ok(ask(task, lease, 1, 900_000)).answer.is_none());
    assert_eq!(*world.task(task), first, "repeating it changes nothing");
    refused(&mut world, op::AnswerQuestion { question: Some(Uuid::nil()), ..answer(task, true) }, "its run asks something else now");
    world.now += 1_001;
    refused(&mut world, answer(task, true), "the time limit of its question is over");
    world.ok(ask(task, lease, 2, 1_000));
    world.ok(op::AnswerQuestion { question: Some(Uuid::from_u128(2)), ..answer(task, false) });
    refused(&mut world, answer(task, true), "its question is answered already");
    assert!(world.task(task).asks().is_none() && world.task(task).is_answered());
    let leases = vec![lease];
    assert_eq!(world.ok(op::RenewLeases { worker: "w1".into(), leases: leases.clone() }).answered, [task]);
    assert!(world.ok(over(task, lease, 1)).answer.is_none(), "another one is over");
    assert_eq!(world.ok(ask(task, lease, 2, 1_000)).answer.map(|answer| answer.allow), Some(false));
    assert_eq!(world.ok(over(task, lease, 2)).answer.map(|answer| answer.allow), Some(false), "it was given before the end");
    assert!(world.ok(over(task, lease, 2)).answer.is_none());
    assert!(world.ok(op::RenewLeases { worker: "w1".into(), leases }).answered.is_empty());
    refused(&mut world, answer(task, true), "its run asks nothing now");
}

#[test]
fn a_question_that_is_over_is_not_asked_again() {
    let (mut world, task, lease) = claimed();
    world.ok(ask(task, lease, 1, 1_000));
    world.ok(over(task, lease, 1));
    let ended = world.task(task).clone();
    assert!(world.ok(ask(task, lease, 1, 900_000)).is_over, "its call comes late");
    assert_eq!(*world.task(task), ended, "nor does the lease last longer");
    world.ok(over(task, lease, 2));
    assert!(world.ok(ask(task, lease, 2, 1_000)).is_over, "it comes after its own end");
    world.ok(ask(task, lease, 3, 1_000));
    world.ok(ask(task, lease, 4, 1_000));
    world.ok(answer(task, true));
    for late in [1, 2, 3] {
        assert!(world.ok(ask(task, lease, late, 1_000)).is_over, "{late}");
        assert!(world.ok(over(task, lease, late)).answer.is_none(), "{late}");
    }
    world.ok(over(task, lease, 5));
    assert_eq!(world.ok(ask(task, lease, 4, 1_000)).answer.map(|answer| answer.allow), Some(true), "its answer is not lost");
    world.ok(over(task, lease, 4));
    assert!(world.task(task).open_question().is_none() && !world.task(task).is_answered());
    for id in 6..500 {
        world.ok(ask(task, lease, id, 1));
    }
    assert_eq!(world.task(task).question.as_ref().unwrap().past.len(), 32);
}

#[test]
fn answers_are_as_many_as_questions() {
    let (mut world, task, lease) = claimed();
    let mut asked = ask(task, lease, 1, 1_000);
    asked.question.as_mut().unwrap().texts = vec!["a?".into(), "b?".into()];
    world.ok(asked);
    let given = |allow, texts: usize| {
        let answered = Answer { allow, message: None, texts: vec!["x".into(); texts] };
        op::AnswerQuestion { answer: answered, ..answer(task, allow) }
    };
    for (allow, texts) in [(true, 0), (true, 1), (true, 3), (false, 2)] {
        let refused = world.run(given(allow, texts)).unwrap_err();
        assert_eq!(refused, Rejection::WrongAnswers { asked: 2, given: texts, allow });
    }
    world.ok(given(true, 2));
    assert_eq!(world.ok(ask(task, lease, 1, 1_000)).answer.unwrap().texts, ["x", "x"]);
}

#[test]
fn the_lease_lasts_longer_by_what_people_took() {
    let (mut world, task, lease) = claimed();
    assert_eq!(end(&world, task), 2 * MINUTE_MS);
    world.ok(ask(task, lease, 1, 10 * MINUTE_MS));
    assert_eq!(end(&world, task), 13 * MINUTE_MS, "and a minute after the question");
    world.now += 5 * MINUTE_MS;
    world.heartbeat(task);
    assert_eq!(world.task(task).status, Status::Running);
    world.ok(over(task, lease, 1));
    let expires = world.task(task).lease.as_ref().unwrap().expires_at - world.now;
    assert_eq!((end(&world, task), expires), (7 * MINUTE_MS, 2 * MINUTE_MS), "what was not used is taken back");
    // The next question replaces this one.
    world.ok(ask(task, lease, 2, 10 * MINUTE_MS));
    world.now += MINUTE_MS;
    world.heartbeat(task);
    world.ok(ask(task, lease, 3, 10 * MINUTE_MS));
    assert_eq!(end(&world, task), (8 + 11) * MINUTE_MS);
    world.ok(over(task, lease, 3));
    assert_eq!(end(&world, task), 8 * MINUTE_MS);
    for id in 4..40 {
        world.ok(ask(task, lease, id, ASKED_MS));
        world.now += 60 * MINUTE_MS;
        world.heartbeat(task);
    }
    assert!(end(&world, task) <= ASKED_MS + 3 * MINUTE_MS, "a day in all");
    world.check();
}

#[test]
fn a_clock_that_steps_ends_no_question() {
    for step_ms in [600 * MINUTE_MS, -600 * MINUTE_MS] {
        let (mut world, task, lease) = claimed_for(86_400);
        world.now += 700 * MINUTE_MS;
        world.heartbeat(task);
        let lease_start = world.now;
        world.ok(ask(task, lease, 1, 100 * MINUTE_MS));
        world.now += step_ms;
        world.ok(op::ClockStepped { task, step_ms, at: world.now });
        let state = world.task(task);
        let (question, held) = (state.question.as_ref().unwrap(), state.lease.as_ref().unwrap());
        assert_eq!((question.asked_at, question.until), (lease_start + step_ms, lease_start + step_ms + 100 * MINUTE_MS), "{step_ms}");
        assert!(held.hard_end_at.unwrap() >= world.now, "{step_ms}: {held:?}");
        world.ok(answer(task, true));
    }
}

#[test]
fn a_question_ends_with_its_lease() {
    let (mut world, task, lease) = claimed();
    world.ok(ask(task, lease, 1, 1_000));
    world.ok(op::Release { task, lease, reason: "x".into() });
    assert!(world.task(task).question.is_none());
}

#[test]
fn an_agent_that_moves_files_has_time_for_it() {
    let (mut world, task, lease) = claimed_as(TaskSpec { timeout_sec: 60, outputs: vec!["dist/**".into()], ..spec("c") });
    assert_eq!(end(&world, task), 2 * MINUTE_MS + 30 * MINUTE_MS);
    // A question adds to it.
    world.ok(ask(task, lease, 1, 5 * MINUTE_MS));
    assert!(end(&world, task) >= 37 * MINUTE_MS);
    assert_eq!(end(&claimed().0, claimed().1), 2 * MINUTE_MS);
}
