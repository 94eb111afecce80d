//! What ends a command that can't print.

use super::*;

const COMMANDS: [&[&str]; 9] = [
    &["openapi"],
    &["config", "check"],
    &["config", "check", "-o", "json"],
    &["migrate", "status"],
    &["completions", "bash"],
    &["completions", "fish"],
    &["--help"],
    &["task", "submit", "--help"],
    &["--version"],
];

#[test]
fn an_output_that_is_lost_is_a_failure() {
    let user = User::new();
    for words in COMMANDS {
        let done = user.with_full_output(words);
        assert_eq!(done.code, 1, "{words:?}: {}", done.err);
        assert!(done.err.contains("the output can't be written: No space left"), "{words:?}: {}", done.err);
    }
}

#[test]
fn an_output_that_nobody_reads_is_none() {
    let user = User::new();
    for words in COMMANDS {
        let done = user.with_closed_output(words);
        assert_eq!((done.code, done.err.as_str()), (0, ""), "{words:?}");
    }
}

#[test]
fn a_bench_that_is_interrupted_ends_as_other_commands() {
    run(async {
        let bench = User::new().starts(&["bench", "--scenario", "wake"]);
        bench.says("wake").await;
        bench.interrupt();
        let done = bench.done().ends(130);
        assert!(done.err.contains("interrupted"), "{}", done.err);
    });
}

#[test]
fn an_agent_with_a_wrong_address_ends_as_other_commands() {
    let user = User::new();
    let said = user.does(&["agent", "--server", "foo", "--runner", "echo"]).ends(2).err;
    assert!(said.contains("give a URL such as"), "{said}");
}
