//! Runs that leave something else than files where their agent expects files.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::*;
use crate::support::{Database, Server};

fn with_agent(body: impl AsyncFnOnce(&Server, &agent::Agent)) {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("box").slots(3).shell().start();
        body(&server, &agent).await;
        agent.has_no_processes().await;
    });
}

async fn collected(task: &Task<'_>) -> Value {
    let lifecycle = told(task, "lifecycle").await;
    lifecycle.into_iter().find(|data| data["phase"] == json!("collected")).expect("the event")
}

async fn outputs(task: &Task<'_>) -> Vec<String> {
    let artifacts = task.api.get(&format!("artifacts?task_id={}", task.id)).await.ok();
    let outputs = artifacts.as_array().unwrap().iter().filter(|artifact| artifact["type"] == json!("OUTPUT"));
    outputs.map(|artifact| artifact["name"].as_str().unwrap().to_owned()).collect()
}

/// The file of this name in the directory of the context.
fn left(agent: &agent::Agent, context: &str, name: &str) -> PathBuf {
    let dirs = std::fs::read_dir(agent.work_dir().join("contexts")).expect("the contexts").flatten();
    let dir = dirs.map(|entry| entry.path()).find(|path| path.file_name().unwrap().to_string_lossy().starts_with(&format!("{context}-")));
    dir.expect("the context's directory").join(name)
}

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
}

#[test]
fn what_is_no_file_is_named_and_not_kept() {
    with_agent(async |server, agent| {
        let latch = Latch::new();
        let other = server.crew().task().prompt(&format!("{}; echo other", latch.wait())).create().await;
        let script = "mkdir out; echo kept >out/file; mkfifo out/pipe; ln -s /etc/passwd out/link; \
                      python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"out/socket\")'; echo done";
        let task = server.crew().task().with("outputs", json!(["out/*"])).prompt(script).create().await;
        task.reaches("completed").await;
        assert_eq!(outputs(&task).await, ["out/file"]);
        let told = collected(&task).await;
        let text = told["text"].as_str().unwrap();
        assert_eq!(told["files"], json!(1));
        for name in ["out/pipe", "out/link", "out/socket"] {
            assert!(text.contains(&format!("{name}: ")), "{name}: {text}");
        }
        latch.open();
        other.reaches("completed").await;
        assert!(agent.stop().success());
    });
}

#[test]
fn outputs_that_are_exchanged_meanwhile_hold_up_nobody() {
    with_agent(async |server, agent| {
        let script = "mkdir out; for i in $(seq 100 250); do echo $i >out/$i; done; echo >out/z; echo done";
        let mut tasks = Vec::new();
        for context in ["one", "two"] {
            tasks.push(server.crew().task().context(context).with("outputs", json!(["out"])).prompt(script).create().await);
        }
        for (task, context) in tasks.iter().zip(["one", "two"]) {
            eventually("some outputs are stored", || async { (!outputs(task).await.is_empty()).then_some(()) }).await;
            let last = left(agent, context, "out/z");
            std::fs::remove_file(&last).expect("it is there");
            make_fifo(&last);
        }
        let other = server.crew().task().prompt("echo other").create().await;
        other.reaches("completed").await;
        for task in &tasks {
            task.reaches("completed").await;
            let told = collected(task).await;
            assert!(told["files"] == json!(151) && told["text"].as_str().unwrap().contains("out/z"), "{told}");
        }
        assert!(agent.stop().success());
    });
}

/// Stops the threads of a process that work for its runtime, as a file system that does not answer does, until they are killed.
const HOLDS_THREADS: &str = r#"
import ctypes, os, pathlib, sys
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long] * 4
SEIZE, INTERRUPT, ALL_THREADS = 0x4206, 0x4207, 0x40000000
for thread in pathlib.Path("/proc", sys.argv[1], "task").iterdir():
    if (thread / "comm").read_text().startswith("tokio-rt"):
        tid = int(thread.name)
        assert ptrace(SEIZE, tid, 0, 0) == 0 and ptrace(INTERRUPT, tid, 0, 0) == 0, os.strerror(ctypes.get_errno())
        os.waitpid(tid, ALL_THREADS)
        print("held", tid, flush=True)
print("all", flush=True)
# Who traces a thread must take notice of its end, or its process does not end.
try:
    while True:
        os.waitpid(-1, ALL_THREADS)
except ChildProcessError:
    pass
"#;

#[test]
fn an_agent_whose_threads_hang_ends_at_a_signal() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("box").shell().arg(&["--grace-seconds", "0"]).start();
        eventually("it is registered", || async { (server.try_get("workers/box").await.ok()?.status == 200).then_some(()) }).await;
        let mut holds = Command::new("python3");
        holds.args(["-c", HOLDS_THREADS, &agent.pid().to_string()]).stdout(Stdio::piped());
        let mut holder = janitor::spawn(holds).expect("python3");
        let said = BufReader::new(holder.stdout.take().expect("its output")).lines().map_while(Result::ok);
        assert!(said.take_while(|line| line != "all").count() > 0, "threads of the runtime are held");
        agent.signal("TERM");
        assert!(!agent.wait_for_end().success(), "it could not stop in order");
        assert!(agent.log().contains("threads of it hang"), "{}", agent.log());
        assert!(holder.wait().expect("its end").success());
    });
}
