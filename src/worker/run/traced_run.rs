//! The span of a run.

use crate::Agent;
use crate::profile::Runner;
use crate::run::run_dir::Record;
use crate::run::verdict::Verdict;
use bloom_client::now_ms;
use bloom_core::Ms;
use bloom_core::task::Reason;
use bloom_core::trace_context::TraceContext;
use bloom_core::usage::Usage;
use bloom_telemetry::traces::Span;
use uuid::Uuid;

/// What the span of a run needs to know when the run starts. It is the same for an agent that continues the run of an earlier process.
pub(crate) struct TracedRun {
    attempt: Option<TraceContext>,
    /// The parent of the run's own spans and of the calls about its end.
    pub context: Option<TraceContext>,
    task: Uuid,
    lease: Uuid,
    agent_slug: String,
    context_id: String,
    model: Option<String>,
    started_at: Ms,
}

impl TracedRun {
    pub(crate) fn of(agent: &Agent, record: &Record) -> Self {
        let (lease, task) = (&record.lease, &record.task);
        Self {
            attempt: lease.traceparent,
            context: context(agent, record),
            task: task.id,
            lease: lease.id,
            agent_slug: task.agent_slug.clone(),
            context_id: task.context_id.clone(),
            model: task.model.clone(),
            started_at: record.taken_at,
        }
    }

    /// Ends the span of the run. Spans contain no prompts, outputs or messages, which may quote them.
    pub(crate) fn end(&self, agent: &Agent, verdict: &Verdict) {
        let Some(context) = self.context else { return };
        let span = Span::new(format!("invoke_agent {}", self.agent_slug), context, self.attempt, self.started_at, now_ms());
        let is_claude = agent.settings.profiles.of(&self.agent_slug).is_some_and(|profile| profile.runner == Runner::Claude);
        let span = span.with("gen_ai.operation.name", "invoke_agent").with("gen_ai.agent.name", self.agent_slug.clone());
        let span = span.with_some("gen_ai.provider.name", is_claude.then_some("anthropic"));
        let span = span.with("gen_ai.conversation.id", self.context_id.clone()).with_some("gen_ai.request.model", self.model.clone());
        let span = span.with("bloom.task.id", self.task.to_string()).with("bloom.lease.id", self.lease.to_string());
        let span = span.with("bloom.worker.id", agent.name.clone());
        agent.settings.traces.record(match verdict {
            Verdict::Release { .. } => span.with("bloom.outcome", "released"),
            Verdict::Complete(completion) => {
                let usage = completion.usage.as_ref().map(Usage::from);
                let span = span.with("bloom.outcome", completion.status.as_str()).with_usage(completion.model.as_deref(), usage);
                match completion.reason.map(Reason::as_str) {
                    Some(reason) => span.failed(reason),
                    None => span,
                }
            }
        });
    }
}

/// The span of this run, which is also the parent of spans of the programs that it starts.
pub(crate) fn context(agent: &Agent, record: &Record) -> Option<TraceContext> {
    record.lease.traceparent.map(|attempt| agent.settings.traces.run_of(attempt, record.lease.id))
}
