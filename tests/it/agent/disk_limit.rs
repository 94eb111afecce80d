//! Runs that take more room on the disk than they may, or all of it.

use super::ending::ON_A_SMALL_DISK;
use super::*;
use crate::support::{Database, Server};

const FOUR_MIB: &str = "runner = \"command\"\ncommand = [\"sh\"]\nlimits = { disk_mib = 4 }";

#[test]
fn a_run_that_takes_too_much_room_is_stopped_and_tried_once_more() {
    run(async {
        let (server, tally) = (Server::on(Database::Sqlite).start(), Tally::new());
        let agent = server.agent("box").profile(FOUR_MIB).start();
        let fills = format!("{}; head --bytes 8000000 /dev/urandom >large; sleep 150", tally.mark());
        let task = server.crew().task().context("large").attempts(5).prompt(&fills).create().await;
        let failed = task.reaches("failed").await;
        assert_eq!(failed["failure"]["reason"], json!("disk_limit"), "{failed}");
        assert!(failed["failure"]["message"].as_str().unwrap().contains("limits.disk_mib"), "{failed}");
        assert_eq!(
            (&failed["attempts"], tally.count()),
            (&json!(2), 1),
            "both count, but the second would be ended at once: it does not begin"
        );
        let message = failed["failure"]["message"].as_str().unwrap();
        assert!(message.contains("already: have files in contexts/large-") && message.contains("removed on worker box"), "{message}");
        // What a link leads to does not count, nor what a file only seems to have, nor one file twice.
        let small = "ln -s /usr usr; truncate --size 1G sparse; head --bytes 3000000 /dev/urandom >one; ln one two; sleep 3; echo done";
        let small = server.crew().task().context("small").prompt(small).create().await;
        small.reaches("completed").await;
        agent.has_no_processes().await;
    });
}

#[test]
fn a_run_hides_nothing_from_its_limit() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("box").profile(FOUR_MIB).start();
        let fill = "head --bytes 8000000 /dev/urandom";
        let removed = format!("exec 3>large; rm large; {fill} >&3; sleep 150");
        let deep = format!("d=$(printf 'd%.0s' $(seq 200)); for i in $(seq 30); do mkdir $d; cd -P $d; done; {fill} >large; sleep 150");
        let program = "import mmap, os, time; f = os.open(\"large\", os.O_RDWR | os.O_CREAT); os.unlink(\"large\"); os.ftruncate(f, 8000000); \
                       m = mmap.mmap(f, 8000000); os.close(f); m.write(bytes(range(250)) * 32000); m.flush(); time.sleep(150)";
        let mapped = format!("python3 -c '{program}'");
        // Its other threads go on, and have the file open.
        let headless = "import ctypes, os, platform, threading, time; f = os.open(\"large\", os.O_RDWR | os.O_CREAT); os.unlink(\"large\"); \
                        work = lambda: (os.write(f, bytes(8000000)), time.sleep(150)); threading.Thread(target=work).start(); \
                        ctypes.CDLL(None).syscall(60 if platform.machine() == \"x86_64\" else 93, 0)";
        let headless = format!("(python3 -c '{headless}' &) & sleep 150");
        for hides in [removed, deep, mapped, headless] {
            let task = server.crew().task().attempts(1).prompt(&hides).create().await;
            let failure = eventually("it is stopped", || async { task.now().await["failure"].as_object().cloned() }).await;
            assert_eq!(failure["reason"], json!("disk_limit"), "{hides}: {failure:?}");
        }
        agent.has_no_processes().await;
    });
}

/// All runs of the account read it.
#[test]
fn the_login_of_the_cli_counts_and_is_put_right() {
    let profile = "allowed_tools = [\"Bash\"]\nlimits = { disk_mib = 4 }\nsandbox = \"bubblewrap\"";
    super::claude::with(profile, async |server, _, agent| {
        let login = agent.dir().join("home/.claude/.credentials.json");
        std::fs::create_dir_all(login.parent().expect("its directory")).expect("a directory");
        let good = r#"{"claudeAiOauth": {"accessToken": "good"}}"#;
        std::fs::write(&login, good).expect("a login");
        let is_good = async || {
            let read = || std::fs::read_to_string(&login).is_ok_and(|now| now == good);
            eventually("the login is there again", || async { read().then_some(()) }).await;
        };
        // Nobody else is to blame, although their runs have the file, too.
        let waits = Latch::new();
        let other = server.crew().task().attempts(1).prompt(&format!("MODE-TOOL RUN: {}\nSAY: done", waits.wait())).create().await;
        other.reaches("running").await;
        let fills = "MODE-TOOL RUN: while :; do head --bytes 8000000 /dev/urandom >$HOME/.claude/.credentials.json; done";
        let task = server.crew().task().attempts(1).prompt(fills).create().await;
        let failure = eventually("it is stopped", || async { task.now().await["failure"].as_object().cloned() }).await;
        assert_eq!(failure["reason"], json!("disk_limit"), "{failure:?}");
        is_good().await;
        waits.open();
        other.reaches("completed").await;
        let spoils = r#"MODE-TOOL RUN: sh -c 'echo spoiled >"$HOME/.claude/.credentials.json"'"#;
        server.crew().task().prompt(spoils).create().await.reaches("completed").await;
        is_good().await;
    });
}

#[test]
fn temporary_files_count() {
    let profile = "allowed_tools = [\"Bash\"]\nlimits = { disk_mib = 4 }";
    super::claude::with(profile, async |server, _, _| {
        let fills = "MODE-TOOL RUN: head --bytes 8000000 /dev/urandom >$TMPDIR/large; sleep 150\nSAY: done";
        let task = server.crew().task().attempts(1).prompt(fills).create().await;
        let failure = eventually("it is stopped", || async { task.now().await["failure"].as_object().cloned() }).await;
        assert_eq!(failure["reason"], json!("disk_limit"), "{failure:?}");
    });
}

/// Where the run puts its questions, and its sessions, which it sees at another place.
#[test]
fn what_a_sandbox_shows_of_the_agent_counts() {
    let profile = "allowed_tools = [\"Bash(python3 *)\"]\nlimits = { disk_mib = 4 }\nsandbox = \"bubblewrap\"\nask_human = true";
    super::claude::with(profile, async |server, _, _| {
        let asks = "path = os.environ[\"BLOOM_AGENT_HOME\"] + \"/runs/\" + os.environ[\"BLOOM_LEASE_ID\"] + \"/question/large\"; \
                    open(path, \"wb\").write(bytes(8000000))";
        let maps = "path = os.path.expanduser(\"~/.claude/projects/large\"); f = os.open(path, os.O_RDWR | os.O_CREAT); os.unlink(path); \
                    os.ftruncate(f, 8000000); m = mmap.mmap(f, 8000000); os.close(f); m.write(bytes(range(250)) * 32000); m.flush()";
        for fills in [asks, maps] {
            let prompt = format!("MODE-TOOL RUN: python3 -c 'import mmap, os, time; {fills}; time.sleep(150)'\nSAY: done");
            let task = server.crew().task().attempts(1).prompt(&prompt).create().await;
            let failure = eventually("it is stopped", || async { task.now().await["failure"].as_object().cloned() }).await;
            assert_eq!(failure["reason"], json!("disk_limit"), "{fills}: {failure:?}");
        }
    });
}

#[test]
fn a_limit_of_nothing_is_refused() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let profile = "runner = \"command\"\ncommand = [\"sh\"]\nlimits = { disk_mib = 0 }";
        let (code, said) = server.agent("box").profile(profile).start_in_vain();
        assert!(code != Some(0) && said.contains("limits.disk_mib must be 1 to"), "{said}");
    });
}

#[test]
fn of_a_full_disk_the_run_that_filled_it_is_to_blame() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("box").slots(2).shell().through(ON_A_SMALL_DISK).start();
        let (began, filled) = (Tally::new(), Tally::new());
        let (prints, says) = (Latch::new(), Latch::new());
        let much = "yes | head --bytes 9000000; sleep 150";
        let hit = format!("{}; {}; {much}", began.mark(), prints.wait());
        let hit = server.crew().task().context("hit").prompt(&hit).create().await;
        began.reaches(1).await;
        let fills = format!("head --bytes 9000000 /dev/zero >filler 2>/dev/null; {}; {}; {much}", filled.mark(), says.wait());
        let fills = server.crew().task().context("fills").prompt(&fills).create().await;
        filled.reaches(1).await;
        prints.open();
        let was_hit = eventually("it is hit", || async { Some(hit.now().await).filter(|task| task["failure"].is_object()) }).await;
        assert_eq!((&was_hit["failure"]["reason"], &was_hit["attempts"]), (&json!("worker_disk"), &json!(0)));
        says.open();
        let to_blame = eventually("it ends", || async { Some(fills.now().await).filter(|task| task["failure"].is_object()) }).await;
        assert_eq!((&to_blame["failure"]["reason"], &to_blame["attempts"]), (&json!("disk_limit"), &json!(1)));
        agent.has_no_processes().await;
    });
}
