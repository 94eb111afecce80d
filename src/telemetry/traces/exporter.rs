//! Sends batches of spans to a collector, by OTLP over HTTP.

use std::time::{Duration, Instant};

use bloom_core::masked_urls::masked_query;
use bloom_outbound::{self as outbound, Reply};
use opentelemetry::KeyValue;
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::resource::TelemetryResourceDetector;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use parking_lot::Mutex;
use prost::Message as _;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use tokio::runtime::Handle;
use url::Url;

use super::settings::TraceSettings;

/// How often the log reports a collector that does not accept spans.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// The batch processor calls it on its thread, one batch after the other. The HTTP calls run on the runtime of the process.
#[derive(Debug)]
pub(super) struct Exporter {
    client: reqwest::Client,
    url: Url,
    headers: HeaderMap,
    timeout: Duration,
    resource: ResourceAttributesWithSchema,
    runtime: Handle,
    complained: Mutex<Option<Instant>>,
}

impl Exporter {
    pub(crate) fn new(settings: &TraceSettings) -> Result<Self, String> {
        // A later attribute replaces an earlier one with the same name.
        let resource = Resource::builder_empty()
            .with_detector(Box::new(TelemetryResourceDetector))
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("process.pid", i64::from(std::process::id())))
            .with_attributes(settings.attributes.iter().map(|(name, value)| KeyValue::new(name.clone(), value.clone())))
            .with_service_name(settings.service_name.clone())
            .build();
        Ok(Self {
            client: outbound::client(|builder| builder)?,
            url: settings.url.clone(),
            headers: settings.headers.clone(),
            timeout: settings.timeout,
            resource: (&resource).into(),
            runtime: Handle::current(),
            complained: Mutex::default(),
        })
    }

    /// Sends a batch once. Spans that the collector does not accept are lost, because new spans keep coming while the batch is sent.
    async fn send(&self, batch: Vec<SpanData>) -> Result<(), String> {
        let body = ExportTraceServiceRequest { resource_spans: group_spans_by_resource_and_scope(batch, &self.resource) };
        let request = self.client.post(self.url.clone()).headers(self.headers.clone());
        let request = request.header(CONTENT_TYPE, "application/x-protobuf").body(body.encode_to_vec());
        let sent = self.runtime.spawn(outbound::send(request, self.timeout)).await;
        let reply = sent.map_err(|_| "the process is stopping".to_owned())?.map_err(|error| error.text)?;
        if !reply.is_success() {
            return Err(format!("it answered {}", reply.status));
        }
        refused(&reply)
    }

    fn complain(&self, spans: usize, problem: &str) {
        let mut complained = self.complained.lock();
        if complained.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
            *complained = Some(Instant::now());
            tracing::warn!(
                collector = masked_query(self.url.as_str()),
                spans,
                problem,
                "traces could not be sent and are lost; tasks go on. Check that a collector takes OTLP over HTTP at this address, or correct \
                 OTEL_EXPORTER_OTLP_ENDPOINT"
            );
        }
    }
}

/// A collector may accept only a part of the spans. Its answer says so.
fn refused(reply: &Reply) -> Result<(), String> {
    match ExportTraceServiceResponse::decode(reply.body.as_slice()).ok().and_then(|answer| answer.partial_success) {
        Some(partial) if partial.rejected_spans > 0 => {
            let why: String = partial.error_message.chars().filter(|c| !c.is_control()).take(200).collect();
            Err(format!("it refused {} spans: {why}", partial.rejected_spans))
        }
        _ => Ok(()),
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.send(batch).await.map_err(|problem| {
            self.complain(spans, &problem);
            OTelSdkError::InternalFailure(problem)
        })
    }
}
