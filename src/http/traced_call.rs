//! The span of a request.

use std::time::Duration;

use axum::http::{HeaderMap, Method};
use bloom_core::trace_context::TraceContext;
use bloom_telemetry::Traces;
use bloom_telemetry::traces::Span;

use crate::identity::policy::RoutePolicy;

const TRACEPARENT: &str = "traceparent";

/// A request that is being answered. It has a span only if it belongs to a trace or begins one. Most requests are polls, and each of them
/// would otherwise be a trace of its own.
pub(crate) struct TracedCall {
    parent: Option<TraceContext>,
    span: Option<TraceContext>,
    /// Log lines inside show the ids of the span.
    pub log: tracing::Span,
}

impl TracedCall {
    pub(crate) fn begin(traces: &Traces, headers: &HeaderMap, policy: RoutePolicy) -> Self {
        let parent = parent(headers);
        let span = if parent.is_some() || policy.begins_trace { traces.begin(parent) } else { None };
        Self { parent, span, log: traces.log_span(span) }
    }

    /// The parent of the tasks that the request creates. If tracing is off, it is the caller's own span, so that agents can still join the
    /// caller's trace.
    pub(crate) fn for_tasks(&self) -> Option<TraceContext> {
        self.span.or(self.parent)
    }

    pub(crate) fn end(self, traces: &Traces, method: &Method, route: &str, status: u16, took: Duration) {
        let Some(context) = self.span else { return };
        let span = Span::of_call(format!("{method} {route}").trim_end().to_owned(), context, self.parent, took);
        let span = span.with("http.request.method", method.as_str().to_owned()).with("http.response.status_code", i64::from(status));
        let span = if route.is_empty() { span } else { span.with("http.route", route.to_owned()) };
        traces.record(if status >= 500 { span.failed(status.to_string()) } else { span });
    }
}

/// The caller's span. As the specification requires, an invalid header is ignored.
fn parent(headers: &HeaderMap) -> Option<TraceContext> {
    let mut given = headers.get_all(TRACEPARENT).iter();
    let first = given.next()?;
    if given.next().is_some() {
        return None;
    }
    first.to_str().ok()?.trim().parse().ok()
}
