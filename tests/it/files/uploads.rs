//! Uploads of clients: what is accepted, what is served, what goes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::{bytes, content, has_no_chunks, id, sha256, upload};
use crate::keys::{ADMIN, keyed, with_new_key};
use crate::on_both;
use crate::support::*;

/// Sends this as it is, and returns the answer, or what came of it.
fn raw(server: &Server, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(server.base().strip_prefix("http://").unwrap()).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = [0; 4096];
    let read = stream.read(&mut answer).unwrap_or(0);
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

on_both! { alone:
    async fn what_was_uploaded_is_served(database) {
        let server = Server::on(database).start();
        for length in [0, 5, 262_144, 262_145, 1_000_000] {
            let sent = bytes(length);
            let api = server.with_header("content-type", "text/x-test; charset=x");
            let name = format!("name=some/d%C3%AFr/a%20b{length}.txt&sha256={}", sha256(&sent).to_uppercase());
            let request = api.request(reqwest::Method::POST, &format!("artifacts?{name}")).body(sent.clone());
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), 201);
            let artifact: Value = answer.json().await.unwrap();
            let expected = json!({
                "id": artifact["id"], "task_id": null, "job_id": null, "type": "INPUT", "created_at": artifact["created_at"], "finalized": true,
                "url": null, "entity_refs": [], "tags": [], "content": null, "name": format!("some/dïr/a b{length}.txt"),
                "content_type": "text/x-test; charset=x", "bytes": length, "sha256": sha256(&sent),
            });
            assert_eq!(artifact, expected);
            assert_eq!(content(&server, &artifact).await, sent);
            assert_eq!(server.get("artifacts?limit=1").await.ok(), json!([artifact]));
            let path = format!("artifacts/{}/content", id(&artifact));
            let whole = server.request(reqwest::Method::GET, &path).send().await.unwrap();
            let header = |name: &str| whole.headers()[name].to_str().unwrap().to_owned();
            assert_eq!(header("content-type"), "text/x-test; charset=x");
            assert_eq!(header("x-content-type-options"), "nosniff");
            assert_eq!(header("content-disposition"), format!("attachment; filename=\"a b{length}.txt\""));
            assert_eq!(header("content-length"), length.to_string());
            if length > 262_144 {
                for (range, part) in [("bytes=262140-262144", 262_140..262_145), ("bytes=-3", length - 3..length), ("bytes=0-0", 0..1)] {
                    let answer = server.request(reqwest::Method::GET, &path).header("range", range).send().await.unwrap();
                    assert_eq!(answer.status(), 206, "{range}");
                    let told = format!("bytes {}-{}/{length}", part.start, part.end - 1);
                    assert_eq!(answer.headers()["content-range"].to_str().unwrap(), told);
                    assert_eq!(answer.bytes().await.unwrap(), sent[part]);
                }
                server.with_header("range", "bytes=9999999-").get(&path).await.error(416);
            }
            server.delete(&format!("artifacts/{}", id(&artifact))).await.ok();
            server.get(&path).await.fails(404, "Artifact not found");
        }
        has_no_chunks(&server).await;
    }

    async fn wrong_uploads_change_nothing(database) {
        let server = Server::on(database).env("MAX_ARTIFACT_BYTES", 300_000).start();
        let text = b"hello";
        let wrong_sum = format!("name=a&sha256={}", "0".repeat(64));
        for (query, field) in [
            ("", "name"), ("name=", "name"), ("name=..", "name"), ("name=a/../b", "name"), ("name=/a", "name"), ("name=a%00b", "name"),
            ("name=a%0Ab", "name"), ("name=.git/config", "name"), ("name=a&sha256=xyz", "sha256"), ("name=a&type=OUTPUT", "type"),
            ("name=a&type=other", "type"), ("name=a&task_id=x", "task_id"),
            ("name=a&task_id=019c936e-3800-7000-8000-000000000001", "lease_id"), ("name=a&lease_id=019c936e-3800-7000-8000-000000000001", "task_id"),
            (&wrong_sum, "sha256"),
        ] {
            upload(&server, query, text).await.refuses(&[field]);
        }
        let request = server.request(reqwest::Method::POST, "artifacts?name=a").header("content-type", "nonsense").body("x");
        assert_eq!(request.send().await.unwrap().status(), 400);
        let told = upload(&server, "name=a", &bytes(300_001)).await.error(413);
        assert!(told.contains("at most 300000 bytes") && told.contains("MAX_ARTIFACT_BYTES"), "{told}");
        let chunked = reqwest::Body::wrap_stream(futures_util::stream::iter([0, 1].map(|_| Ok::<_, std::io::Error>(bytes(150_001)))));
        let answer = server.request(reqwest::Method::POST, "artifacts?name=a").body(chunked).send().await.unwrap();
        assert_eq!(answer.status(), 413, "without a length");
        upload(&server, "name=a&task_id=019c936e-3800-7000-8000-000000000001&lease_id=019c936e-3800-7000-8000-000000000001", text).await.fails(404, "Task not found");
        upload(&server, "name=exact", &bytes(300_000)).await.created();
        assert_eq!(server.get("artifacts").await.ok().as_array().unwrap().len(), 1);
    }

    async fn an_upload_that_is_cut_off_leaves_nothing(database) {
        let server = Server::on(database).start();
        let head = "POST /api/runtime/artifacts?name=a HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2000000\r\n\r\n";
        {
            let mut stream = TcpStream::connect(server.base().strip_prefix("http://").unwrap()).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&bytes(1_000_000)).unwrap();
            let url = server.database_url();
            eventually("chunks are stored", || async {
                (checker::Link::open(&url).await.count("file_chunks").await > 0).then_some(())
            })
            .await;
        }
        has_no_chunks(&server).await;
        assert_eq!(server.get("artifacts").await.ok(), json!([]));
        // A client that waits for a word to send its body gets the answer instead.
        let awaited = "POST /api/runtime/artifacts?name=.. HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2000000\r\nexpect: 100-continue\r\n\r\n";
        assert!(raw(&server, awaited.as_bytes()).starts_with("HTTP/1.1 400"));
    }

    async fn a_task_keeps_its_inputs(database) {
        let server = Server::on(database).start();
        let crew = server.crew();
        let plan = upload(&server, "name=plan.md", b"plan").await.created();
        let data = upload(&server, "name=data/x.bin", &bytes(70_000)).await.created();
        let inputs = json!([{ "artifact_id": id(&plan) }, { "artifact_id": id(&data), "path": "in/data" }]);
        let task = crew.task().with("inputs", inputs.clone()).with("outputs", json!(["out/**/*.txt", "*.{a,b}"])).create().await;
        let shown = task.now().await;
        let expected = json!([
            { "artifact_id": id(&plan), "path": "plan.md", "content_type": "application/json", "bytes": 4, "sha256": sha256(b"plan") },
            { "artifact_id": id(&data), "path": "in/data", "content_type": "application/json", "bytes": 70_000, "sha256": sha256(&bytes(70_000)) },
        ]);
        assert_eq!((&shown["inputs"], &shown["outputs"]), (&expected, &json!(["out/**/*.txt", "*.{a,b}"])));
        let told = server.delete(&format!("artifacts/{}", id(&plan))).await.error(409);
        assert!(told.contains("uses the artifact"), "{told}");

        let unknown = "019c936e-3800-7000-8000-000000000001";
        for wrong in [
            json!([{ "artifact_id": unknown }]),
            json!([{ "artifact_id": id(&plan), "path": "../x" }]),
            json!([{ "artifact_id": id(&plan), "path": ".git/hooks/x" }]),
            json!([{ "artifact_id": id(&plan), "path": "a\u{0}" }]),
            json!([{ "artifact_id": id(&plan) }, { "artifact_id": id(&data), "path": "plan.md" }]),
            json!([{ "artifact_id": id(&plan), "path": "a" }, { "artifact_id": id(&data), "path": "a/b" }]),
            json!([{}]),
            json!(vec![json!({ "artifact_id": id(&plan) }); 101]),
        ] {
            crew.task().with("inputs", wrong).answer().await.refuses(&["inputs"]);
        }
        for wrong in [json!(["/x"]), json!(["../x"]), json!([""]), json!(["[a"]), json!(["x".repeat(256)]), json!(vec!["a"; 33])] {
            crew.task().with("outputs", wrong).answer().await.refuses(&["outputs"]);
        }
        let second = crew.task().with("inputs", json!([{ "artifact_id": id(&plan) }])).create().await;
        for task in [&task, &second] {
            task.cancel().await.ok();
            server.delete(&task.path("")).await.ok();
        }
        // No task uses them any more, but they are younger than a day.
        assert_eq!(content(&server, &plan).await, b"plan");
        server.delete(&format!("artifacts/{}", id(&plan))).await.ok();
        server.delete(&format!("artifacts/{}", id(&data))).await.ok();
        has_no_chunks(&server).await;
    }

    async fn a_submit_key_has_its_own_uploads_only(database) {
        let server = keyed(database);
        let admin = server.with_key(ADMIN);
        let red = with_new_key(&admin, &server, "red", "submit", json!({})).await;
        let blue = with_new_key(&admin, &server, "blue", "submit", json!({})).await;
        let read = with_new_key(&admin, &server, "board", "read", json!({})).await;
        let of_red = upload(&red, "name=secret", b"secret").await.created();
        let path = format!("artifacts/{}/content", id(&of_red));
        blue.get(&path).await.fails(404, "Artifact not found");
        blue.delete(&format!("artifacts/{}", id(&of_red))).await.fails(404, "Artifact not found");
        let task = |api: &Api| {
            let body = json!({ "context_id": unique("c"), "agent_slug": "a", "prompt": "p", "inputs": [{ "artifact_id": id(&of_red) }] });
            let api = api.clone();
            async move { api.post("llm-tasks", body).await }
        };
        task(&blue).await.refuses(&["inputs"]);
        upload(&read, "name=a", b"a").await.expect(403);
        read.delete(&format!("artifacts/{}", id(&of_red))).await.expect(403);
        assert_eq!(read.get(&path).await.expect(200).text, "secret");
        assert_eq!(red.get(&path).await.expect(200).text, "secret");
        assert_eq!((red.get("artifacts").await.ok()[0]["id"].clone(), blue.get("artifacts").await.ok()), (of_red["id"].clone(), json!([])));
        task(&red).await.created();
        task(&admin).await.created();
    }
}
