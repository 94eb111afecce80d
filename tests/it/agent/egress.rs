//! Runs whose sandbox reaches listed hosts only, through the agent.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::sandbox::{AS_A_USER, AS_ROOT, context_with};
use super::*;
use crate::support::agent::Agent;
use crate::support::claude::Anthropic;
use crate::support::stub::{Reply, Stub};
use crate::support::{Database, Server, beside};

const SHELL: &str = "runner = \"command\"\ncommand = [\"/bin/sh\"]\n";

fn listed(entries: &[&str]) -> String {
    format!("sandbox = {{ type = \"bubblewrap\", network = {entries:?} }}")
}

fn place(stub: &Stub) -> &str {
    stub.url.trim_start_matches("http://")
}

fn port(stub: &Stub) -> &str {
    place(stub).rsplit_once(':').expect("a port").1
}

/// A server of the test that answers with this text.
async fn saying(text: &str) -> Stub {
    let stub = Stub::start().await;
    stub.always("/", Reply::new(200, text));
    stub
}

/// What a run prints, and its task.
async fn printed<'s>(server: &'s Server, script: &str) -> (String, Task<'s>) {
    let task = server.crew().task().prompt(script).attempts(1).create().await;
    task.reaches("completed").await;
    (result(&task).await["output"].as_str().expect("text").to_owned(), task)
}

/// The refusals that the events of a task tell: each with what was asked for and why.
async fn refused(task: &Task<'_>) -> Vec<(String, String)> {
    let told = told(task, "lifecycle").await;
    let refused = told.iter().filter(|data| data["phase"] == json!("egress_refused"));
    refused.map(|data| (data["target"].as_str().unwrap().to_owned(), data["text"].as_str().unwrap().to_owned())).collect()
}

fn with_list(entries: &[&str], body: impl AsyncFnOnce(&Server, &Agent)) {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("box").profile(&format!("{SHELL}{}", listed(entries))).start();
        body(&server, &agent).await;
        agent.has_no_processes().await;
    });
}

#[test]
fn a_run_reaches_what_is_listed_and_nothing_else() {
    for user in [AS_ROOT, AS_A_USER] {
        run(async {
            let (first, second) = (saying("first").await, saying("second").await);
            let server = Server::on(Database::Sqlite).start();
            let by_name = format!("localhost:{}", port(&second));
            let plan = server.agent("box").profile(&format!("{SHELL}{}", listed(&[place(&first), &by_name])));
            let agent = plan.through(user).start();

            let fetch = "curl -s -m 20 -o - -w ' %{http_code} %{http_connect}\\n'";
            let script = [
                format!("{fetch} {}", first.url),
                format!("{fetch} --proxytunnel {}", first.url),
                // Neither another port nor a name that leads inside, be it listed or not.
                format!("{fetch} {} >other", second.url),
                format!("{fetch} --noproxy none -x $http_proxy http://localhost:{} >name", port(&first)),
                format!("{fetch} --noproxy none -x $http_proxy --proxytunnel http://{by_name} >listed"),
                "head -n 2 other name listed".to_owned(),
                // Nothing without the proxy.
                format!("{fetch} --noproxy '*' {}", first.url),
                format!("env -i PATH=\"$PATH\" curl -s -m 20 {} || echo none", first.url),
                "true".to_owned(),
            ];
            let (text, task) = printed(&server, &script.join("\n")).await;
            let why = |target: &str| format!("{target} is not in sandbox.network: add {target:?} to the list of the profile default");
            let (other, name) = (place(&second).to_owned(), format!("localhost:{}", port(&first)));
            let inside = format!(
                "{by_name} leads to 127.0.0.1, which is not an address of the internet: if runs may reach it, add \"127.0.0.1:{}\" to the list of \
             the profile default",
                port(&second)
            );
            assert!(text.starts_with("first 200 000\nfirst 200 200\n"), "{text}");
            assert!(text.contains(&format!("==> other <==\nbloom-runtime: {}\n 403 000\n", why(&other))), "{text}");
            assert!(text.contains(&format!("==> name <==\nbloom-runtime: {}\n 403 000\n", why(&name))), "{text}");
            assert!(text.contains("==> listed <==\n 000 403\n"), "{text}");
            assert!(text.ends_with(" 000 000\nnone\n"), "{text}");
            assert_eq!(refused(&task).await, [(other.clone(), why(&other)), (name.clone(), why(&name)), (by_name.clone(), inside)]);
            assert_eq!((first.seen("/").len(), second.seen("/").len()), (2, 0));
            let moved = told(&task, "lifecycle").await.into_iter().find(|data| data["phase"] == json!("egress"));
            assert!(moved.is_some_and(|data| data["bytes"].as_u64().unwrap() > 100));
            agent.has_no_processes().await;
        });
    }
}

#[test]
fn the_program_of_a_run_is_as_it_is_elsewhere() {
    let script = "echo out; echo err >&2; ls /run; ls /run/bloom-egress; touch /run/bloom-egress/new 2>/dev/null; exit 7";
    let body = async |server: &Server, agent: &Agent| {
        let task = server.crew().task().prompt(script).attempts(1).create().await;
        let failure = task.reaches("dead").await["failure"].clone();
        assert_eq!(failure["message"], json!("ended with status 7 and without a result: err"));
        let (text, _) = printed(server, "ls /run /run/bloom-egress; touch /run/bloom-egress/new 2>/dev/null || echo closed").await;
        assert_eq!(text, "/run:\nbloom-egress\n\n/run/bloom-egress:\nsocket\nclosed\n");
        let killed = server.crew().task().prompt("kill -KILL $$").attempts(1).create().await;
        let failure = killed.reaches("dead").await["failure"].clone();
        assert_eq!(failure["message"], json!("ended with status 137 and without a result"));

        let prompt = "trap ': > asked; exit' TERM; touch begun; while :; do sleep 0.1; done";
        let waiting = server.crew().task().prompt(prompt).create().await;
        let context = context_with(agent, "begun").await;
        waiting.cancel().await.ok();
        waiting.reaches("cancelled").await;
        assert!(context.join("asked").exists(), "the run had time to end by itself");
    };
    with_list(&["example.com:443"], body);
}

#[test]
fn another_agent_goes_on_with_the_proxy() {
    run(async {
        let (first, latch) = (saying("first").await, "latch");
        let server = Server::on(Database::Sqlite).start();
        let agent = server.agent("box").profile(&format!("{SHELL}{}", listed(&[place(&first)]))).start();
        let script = format!("touch begun; while [ ! -e {latch} ]; do sleep 0.05; done; curl -s -m 50 {}", first.url);
        let task = server.crew().task().prompt(&script).attempts(1).create().await;
        let context = context_with(&agent, "begun").await;
        agent.kill9();
        std::fs::write(context.join(latch), "").expect("a file");
        agent.start_again();
        task.reaches("completed").await;
        assert_eq!(result(&task).await["output"], json!("first\n"));
        agent.has_no_processes().await;
    });
}

/// A proxy that answers every tunnel itself. Returns its address, and what it was asked.
async fn other_proxy() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, seen) = (listener.local_addr().expect("an address").to_string(), Arc::<Mutex<Vec<String>>>::default());
    let known = seen.clone();
    beside(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let asked = head(&mut stream).await;
            known.lock().expect("the list").push(asked);
            stream.write_all(b"HTTP/1.1 200 Yes\r\n\r\n").await.expect("an answer");
            head(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nthere").await.expect("an answer");
        }
    });
    (address, seen)
}

async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a byte"));
    }
    String::from_utf8(head).expect("text")
}

#[test]
fn the_agents_own_proxy_is_used_for_what_is_listed() {
    run(async {
        let (address, seen) = other_proxy().await;
        let server = Server::on(Database::Sqlite).start();
        let plan = server.agent("box").profile(&format!("{SHELL}{}", listed(&["api.example.com:80"])));
        let agent = plan.env("HTTPS_PROXY", format!("http://me:secret@{address}")).start();
        let script = "curl -s -m 20 --proxytunnel http://api.example.com; curl -s -m 20 --proxytunnel http://other.example.com; cat /proc/[0-9]*/environ | grep -a secret; true";
        let (text, task) = printed(&server, script).await;
        assert_eq!(text, "there\n");
        let asked = seen.lock().expect("the list").clone();
        let credentials = "Proxy-Authorization: Basic bWU6c2VjcmV0";
        assert_eq!(asked, [format!("CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com:80\r\n{credentials}\r\n\r\n")]);
        assert_eq!(refused(&task).await[0].0, "other.example.com:80");
        agent.has_no_processes().await;
    });
}

#[test]
fn the_claude_cli_works_through_the_list() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, &listed(&[api.url.trim_start_matches("http://")])).start();
        let task = server.crew().task().prompt("SAY: Kestrel").create().await;
        task.reaches("completed").await;
        assert_eq!(result(&task).await["output"], json!("Kestrel"));
        assert!(!api.seen_with("SAY: Kestrel").is_empty() && !agent.log().contains("will reach no model"), "{}", agent.log());
        agent.has_no_processes().await;
    });
}

#[test]
fn a_list_without_the_api_is_told_at_the_start() {
    run(async {
        let (server, api) = (Server::on(Database::Sqlite).start(), Anthropic::start().await);
        let agent = server.agent("box").claude(&api, &listed(&["example.com:443"])).start();
        eventually("the agent warns", || async {
            let log = agent.log();
            (log.contains("sandbox.network lacks its API") && log.contains(api.url.trim_start_matches("http://"))).then_some(())
        })
        .await;
    });
}

#[test]
fn a_bad_entry_stops_the_start() {
    run(async {
        let server = Server::on(Database::Sqlite).start();
        for (network, parts) in [
            (r#"["example.com"]"#, ["sandbox.network: the entry \"example.com\" has no port", "write HOST:PORT"]),
            (r#"["a.com:80", "b.com:0"]"#, ["the entry \"b.com:0\" has no port from 1 to 65535", "write HOST:PORT"]),
            (r#"["*:443"]"#, ["the entry \"*:443\" has no name", "write HOST:PORT"]),
            (r#"["https://a.com:443"]"#, ["the entry \"https://a.com:443\" has a scheme", "write HOST:PORT"]),
            ("[]", ["sandbox.network: the list is empty", "write network = false"]),
            ("\"a.com:443\"", ["true, false, or a list of \"HOST:PORT\"", "network"]),
        ] {
            let profile = format!("{SHELL}sandbox = {{ type = \"bubblewrap\", network = {network} }}");
            let (code, said) = server.agent("box").profile(&profile).start_in_vain();
            assert!(code.is_some_and(|code| code != 0) && parts.iter().all(|part| said.contains(part)), "{parts:?}: {said}");
        }
    });
}
