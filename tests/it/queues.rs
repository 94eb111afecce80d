//! Queues of agents: pause, resume, and the limit of active leases, with several servers on one database where there can be several.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::on_both;
use crate::support::stub::{Reply, Stub};
use crate::support::*;

impl Crew<'_> {
    fn queue(&self, verb: &str) -> String {
        format!("queues/{}/{verb}", self.slug)
    }
}

async fn limit(api: &Api, crew: &Crew<'_>, limit: Value) -> Value {
    api.post(&crew.queue("limit"), json!({ "max_concurrency": limit })).await.ok()
}

/// Two servers on PostgreSQL; on SQLite twice the same one.
fn servers(database: Database) -> [Arc<Server>; 2] {
    let one = Arc::new(Server::on(database).start());
    match database {
        Database::Sqlite => [Arc::clone(&one), one],
        Database::Postgres => {
            let other = Arc::new(Server::on_url(&one.database_url()).start());
            [one, other]
        }
    }
}

/// Creates tasks of the crew in one call.
async fn create(crew: &Crew<'_>, tasks: usize) -> Vec<String> {
    let bodies = (0..tasks).map(|_| crew.task().json()).collect::<Vec<_>>();
    let created = crew.api.post("llm-tasks:batch", json!({ "tasks": bodies })).await.created();
    created["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect()
}

/// The queue as the list shows it.
async fn listed(api: &Api, slug: &Value) -> Value {
    let queues = api.get("queues?limit=1000").await.ok();
    queues.as_array().unwrap().iter().find(|queue| queue["agent_slug"] == *slug).cloned().unwrap_or_default()
}

/// A claim that waits for work.
fn open_claim(worker: &Worker<'_>, api: &Api) -> tokio::task::JoinHandle<Value> {
    let (path, api) = (worker.path("/claim"), api.clone());
    beside(async move { api.post(&path, json!({ "max": 1, "wait_sec": 60 })).await.ok()["leases"].clone() })
}

async fn waits(task: &Task<'_>) -> (String, String) {
    let waiting = task.now().await["waiting"].clone();
    (waiting["reason"].as_str().unwrap_or_default().to_owned(), waiting["message"].as_str().unwrap_or_default().to_owned())
}

on_both! {
    async fn a_paused_queue_gives_nothing_while_other_agents_go_on(server) {
        let (paused, other) = (server.crew(), server.crew());
        let worker = paused.worker().slots(8).able("agents", json!([paused.slug, other.slug])).register().await;
        let running = paused.task().create().await;
        let lease = running.lease_to(&worker).await;
        let waiting = paused.task().with("priority", json!(9)).create().await;
        // How many workers serve it depends on those of other tests, which may serve all agents.
        let without_workers = |mut queue: Value| {
            assert!(queue.as_object_mut().unwrap().remove("workers").is_some_and(|count| count.as_i64() >= Some(1)));
            queue
        };
        let answer = without_workers(server.poke(&paused.queue("pause")).await.ok());
        let expected = json!({
            "agent_slug": paused.slug, "paused": true, "paused_at": answer["paused_at"], "max_concurrency": null, "queued": 1, "active_leases": 1,
        });
        assert_eq!(answer, expected);
        assert_eq!(without_workers(server.poke(&paused.queue("pause")).await.ok()), expected, "a second pause changes nothing");
        assert_eq!(without_workers(listed(server, &json!(paused.slug)).await), expected);

        let task = other.task().with("priority", json!(0)).create().await;
        let claimed = worker.claim(8).await;
        assert_eq!(claimed.len(), 1, "{claimed:?}");
        assert_eq!(claimed[0]["task"]["id"], json!(task.id), "a task behind a paused one is found");
        assert!(worker.claim(8).await.is_empty());

        lease.heartbeat().await.ok();
        running.succeed("x").await;
        let (reason, message) = waits(&waiting).await;
        assert_eq!(reason, "paused");
        assert!(message.contains(&format!("bloom-runtime queue resume --agent {}", paused.slug)), "{message}");

        let claim = open_claim(&worker, server);
        assert_eq!(server.poke(&paused.queue("resume")).await.ok()["paused"], false);
        assert_eq!(claim.await.unwrap()[0]["task"]["id"], json!(waiting.id));
        waiting.succeed("x").await;
        assert_eq!(listed(server, &json!(paused.slug)).await, Value::Null, "a queue without settings and without work is not listed");
    }

    async fn lease_and_dispatch_calls_are_refused_with_what_to_do(server) {
        let crew = server.crew();
        let worker = crew.worker().with("url", json!("http://127.0.0.1:9")).register().await;
        let task = crew.task().create().await;
        server.poke(&crew.queue("pause")).await.ok();
        for (call, body) in [("/lease", json!({})), ("/lease", json!({ "worker_id": worker.name })), ("/dispatch", json!({}))] {
            let error = server.post(&task.path(call), body).await.error(409);
            assert!(error.starts_with("Task is not ready: ") && error.contains("is paused") && error.contains("queue resume"), "{error}");
        }
        assert_eq!(task.now().await["attempts"], 0);
        server.poke(&crew.queue("resume")).await.ok();
        limit(server, &crew, json!(1)).await;
        task.lease_to(&worker).await;
        let next = crew.task().create().await;
        let error = next.lease(json!({})).await.error(409);
        assert!(error.contains("limit of 1") && error.contains("bloom-runtime queue limit"), "{error}");
    }

    async fn a_limit_counts_leases_of_every_kind_and_can_be_lowered(server) {
        let crew = server.crew();
        let worker = crew.worker().slots(8).register().await;
        let tasks = create(&crew, 6).await;
        server.task(&tasks[0]).lease_to(&worker).await;
        assert_eq!(limit(server, &crew, json!(3)).await["max_concurrency"], 3);
        assert_eq!(worker.claim(8).await.len(), 2);
        assert_eq!(worker.claim(8).await.len(), 0);
        let (reason, message) = waits(&server.task(&tasks[5])).await;
        assert_eq!(reason, "limit");
        assert!(message.contains("limit of 3") && message.contains(&format!("queue limit --agent {} N", crew.slug)), "{message}");

        limit(server, &crew, json!(1)).await;
        assert_eq!(listed(server, &json!(crew.slug)).await["active_leases"], 3, "leases above a new limit go on");
        server.task(&tasks[0]).succeed("x").await;
        server.task(&tasks[1]).succeed("x").await;
        assert_eq!(worker.claim(8).await.len(), 0);
        let claim = open_claim(&worker, server);
        server.task(&tasks[2]).succeed("x").await;
        assert_eq!(claim.await.unwrap().as_array().unwrap().len(), 1);

        let claim = open_claim(&worker, server);
        assert_eq!(limit(server, &crew, json!(null)).await["max_concurrency"], json!(null));
        assert_eq!(claim.await.unwrap().as_array().unwrap().len(), 1, "a claim is woken when the limit is removed");
    }

    async fn bad_input_changes_nothing(server) {
        let crew = server.crew();
        for bad in [json!({}), json!({ "max_concurency": 3 }), json!({ "max_concurrency": 0 }), json!({ "max_concurrency": 10_001 }),
            json!({ "max_concurrency": 1.5 }), json!({ "max_concurrency": "3" }), json!({ "max_concurrency": [3] })] {
            server.post(&crew.queue("limit"), bad).await.refuses(&["max_concurrency"]);
        }
        for verb in ["pause", "resume", "limit"] {
            let answer = server.post_bytes(&crew.queue(verb), "{").await;
            answer.fails(400, "Request body is not valid JSON");
            for slug in ["a%00b".to_owned(), "x".repeat(129)] {
                let error = server.post(&format!("queues/{slug}/{verb}"), json!({ "max_concurrency": 1 })).await.error(404);
                assert!(error.contains("1 to 128 characters"), "{error}");
            }
        }
        server.get("queues?cursor=x").await.refuses(&["cursor"]);
        assert_eq!(listed(server, &json!(crew.slug)).await, Value::Null);
    }

    async fn any_slug_has_a_queue(server) {
        let slug = format!("{}/ü %2F*", unique("agent"));
        let path = format!("queues/{}/", bloom_runtime_part(&slug));
        assert_eq!(server.poke(&format!("{path}pause")).await.ok()["agent_slug"], json!(slug));
        assert_eq!(listed(server, &json!(slug)).await["paused"], true);
        server.poke(&format!("{path}resume")).await.ok();
        assert_eq!(listed(server, &json!(slug)).await, Value::Null);
    }

    async fn every_change_is_in_the_audit_trail(server) {
        let crew = server.crew();
        for _ in 0..2 {
            server.poke(&crew.queue("pause")).await.ok();
        }
        limit(server, &crew, json!(7)).await;
        limit(server, &crew, json!(null)).await;
        for _ in 0..2 {
            server.poke(&crew.queue("resume")).await.ok();
        }
        let entries = server.get("audit?limit=1000").await.ok();
        let of_queue = entries.as_array().unwrap().iter().filter(|entry| entry["entity_id"] == json!(crew.slug));
        let told = |entry: &Value| ["action", "entity_type", "actor", "detail"].map(|key| entry[key].as_str().unwrap().to_owned());
        let found = of_queue.map(told).collect::<Vec<_>>();
        let expected = [["queue_resumed", ""], ["queue_limited", "no limit"], ["queue_limited", "to 7"], ["queue_paused", ""]];
        assert_eq!(found, expected.map(|[action, detail]| [action, "queue", "admin", detail]));
    }

    async fn pages_of_the_list_follow_each_other(server) {
        let crews = [server.crew(), server.crew(), server.crew()];
        for crew in &crews {
            server.poke(&crew.queue("pause")).await.ok();
        }
        let (mut found, mut next) = (Vec::new(), Some("queues?limit=1".to_owned()));
        while let Some(path) = next {
            let page = server.get(&path).await;
            next = page.next_page();
            let queues = page.ok();
            assert_eq!(queues.as_array().unwrap().len(), 1);
            found.push(queues[0]["agent_slug"].clone());
        }
        assert_eq!(found[0], Value::Null, "all queues together come first");
        assert!(crews.iter().all(|crew| found.iter().filter(|slug| **slug == json!(crew.slug)).count() == 1), "{found:?}");
        for crew in &crews {
            server.poke(&crew.queue("resume")).await.ok();
        }
    }

    async fn pushes_obey_too(server) {
        let stub = Stub::start().await;
        stub.always("/health", Reply::new(200, "{}"));
        stub.always("/execute-task", Reply::new(202, r#"{"accepted":true}"#));
        let (closed, other) = (server.crew(), server.crew());
        let agents = json!([closed.slug, other.slug]);
        server.poke(&closed.queue("pause")).await.ok();
        limit(server, &closed, json!(1)).await;
        let tasks = create(&closed, 3).await;
        closed.pushed_worker(&stub.url).slots(8).able("agents", agents).register().await;
        let task = other.task().with("priority", json!(0)).create().await;
        let pushed = stub.has_got(1).await;
        assert_eq!(pushed[0]["task_id"], json!(task.id), "the leader has passed over the paused tasks");

        server.poke(&closed.queue("resume")).await.ok();
        assert_eq!(stub.has_got(2).await[1]["task_id"], json!(tasks[0]));
        let behind = other.task().with("priority", json!(0)).create().await;
        assert_eq!(stub.has_got(3).await[2]["task_id"], json!(behind.id), "the leader has passed over the tasks beyond the limit");
        server.task(&tasks[0]).succeed("x").await;
        assert_eq!(stub.has_got(4).await[3]["task_id"], json!(tasks[1]));
    }
}

/// The slug as a part of a path.
fn bloom_runtime_part(slug: &str) -> String {
    slug.bytes().map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

on_both! { alone:
    async fn after_a_pause_no_replica_makes_a_lease(database) {
        let servers = servers(database);
        let (one, other) = (&servers[0], &servers[1]);
        let crew = one.crew();
        let workers = join_all((0..4).map(|_| crew.worker().slots(32).register())).await;
        for round in 0..5 {
            create(&crew, 60).await;
            // Claims at both, and a pause among them.
            let claims = join_all(workers.iter().flat_map(|worker| servers.iter().map(move |server| {
                let worker = Worker { api: server, name: worker.name.clone() };
                async move { worker.claim(2).await.len() }
            })));
            let pause = crew.queue("pause");
            let (_, paused) = tokio::join!(claims, one.poke(&pause));
            let at = paused.ok()["paused_at"].as_i64().unwrap();
            // Both replicas may believe for a moment that the queue is open.
            let late = join_all(workers.iter().map(|worker| {
                let worker = Worker { api: other, name: worker.name.clone() };
                async move { worker.claim(8).await }
            })).await;
            assert!(late.iter().all(Vec::is_empty), "round {round}: {late:?}");
            let leases = other.get("leases?limit=1000").await.ok();
            let after = leases.as_array().unwrap().iter().filter(|lease| lease["started_at"].as_i64().unwrap() > at).count();
            assert_eq!(after, 0, "round {round}: a lease began after the pause");
            other.poke(&crew.queue("resume")).await.ok();
            let worker = Worker { api: one, name: workers[0].name.clone() };
            let claimed = worker.claim_within(1, 30).await;
            assert_eq!(claimed.len(), 1, "round {round}: a resumed queue gives its tasks");
            for worker in &workers {
                for entry in one.get(&worker.path("")).await.ok()["leases"].as_array().unwrap() {
                    one.task(entry["task_id"].as_str().unwrap()).succeed("x").await;
                }
            }
        }
    }

    async fn of_fifty_claims_at_two_replicas_three_get_a_lease(database) {
        let servers = servers(database);
        let crew = servers[0].crew();
        limit(&servers[0], &crew, json!(3)).await;
        create(&crew, 60).await;
        let workers = join_all((0..50).map(|_| crew.worker().register())).await;
        let at = |worker: &str, server: usize| Worker { api: &servers[server], name: worker.to_owned() };
        let claims = workers.iter().enumerate().map(|(n, worker)| {
            let worker = at(&worker.name, n % 2);
            async move { worker.claim(1).await }
        });
        let claimed = join_all(claims).await.concat();
        assert_eq!(claimed.len(), 3);

        // The end of one lets a claim that waits at the other replica have the next.
        let idle = workers.iter().find(|worker| claimed.iter().all(|entry| entry["lease"]["worker_id"] != json!(worker.name))).unwrap();
        let waiting = open_claim(idle, &servers[1]);
        servers[0].task(claimed[0]["task"]["id"].as_str().unwrap()).succeed("x").await;
        assert_eq!(waiting.await.unwrap().as_array().unwrap().len(), 1);
        assert!(at(&workers[0].name, 0).claim(1).await.is_empty() && at(&workers[1].name, 1).claim(1).await.is_empty());

        // A higher limit wakes claims at both.
        let free = server_free(&servers[0], &workers).await;
        let waiting = [open_claim(free[0], &servers[0]), open_claim(free[1], &servers[1])];
        limit(&servers[1], &crew, json!(5)).await;
        for claim in waiting {
            assert_eq!(claim.await.unwrap().as_array().unwrap().len(), 1);
        }
        assert_eq!(listed(&servers[0], &json!(crew.slug)).await["max_concurrency"], 5);
        checker::read(&servers[0].database_url()).await.are_sound();
    }

    async fn all_queues_are_paused_at_once(database) {
        let servers = servers(database);
        let (one, other) = (&servers[0], &servers[1]);
        let (first, second) = (one.crew(), one.crew());
        let worker = one.worker().slots(8).register().await;
        one.poke(&first.queue("pause")).await.ok();
        let answer = one.poke("queues:pause").await.ok();
        assert_eq!((&answer["agent_slug"], &answer["paused"]), (&Value::Null, &json!(true)));
        let (of_first, of_second) = (first.task().create().await, second.task().create().await);
        let worker = Worker { api: other, name: worker.name.clone() };
        assert!(worker.claim(8).await.is_empty());
        let (reason, message) = waits(&of_second).await;
        assert_eq!((reason.as_str(), message.contains("all queues are paused")), ("paused", true), "{message}");
        let error = of_second.lease(json!({})).await.error(409);
        assert!(error.contains("`bloom-runtime queue resume` resumes them"), "{error}");

        let claim = open_claim(&worker, other);
        assert_eq!(one.poke("queues:resume").await.ok()["paused"], false);
        assert_eq!(claim.await.unwrap()[0]["task"]["id"], json!(of_second.id));
        assert!(worker.claim(8).await.is_empty(), "a queue that was paused by itself stays paused");
        let listed = listed(other, &json!(null)).await;
        assert_eq!((&listed["queued"], &listed["active_leases"]), (&json!(1), &json!(1)));
        one.poke(&first.queue("resume")).await.ok();
        assert_eq!(worker.claim_within(8, 30).await[0]["task"]["id"], json!(of_first.id));
    }

    async fn a_restart_keeps_what_was_set(database) {
        let server = Server::on(database).start();
        let (paused, limited) = (server.crew(), server.crew());
        server.poke(&paused.queue("pause")).await.ok();
        limit(&server, &limited, json!(1)).await;
        create(&paused, 2).await;
        create(&limited, 2).await;
        server.kill9();
        server.start_again();
        // It serves every agent, so that it has to pass over the closed queues.
        let worker = server.worker().slots(8).register().await;
        assert_eq!(worker.claim(8).await.len(), 1);
        assert!(worker.claim(8).await.is_empty());
        let other = server.crew().task().with("priority", json!(0)).create().await;
        assert_eq!(worker.claim(8).await[0]["task"]["id"], json!(other.id));
        let metrics = server.get("/metrics").await.text;
        for line in [format!("bloom_queue_paused{{agent=\"{}\"}} 1", paused.slug), format!("bloom_queue_limit{{agent=\"{}\"}} 1", limited.slug)] {
            assert!(metrics.lines().any(|other| other == line), "{line}\n{metrics}");
        }
    }

    async fn a_long_paused_queue_starves_nobody(database) {
        let server = Server::on(database).start();
        let paused = server.crew();
        server.poke(&paused.queue("pause")).await.ok();
        // More than the replica keeps of one queue.
        for _ in 0..11 {
            create(&paused, 1_000).await;
        }
        let worker = server.worker().slots(4).register().await;
        assert!(worker.claim(1).await.is_empty());
        let claim = open_claim(&worker, &server);
        let task = server.crew().task().with("priority", json!(0)).create().await;
        assert_eq!(claim.await.unwrap()[0]["task"]["id"], json!(task.id));
        let next = server.crew().task().with("priority", json!(0)).create().await;
        assert_eq!(worker.claim(1).await[0]["task"]["id"], json!(next.id));
    }
}

/// Workers without leases.
async fn server_free<'w, 'a>(server: &Server, workers: &'w [Worker<'a>]) -> Vec<&'w Worker<'a>> {
    let shown = server.get("workers?limit=1000").await.ok();
    let is_free = |worker: &&Worker<'_>| {
        shown.as_array().unwrap().iter().any(|shown| shown["id"] == json!(worker.name) && shown["active_leases"] == 0)
    };
    workers.iter().filter(is_free).collect()
}

/// While a replica is frozen in the middle of making a lease, a pause waits; once it is acknowledged, that lease is never made.
#[test]
fn a_frozen_replica_makes_no_lease_after_a_pause() {
    let servers = servers(Database::Postgres);
    run(async {
        let (one, other) = (&servers[0], &servers[1]);
        let crew = one.crew();
        let worker = crew.worker().slots(8).register().await;
        for _ in 0..3 {
            create(&crew, 8).await;
            let claim = open_claim(&worker, other);
            other.pause();
            let paused = one.poke(&crew.queue("pause")).await.ok();
            let active = one.get(&worker.path("")).await.ok()["leases"].as_array().unwrap().len();
            other.resume();
            let at = paused["paused_at"].as_i64().unwrap();
            assert!(Worker { api: one, name: worker.name.clone() }.claim(8).await.is_empty());
            let leases = one.get(&worker.path("")).await.ok()["leases"].clone();
            let leases = leases.as_array().unwrap();
            assert_eq!(leases.len(), active, "{leases:?}");
            assert!(leases.iter().all(|lease| lease["started_at"].as_i64().unwrap() <= at), "{leases:?}");
            one.poke(&crew.queue("resume")).await.ok();
            let claimed = tokio::time::timeout(Duration::from_secs(30), claim).await.expect("it is woken").unwrap();
            assert_eq!(claimed.as_array().unwrap().len(), 1);
        }
    });
}
