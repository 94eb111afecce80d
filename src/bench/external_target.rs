//! Protects a server that the benchmark did not start: no real worker runs the benchmark's tasks, and the benchmark cleans up.

use std::sync::Arc;

use hyper::Method;
use hyper::body::Bytes;

use super::calls::{AGENTS, decode, encode};
use super::client::Client;
use super::{Bench, BenchError};
use bloom_api::answers::BulkResult;
use bloom_api::bulk::{Bulk, Filter, Named};
use bloom_api::workers::Worker;
use bloom_core::task::Status;
use bloom_core::worker::WorkerStatus;

/// The maximum number of pages of 1000 tasks that the clean-up cancels: far more than the longest queue has.
const MOST_PAGES: usize = 100_000;

/// Fails if an online worker serves every agent slug: it would run the benchmark's tasks at real cost.
pub(crate) async fn refuse_other_workers(bench: &Bench) -> Result<(), BenchError> {
    let workers = workers(&mut Client::connect(&bench.target).await?).await?;
    let serves_all = |worker: &&Worker<'_>| worker.capabilities.agents.is_none() && worker.capabilities.namespaces.is_none();
    match workers.iter().filter(serves_all).find(|worker| worker.status == WorkerStatus::Online && !worker.cordoned) {
        Some(worker) => Err(format!(
            "worker \"{0}\" is online and would run the benchmark's tasks: cordon it first (POST /api/runtime/workers/{0}/cordon), \
             or leave out --server to measure a server started for the purpose",
            worker.id
        )
        .into()),
        None => Ok(()),
    }
}

/// Removes this run's workers, which puts their tasks back into the queue, and cancels the queued tasks.
pub(crate) async fn clean_up(bench: &Arc<Bench>) -> Result<(), BenchError> {
    let mut client = Client::connect(&bench.target).await?;
    for worker in workers(&mut client).await?.iter().filter(|worker| worker.id.contains(&bench.label)) {
        client.expect(&Method::DELETE, &format!("/api/runtime/workers/{}", worker.id), Bytes::new(), &[200, 404]).await?;
    }
    for agent in AGENTS {
        let queued = Filter { agent_slug: agent.into(), status: Status::Queued.as_str().into(), ..Filter::default() };
        let body = encode(&Bulk { named: Named::Filter(Box::new(queued)), dry_run: false, as_of: None })?;
        for _ in 0..MOST_PAGES {
            let answer = client.expect(&Method::POST, "/api/runtime/llm-tasks:cancel", body.clone(), &[200]).await?;
            if !decode::<BulkResult>(&answer)?.more {
                break;
            }
        }
    }
    Ok(())
}

/// The newest 1000 workers; those of the benchmark are among them.
async fn workers(client: &mut Client) -> Result<Vec<Worker<'static>>, BenchError> {
    let answer = client.expect(&Method::GET, "/api/runtime/workers?limit=1000", Bytes::new(), &[200]).await?;
    decode(&answer)
}
