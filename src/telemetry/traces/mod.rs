//! Traces: spans of the work on tasks, which a background thread sends to a collector.
//!
//! Spans are made when they end, with the times and ids that are known at that point: a task may wait for hours, and one process may end
//! what another one began. The ids of attempts and runs are derived from the ids of their leases ([`TraceContext::of_attempt`]), so nothing
//! but the `traceparent` of the task is stored.
//!
//! Without a collector, a [`Traces`] is empty: there is no thread, no queue and no HTTP client, and no span is made.

mod exporter;
mod settings;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bloom_core::Ms;
use bloom_core::ids::LeaseId;
use bloom_core::trace_context::TraceContext;
use bloom_core::usage::Usage;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry::{Context, InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, IdGenerator, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample, SpanData,
    SpanProcessor,
};

use exporter::Exporter;
/// The headers of calls of the collector.
pub use reqwest::header::HeaderMap;
pub use settings::{SAMPLERS, TraceSettings, attributes, headers, sampler};

/// How long a stop waits for the collector to take the last spans.
const FLUSH_LIMIT: Duration = Duration::from_secs(3);

/// Takes the spans of a process. Clones share the queue.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Recorder>>);

#[derive(Debug)]
struct Recorder {
    /// Has a bounded queue: spans beyond it are dropped.
    processor: BatchSpanProcessor,
    sampler: Sampler,
    scope: InstrumentationScope,
}

impl Traces {
    /// Starts the thread that sends spans. Must be called within the runtime that makes the calls. Without settings there is no thread.
    ///
    /// # Errors
    /// TLS can't be set up on this machine; the text says why.
    pub fn start(settings: Option<&TraceSettings>) -> Result<Self, String> {
        let Some(settings) = settings else { return Ok(Self::default()) };
        let processor = BatchSpanProcessor::new(Exporter::new(settings)?, BatchConfigBuilder::default().build());
        let scope = InstrumentationScope::builder("bloom-runtime").with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Self(Some(Arc::new(Recorder { processor, sampler: settings.sampler.clone(), scope }))))
    }

    /// Whether spans are recorded at all.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The context of a new span below this parent; without a parent, that of the first span of a new trace. `None` if traces are off.
    pub fn begin(&self, parent: Option<TraceContext>) -> Option<TraceContext> {
        let recorder = self.0.as_ref()?;
        let ids = RandomIdGenerator::default();
        let trace_id = parent.map_or_else(|| u128::from_be_bytes(ids.new_trace_id().to_bytes()), |parent| parent.trace_id);
        let context = TraceContext { trace_id, span_id: u64::from_be_bytes(ids.new_span_id().to_bytes()), is_sampled: false };
        Some(TraceContext { is_sampled: recorder.samples(trace_id, parent), ..context })
    }

    /// The context of the attempt that has this lease. If traces are off, the attempt has no span, and the result is the context of the
    /// task, so that whatever belongs to the attempt has the same parent as the attempt would have.
    pub fn attempt_of(&self, task: TraceContext, lease: LeaseId) -> TraceContext {
        if self.is_on() { task.of_attempt(lease) } else { task }
    }

    /// The context of the run of a lease whose attempt has this context. If traces are off, the run has no span, and its calls have the
    /// attempt as their parent.
    pub fn run_of(&self, attempt: TraceContext, lease: LeaseId) -> TraceContext {
        match &self.0 {
            Some(recorder) => TraceContext { is_sampled: recorder.samples(attempt.trace_id, Some(attempt)), ..attempt.of_run(lease) },
            None => attempt,
        }
    }

    /// Puts a span into the queue, unless its trace is not sampled. Never waits.
    pub fn record(&self, span: Span) {
        if let Some(recorder) = self.0.as_ref().filter(|_| span.context.is_sampled) {
            recorder.processor.on_end(span.finish(&recorder.scope));
        }
    }

    /// A span of `tracing` that adds the ids of this context to the log lines within it; an empty one if traces are off.
    pub fn log_span(&self, context: Option<TraceContext>) -> tracing::Span {
        match context.filter(|_| self.is_on()) {
            // The highest level, so that no log level hides it from the lines within.
            Some(TraceContext { trace_id, span_id, .. }) => tracing::error_span!(
                "trace",
                trace_id = %format_args!("{trace_id:032x}"),
                span_id = %format_args!("{span_id:016x}")
            ),
            None => tracing::Span::none(),
        }
    }

    /// Sends the spans in the queue. Takes a few seconds at most.
    pub async fn stop(&self) {
        let Some(recorder) = self.0.clone() else { return };
        let stopped = tokio::task::spawn_blocking(move || recorder.processor.shutdown_with_timeout(FLUSH_LIMIT)).await;
        if !matches!(stopped, Ok(Ok(()))) {
            tracing::warn!("the last traces could not be sent within {} s and are lost", FLUSH_LIMIT.as_secs());
        }
    }
}

impl Recorder {
    fn samples(&self, trace_id: u128, parent: Option<TraceContext>) -> bool {
        let above = parent.map(|parent| Context::new().with_remote_span_context(span_context(parent, true)));
        let sampled = self.sampler.should_sample(above.as_ref(), TraceId::from(trace_id), "", &SpanKind::Internal, &[], &[]);
        sampled.decision == SamplingDecision::RecordAndSample
    }
}

/// A span that has ended.
#[derive(Clone, Debug)]
pub struct Span {
    context: TraceContext,
    parent: Option<TraceContext>,
    is_of_call: bool,
    name: Cow<'static, str>,
    start: SystemTime,
    end: SystemTime,
    attributes: Vec<KeyValue>,
    status: Status,
}

impl Span {
    /// A span of this context, from the first time until the second.
    pub fn new(name: impl Into<Cow<'static, str>>, context: TraceContext, parent: Option<TraceContext>, start: Ms, end: Ms) -> Self {
        let time = |at: Ms| UNIX_EPOCH + Duration::from_millis(u64::try_from(at).unwrap_or(0));
        let (name, attributes) = (name.into(), Vec::new());
        // The clocks of two machines may differ.
        let end = time(end.max(start));
        Self { context, parent, is_of_call: false, name, start: time(start), end, attributes, status: Status::Unset }
    }

    /// A span of a call that this process has just answered.
    pub fn of_call(name: impl Into<Cow<'static, str>>, context: TraceContext, parent: Option<TraceContext>, took: Duration) -> Self {
        let end = SystemTime::now();
        let start = end.checked_sub(took).unwrap_or(end);
        Self { is_of_call: true, start, end, ..Self::new(name, context, parent, 0, 0) }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push(KeyValue::new(name, value));
        self
    }

    /// Adds the attribute if there is a value.
    #[must_use]
    pub fn with_some(self, name: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Adds the usage of a run, and the model that its completion reported.
    #[must_use]
    pub fn with_usage(self, model: Option<&str>, usage: Option<Usage>) -> Self {
        let span = self.with_some("gen_ai.response.model", model.map(str::to_owned));
        let Some(Usage { input_tokens, output_tokens, cost_usd, cost_estimated }) = usage else { return span };
        let span = span.with("gen_ai.usage.input_tokens", input_tokens).with("gen_ai.usage.output_tokens", output_tokens);
        span.with("bloom.cost_usd", cost_usd).with_some("bloom.cost_estimated", cost_estimated.then_some(true))
    }

    /// Marks the span as failed, with the reason as one of a few fixed words.
    #[must_use]
    pub fn failed(mut self, reason: impl Into<Cow<'static, str>>) -> Self {
        let reason = reason.into();
        self.status = Status::error(reason.clone());
        self.with("error.type", reason.into_owned())
    }

    fn finish(self, scope: &InstrumentationScope) -> SpanData {
        SpanData {
            span_context: span_context(self.context, false),
            parent_span_id: self.parent.map_or(SpanId::INVALID, |parent| SpanId::from(parent.span_id)),
            parent_span_is_remote: self.is_of_call && self.parent.is_some(),
            span_kind: if self.is_of_call { SpanKind::Server } else { SpanKind::Internal },
            name: self.name,
            start_time: self.start,
            end_time: self.end,
            attributes: self.attributes,
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: self.status,
            instrumentation_scope: scope.clone(),
        }
    }
}

fn span_context(context: TraceContext, is_remote: bool) -> SpanContext {
    let flags = if context.is_sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
    SpanContext::new(TraceId::from(context.trace_id), SpanId::from(context.span_id), flags, is_remote, TraceState::NONE)
}
