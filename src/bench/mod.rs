//! `bloom-runtime bench`: measures a server over HTTP, with a load that it generates.

#![warn(missing_docs, unreachable_pub)]

mod calls;
mod client;
mod external_target;
mod latency;
mod lifecycle;
mod load;
mod memory;
mod queue;
mod report;
mod server;
mod wake;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use hyper::Method;
use hyper::body::Bytes;
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};

use bloom_api::reports::Health;
use bloom_commands::{CommandError, term};
use client::{Client, Target};
use report::{Report, Row};
use server::Server;

/// Measure a server: throughput, latency, memory
///
/// Without --server, it starts this program on a database of its own and removes the database afterwards. The load runs on the same
/// machine and uses a part of it, so compare the figures of one run with each other rather than with those of another machine.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Scenario::ALL)]
    scenario: Vec<Scenario>,
    /// Numbers of concurrent clients in the lifecycle scenario, one run for each
    #[arg(long, value_delimiter = ',', default_values_t = [32, 64], value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: Vec<u16>,
    /// How long each run of a scenario lasts
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Queue lengths at which the latency scenario measures
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 100_000], value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    queued: Vec<u64>,
    /// Number of lifecycles in the memory scenario
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    lifecycles: u64,
    /// Measure this server instead of starting one. It gets real tasks for agents named bench-*; those that stay queued are cancelled,
    /// and all of them are removed an hour after their end
    #[arg(long, value_name = "URL", conflicts_with_all = ["database_url", "data_dir"])]
    server: Option<String>,
    /// The admin key of --server
    #[arg(long, env = "BLOOM_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Database of the server that is started, preferably empty; `sqlite` is a file in --data-dir. Give several to compare them
    #[arg(long, value_name = "URL", default_values_t = [server::OWN_SQLITE.to_owned()])]
    database_url: Vec<String>,
    /// Where the started server stores its files, in a directory that is removed afterwards [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Create, lease, heartbeat and complete, one call each
    Lifecycle,
    /// Create 96 tasks per call; 8 workers claim, heartbeat and complete up to 32 per call
    Batched,
    /// Time from a submit to the idle worker that waits for it
    Wake,
    /// Latency of claims, leases, lists and stats with a long queue
    Latency,
    /// Memory after many lifecycles, and time from start to ready (needs a server started here)
    Memory,
}

impl Scenario {
    const ALL: [Self; 5] = [Self::Lifecycle, Self::Batched, Self::Wake, Self::Latency, Self::Memory];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Why the benchmark failed, as a text for the user.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct BenchError {
    message: String,
    /// The exit status of the process.
    status: u8,
}

impl BenchError {
    fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 2 }
    }
}

impl From<String> for BenchError {
    fn from(message: String) -> Self {
        Self { message, status: 1 }
    }
}

impl From<BenchError> for CommandError {
    fn from(BenchError { message, status }: BenchError) -> Self {
        Self { message, status }
    }
}

impl From<CommandError> for BenchError {
    fn from(CommandError { message, status }: CommandError) -> Self {
        Self { message, status }
    }
}

impl From<&str> for BenchError {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

/// One server under measurement.
struct Bench {
    target: Arc<Target>,
    /// Distinguishes this run's workers and contexts from those of other runs.
    label: String,
    /// For every task that the benchmark creates.
    ttl_after_finished_sec: Option<i64>,
    time: Duration,
    clients: Vec<usize>,
    queued: Vec<u64>,
    lifecycles: u64,
    /// `None` if the benchmark did not start the server.
    server: Option<Mutex<Server>>,
}

impl Bench {
    fn memory_row(&self, scenario: &'static str, case: &str) -> Option<Row> {
        let server = self.server.as_ref()?.lock();
        Some(Row::of_memory(scenario, case, server.resident_mb()?))
    }

    /// The last log lines of a server that was started here, for error messages, because its log is removed with it.
    fn server_words(&self) -> String {
        let Some(server) = &self.server else { return String::new() };
        format!("\nThe server: {}", server.lock().last_words())
    }
}

/// Runs the scenarios and prints the report.
///
/// # Errors
/// A server can't be started or reached, or its answers do not follow the API.
pub async fn run(args: &BenchArgs) -> Result<(), BenchError> {
    let mut report = Report::default();
    match &args.server {
        Some(url) => measure_external_target(args, url, &mut report).await?,
        // An interrupt drops this future, which ends the server and removes its directory.
        None => unless_interrupted(measure_started(args, &mut report)).await?,
    }
    report.compare();
    let json = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
    let printed = term::print(&match args.output {
        Output::Text => report.to_string(),
        Output::Json => format!("{json}\n"),
    });
    // Printed and saved, even if one of the two fails: the figures may have taken an hour.
    if let Some(file) = &args.save {
        std::fs::write(file, json).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(printed?)
}

async fn measure_started(args: &BenchArgs, report: &mut Report) -> Result<(), BenchError> {
    let directory = args.data_dir.clone().unwrap_or_else(std::env::temp_dir);
    for database_url in &args.database_url {
        let label = random_word();
        let mut server = Server::prepare(&directory, database_url, &label, &random_word())?;
        let syncs = server.disk_syncs_per_second();
        let (target, _) = server.start().await?;
        let bench = bench_of(args, target, label, Some(server), None);
        let storage = storage_of(&bench).await?;
        let disk = syncs.map(|rate| format!(", {rate:.0} disk syncs/s in {}", directory.display())).unwrap_or_default();
        report.about.push(format!("{storage}: started here, {}{disk}", machine()));
        for &scenario in &args.scenario {
            measure(&bench, scenario, &storage, report).await?;
        }
        // The load has ended and holds no reference any more, so the server can be taken out, stopped and started.
        let Some(server) = Arc::into_inner(bench).and_then(|bench| bench.server) else { continue };
        let mut server = server.into_inner();
        if args.scenario.contains(&Scenario::Memory) {
            eprintln!("{storage}: start to ready");
            report.add(&storage, memory::restarts(&mut server).await?);
        }
        server.stop().await?;
    }
    Ok(())
}

async fn measure_external_target(args: &BenchArgs, url: &str, report: &mut Report) -> Result<(), BenchError> {
    let target = Target::new(url, args.key.as_deref())?;
    let bench = bench_of(args, target, random_word(), None, Some(3600));
    external_target::refuse_other_workers(&bench).await?;
    let storage = storage_of(&bench).await?;
    report.about.push(format!("{storage}: {url}, load from {}", machine()));
    let measured = unless_interrupted(async {
        for &scenario in &args.scenario {
            if scenario == Scenario::Memory {
                eprintln!("memory: skipped, it is measured only for a server that is started here");
            } else {
                measure(&bench, scenario, &storage, report).await?;
            }
        }
        Ok(())
    })
    .await;
    // Cleans up after a failure, too, but an error of the measurement takes precedence over one of the clean-up.
    let cleaned = external_target::clean_up(&bench).await;
    measured.and(cleaned)
}

async fn unless_interrupted(work: impl Future<Output = Result<(), BenchError>>) -> Result<(), BenchError> {
    let mut asked_to_end = signal(SignalKind::terminate()).map_err(|error| format!("cannot listen for signals: {error}"))?;
    // The statuses that a shell reports for a process that the signal ended.
    let status = tokio::select! {
        done = work => return done,
        _ = tokio::signal::ctrl_c() => 130,
        _ = asked_to_end.recv() => 143,
    };
    Err(BenchError { message: "interrupted".to_owned(), status })
}

async fn measure(bench: &Arc<Bench>, scenario: Scenario, storage: &str, report: &mut Report) -> Result<(), BenchError> {
    let name = scenario.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    eprintln!("{storage}: {name}");
    let rows = match scenario {
        Scenario::Lifecycle => lifecycle::single(bench).await,
        Scenario::Batched => lifecycle::batched(bench).await,
        Scenario::Wake => wake::submit_to_delivery(bench).await,
        Scenario::Latency => queue::at_each_length(bench).await,
        Scenario::Memory => memory::after_work(bench).await,
    };
    report.add(storage, rows.map_err(|failure| format!("{name}: {failure}{}", bench.server_words()))?);
    Ok(())
}

fn bench_of(args: &BenchArgs, target: Target, label: String, server: Option<Server>, ttl_after_finished_sec: Option<i64>) -> Arc<Bench> {
    let mut queued = args.queued.clone();
    queued.sort_unstable();
    Arc::new(Bench {
        target: Arc::new(target),
        label,
        ttl_after_finished_sec,
        time: Duration::from_secs(args.seconds),
        clients: args.clients.iter().map(|&clients| usize::from(clients)).collect(),
        queued,
        lifecycles: args.lifecycles,
        server: server.map(Mutex::new),
    })
}

/// The kind of database that the server uses.
async fn storage_of(bench: &Bench) -> Result<String, BenchError> {
    let mut client = Client::connect(&bench.target).await?;
    let answer = client.expect(&Method::GET, "/api/runtime/health", Bytes::new(), &[200]).await?;
    Ok(calls::decode::<Health>(&answer)?.storage.into_owned())
}

fn machine() -> String {
    match std::thread::available_parallelism() {
        Ok(cores) => format!("{cores} cores"),
        Err(_) => "an unknown number of cores".to_owned(),
    }
}

/// Random enough to distinguish runs, and as the key of a server that listens on loopback for a few minutes.
fn random_word() -> String {
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}
