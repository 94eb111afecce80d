//! What is different on a terminal: colors, and escaped control characters.

use super::*;

#[test]
fn a_status_has_a_colour_unless_none_is_wanted() {
    run(async {
        let crew = sqlite().crew();
        let task = crew.task().create().await;
        task.cancel().await.ok();
        let user = User::at(crew.api).with("TERM", "xterm");
        let list = ["task", "list", "--agent", &crew.slug];
        let out = user.types("", &list).ok();
        assert!(out.contains("\u{1b}[33mcancelled\u{1b}[0m"), "{out:?}");
        let plain = user.with("NO_COLOR", "1").types("", &list).ok();
        assert!(plain.contains("cancelled") && !plain.contains('\u{1b}'), "{plain:?}");
    });
}

#[test]
fn text_of_others_does_not_steer_the_terminal() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let user = User::at(crew.api).with("NO_COLOR", "1");
        let task = crew.task().prompt("\u{1b}]0;owned\u{7}\u{9b}2J\nx").create().await;
        let run = Run::claimed_by(&worker).await;
        run.tells("text", json!("\u{1b}[2Jseen")).await;
        run.tells("tool_use", json!({ "name": "\u{1b}c" })).await;
        run.answers("\u{1b}[2Jdone").await;
        let commands: [&[&str]; 5] = [
            &["task", "get", &task.id],
            &["task", "get", "-o", "yaml", &task.id],
            &["task", "get", "-o", "json", &task.id],
            &["task", "logs", &task.id],
            &["task", "result", &task.id],
        ];
        for command in commands {
            let out = user.types("", command).ok();
            let steering = out.chars().any(|c| c.is_control() && !matches!(c, '\r' | '\n' | '\t'));
            assert!(!steering && !out.is_empty(), "{command:?}: {out:?}");
        }
        let piped = user.does(&["task", "get", &task.id]).ok();
        assert!(!piped.contains('\u{1b}'), "tables are escaped in pipes too: {piped:?}");
        assert_eq!(user.does(&["task", "result", &task.id]).ok(), "\u{1b}[2Jdone\n", "an answer in a pipe is unchanged");

        let failing = crew.task().create().await;
        Run::claimed_by(&worker).await.fails("agent_error", "\u{1b}[2Jbad").await;
        let said = user.does(&["task", "wait", "-o", "name", &failing.id]).ends(1).err;
        assert!(said.contains("bad") && !said.contains('\u{1b}'), "{said:?}");
    });
}

#[test]
fn waiting_is_seen_on_a_terminal_and_the_answer_stays() {
    run(async {
        let crew = sqlite().crew();
        let worker = crew.worker().register().await;
        let user = User::at(crew.api).with("TERM", "xterm");
        let slug = crew.slug.clone();
        let waiting = beside(async move {
            tokio::task::spawn_blocking(move || user.types("", &["task", "submit", "--wait", "--agent", &slug, "p"])).await
        });
        Run::claimed_by(&worker).await.answers("Hello!").await;
        let out = waiting.await.expect("the waiting").expect("its end").ok();
        assert!(out.ends_with("Hello!\r\n"), "{out:?}");
        assert!(out.contains("runs on") || out.contains("completed"), "{out:?}");
    });
}
