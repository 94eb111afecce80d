//! Traces: one trace from the creation of a task to its completion, across server and agent.

use crate::on_both;
use crate::support::agent::{Agent, AgentPlan};
use crate::support::collector::{Collector, Span};
use crate::support::server::Plan;
use crate::support::*;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const CREATE: &str = "POST /api/runtime/llm-tasks";
const COMPLETE: &str = "POST /api/runtime/workers/{id}/complete";

fn traced(database: Database, collector: &Collector) -> Plan {
    Server::on(database).env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url).env("OTEL_BSP_SCHEDULE_DELAY", 50)
}

fn traced_agent(server: &Server, collector: &Collector) -> AgentPlan {
    server.agent("traced").env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url).env("OTEL_BSP_SCHEDULE_DELAY", 50)
}

fn attribute<'a>(span: &'a Span, name: &str) -> &'a str {
    span.attributes.get(name).map_or("", String::as_str)
}

on_both! { alone:
    async fn one_trace_from_the_caller_to_the_completion(database) {
        let collector = Collector::start().await;
        let server = traced(database, &collector).env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x1").start();
        let agent = traced_agent(&server, &collector).shell().start();
        let caller = server.with_header("traceparent", TRACEPARENT);
        let task = json!({"context_id": "c", "agent_slug": "a", "prompt": "echo \"the output $TRACEPARENT\" # the prompt"});
        let task = caller.post("llm-tasks", task).await.created();
        let id = task["id"].as_str().unwrap();
        let done = server.task(id).reaches("completed").await;

        let [created] = &collector.spans_of(TRACE, 1, CREATE).await[..] else { panic!("one span") };
        assert_eq!((created.parent.as_str(), created.service.as_str()), (CALLER, "bloom-runtime"));
        assert_eq!(attribute(created, "http.response.status_code"), "201");
        assert_eq!(done["traceparent"], format!("00-{TRACE}-{}-01", created.id));
        let [assigned] = &collector.spans_of(TRACE, 1, "assign").await[..] else { panic!("one span") };
        let [attempt] = &collector.spans_of(TRACE, 1, "attempt").await[..] else { panic!("one span") };
        let [run] = &collector.spans_of(TRACE, 1, "invoke_agent a").await[..] else { panic!("one span") };
        let [completed] = &collector.spans_of(TRACE, 1, COMPLETE).await[..] else { panic!("one span") };
        assert_eq!([&assigned.parent, &attempt.parent, &run.parent, &completed.parent], [&created.id, &created.id, &attempt.id, &run.id]);
        assert_eq!([&assigned.service, &attempt.service, &run.service], ["bloom-runtime", "bloom-runtime", "bloom-agent"]);
        for span in [assigned, attempt, run] {
            assert_eq!((attribute(span, "bloom.task.id"), attribute(span, "bloom.worker.id")), (id, "traced"), "{span:?}");
            assert_eq!(attribute(span, "gen_ai.agent.name"), "a");
            assert!(!span.is_error);
        }
        assert_eq!((attribute(attempt, "bloom.attempt"), attribute(run, "bloom.outcome")), ("1", "success"));

        // Programs of the run join the trace, and what they are told and say stays out of it.
        let result = server.get(&format!("llm-tasks/{id}/result")).await.ok();
        assert!(result["output"].as_str().unwrap().contains(&format!("the output 00-{TRACE}-{}-01", run.id)), "{result}");
        assert!(!collector.was_sent("the output") && !collector.was_sent("the prompt"));
        assert!(collector.calls().iter().any(|headers| headers.get("authorization").is_some_and(|value| value == "Bearer x1")));
        let log = eventually("the end in the log", || async { Some(agent.log()).filter(|log| log.contains("run ended")) }).await;
        let line = log.lines().find(|line| line.contains("run ended")).unwrap();
        assert!(line.contains(&format!("trace_id={TRACE}")) && line.contains(&format!("span_id={}", run.id)), "{line}");
    }
}

on_both! { alone:
    async fn each_attempt_has_a_span_in_the_trace_of_its_task(database) {
        let collector = Collector::start().await;
        let server = traced(database, &collector).env("LOG_FORMAT", "json").env("LOG_LEVEL", "debug").start();
        let worker = server.worker().register().await;
        let task = server.crew().task().attempts(2).create().await;
        // Without a caller's, the server begins a trace.
        let own = task.now().await["traceparent"].as_str().unwrap().to_owned();
        let trace = own[3..35].to_owned();
        let mut parents = Vec::new();
        for retryable in [true, false] {
            let claimed = worker.claim_within(1, 20).await;
            let lease = &claimed[0]["lease"];
            parents.push(lease["traceparent"].as_str().unwrap()[36..52].to_owned());
            let body = json!({
                "lease_id": lease["id"], "status": "error", "error_message": "secret words", "reason": "overloaded",
                "metrics": {"duration_ms": 5}, "retryable": retryable, "retry_at": 1, "model": "m",
                "usage": {"input_tokens": 7, "output_tokens": 8, "cost_usd": 0.5},
            });
            task.complete(body).await.ok();
        }
        let attempts = collector.spans_of(&trace, 2, "attempt").await;
        assert_eq!(attempts.iter().map(|span| span.id.clone()).collect::<Vec<_>>(), parents);
        for (span, number) in attempts.iter().zip(["1", "2"]) {
            assert!(span.is_error && span.parent == own[36..52], "{span:?}");
            assert_eq!((attribute(span, "error.type"), attribute(span, "bloom.attempt")), ("overloaded", number));
            assert_eq!((attribute(span, "gen_ai.usage.input_tokens"), attribute(span, "bloom.cost_usd")), ("7", "0.5"));
            assert_eq!(attribute(span, "gen_ai.response.model"), "m");
        }
        assert_eq!(collector.spans_of(&trace, 2, "assign").await.len(), 2);
        assert!(!collector.was_sent("secret words"));
        let log = server.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let of_trace = lines.filter(|line| line["span"]["trace_id"] == trace.as_str()).count();
        assert!(of_trace > 0, "{log}");
    }
}

on_both! { alone:
    async fn without_a_collector_the_callers_trace_is_passed_on(database) {
        let server = Server::on(database).env("LOG_LEVEL", "debug").start();
        let worker = server.worker().register().await;
        let new = || server.crew().task().json();
        let task = server.with_header("traceparent", TRACEPARENT).post("llm-tasks", new()).await.created();
        assert_eq!(task["traceparent"], TRACEPARENT);
        let claimed = worker.claim_within(1, 20).await;
        assert_eq!((&claimed[0]["task"]["id"], &claimed[0]["lease"]["traceparent"]), (&task["id"], &json!(TRACEPARENT)));
        let plain = server.post("llm-tasks", new()).await.created();
        assert!(plain.get("traceparent").is_none(), "{plain}");
        for wrong in ["", "00-0-0-01", &TRACEPARENT.to_uppercase(), &format!("{TRACEPARENT}-00")] {
            let task = server.with_header("traceparent", wrong).post("llm-tasks", new()).await.created();
            assert!(task.get("traceparent").is_none(), "{wrong}: {task}");
        }
        assert!(!server.log().contains("trace_id"), "{}", server.log());
        assert!(threads(&server).iter().all(|name| !name.contains("OpenTelemetry")), "{:?}", threads(&server));
    }
}

/// The names of the threads of a server.
fn threads(server: &Server) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok()).collect()
}

on_both! { alone:
    async fn a_collector_that_is_down_stops_nothing(database) {
        // A port that nobody listens on.
        let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let url = format!("http://me:secret1@{nowhere}/collect?token=secret2");
        let server = Server::on(database).env("OTEL_EXPORTER_OTLP_ENDPOINT", &url).env("OTEL_BSP_SCHEDULE_DELAY", 20).start();
        let agent = server.agent("untraced").env("OTEL_EXPORTER_OTLP_ENDPOINT", &url).env("OTEL_BSP_SCHEDULE_DELAY", 20).echo().start();
        for _ in 0..5 {
            server.crew().task().create().await.reaches("completed").await;
        }
        for log in [|server: &Server, _: &Agent| server.log(), |_: &Server, agent: &Agent| agent.log()] {
            let told = || async { Some(log(&server, &agent)).filter(|log| log.contains("OTEL_EXPORTER_OTLP_ENDPOINT")) };
            let told = eventually("the log tells of the collector", told).await;
            assert_eq!(told.matches("traces could not be sent").count(), 1, "{told}");
            assert!(told.contains(&format!("****@{nowhere}/collect")) && !told.contains("secret"), "{told}");
        }
        assert!(agent.stop().success() && server.stop().success());
    }
}

#[test]
fn spans_of_the_last_moment_are_sent_at_the_stop() {
    run(async {
        let collector = Collector::start().await;
        let server = traced(Database::Sqlite, &collector).env("OTEL_BSP_SCHEDULE_DELAY", 3_600_000).start();
        server.crew().task().create().await;
        assert!(server.stop().success());
        assert_eq!(collector.spans().iter().filter(|span| span.name == CREATE).count(), 1);
    });
}

#[test]
fn traces_that_are_not_sampled_or_turned_off_are_not_sent() {
    run(async {
        let collector = Collector::start().await;
        let unsampled = TRACEPARENT.replace("-01", "-00");
        let plan = || traced(Database::Sqlite, &collector);
        for (server, parent) in [
            (plan().start(), Some(unsampled.as_str())),
            (plan().env("OTEL_TRACES_SAMPLER", "always_off").start(), Some(TRACEPARENT)),
            (plan().env("OTEL_TRACES_SAMPLER", "parentbased_traceidratio").env("OTEL_TRACES_SAMPLER_ARG", "0").start(), None),
            (plan().env("OTEL_SDK_DISABLED", "true").start(), None),
        ] {
            let caller = parent.map_or_else(|| server.with_header("x-request-id", "r"), |parent| server.with_header("traceparent", parent));
            caller.post("llm-tasks", server.crew().task().json()).await.created();
            assert!(server.stop().success());
        }
        assert!(collector.calls().is_empty(), "{:?}", collector.spans());
    });
}

#[test]
fn wrong_settings_are_refused_with_their_names() {
    for (name, value, right) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "http or https URL"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://collector", "http or https URL"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "verysecret", "name=value"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "whole number"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team", "name=value"),
        ("OTEL_TRACES_SAMPLER", "sometimes", "parentbased_always_on"),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "from 0 to 1"),
        ("OTEL_SDK_DISABLED", "maybe", "true or false"),
    ] {
        let output = Server::on(Database::Sqlite).env(name, value).start_in_vain();
        let of_server = String::from_utf8_lossy(&output.stderr).into_owned();
        let (code, of_agent) = AgentPlan::at("http://127.0.0.1:1", "a").env(name, value).echo().start_in_vain();
        assert_eq!((output.status.code(), code), (Some(2), Some(2)), "{of_server} {of_agent}");
        for told in [of_server, of_agent] {
            assert!(told.contains(&format!("environment {name}")) && told.contains(right) && !told.contains("verysecret"), "{told}");
        }
    }
}
