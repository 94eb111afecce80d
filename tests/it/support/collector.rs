//! A collector of traces, on loopback, which keeps what it is sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use prost::Message as _;

use super::{beside, eventually};

/// A span as it arrived, with ids as hexadecimal digits.
#[derive(Clone, Debug)]
pub struct Span {
    /// `service.name` of the process that made it.
    pub service: String,
    pub name: String,
    pub trace: String,
    pub id: String,
    /// Empty if there is none.
    pub parent: String,
    pub attributes: BTreeMap<String, String>,
    pub is_error: bool,
    pub nanos: u64,
}

#[derive(Default)]
struct Kept {
    spans: Vec<Span>,
    calls: Vec<HeaderMap>,
    /// What has arrived, as bytes, to search texts in.
    bytes: Vec<u8>,
}

#[derive(Clone)]
pub struct Collector {
    pub url: String,
    kept: Arc<Mutex<Kept>>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let kept = Arc::new(Mutex::new(Kept::default()));
        let app = Router::new().route("/v1/traces", post(take)).with_state(kept.clone());
        beside(async move { axum::serve(listener, app).await });
        Self { url, kept }
    }

    pub fn spans(&self) -> Vec<Span> {
        self.kept.lock().expect("the spans").spans.clone()
    }

    pub fn calls(&self) -> Vec<HeaderMap> {
        self.kept.lock().expect("the calls").calls.clone()
    }

    pub fn was_sent(&self, text: &str) -> bool {
        self.kept.lock().expect("the bytes").bytes.windows(text.len()).any(|window| window == text.as_bytes())
    }

    /// Waits until as many spans as named have these names, in this trace, and returns them in the order of their starts.
    pub async fn spans_of(&self, trace: &str, wanted: usize, name: &str) -> Vec<Span> {
        let find = || async {
            let spans = self.spans().into_iter().filter(|span| span.trace == trace && span.name == name);
            let mut spans: Vec<_> = spans.collect();
            spans.sort_by_key(|span| span.nanos);
            (spans.len() >= wanted).then_some(spans)
        };
        eventually(&format!("{wanted} spans {name:?} of trace {trace}"), find).await
    }
}

async fn take(State(kept): State<Arc<Mutex<Kept>>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let request = ExportTraceServiceRequest::decode(&body[..]).expect("OTLP");
    let mut kept = kept.lock().expect("the collector");
    kept.calls.push(headers);
    kept.bytes.extend_from_slice(&body);
    for of_resource in request.resource_spans {
        let resource = attributes(of_resource.resource.unwrap_or_default().attributes);
        for span in of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            kept.spans.push(Span {
                service: resource.get("service.name").cloned().unwrap_or_default(),
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                attributes: attributes(span.attributes),
                is_error: span.status.is_some_and(|status| status.code == 2),
                nanos: span.start_time_unix_nano,
            });
        }
    }
    StatusCode::OK
}

fn attributes(pairs: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    pairs.into_iter().map(|pair| (pair.key, text(pair.value))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
