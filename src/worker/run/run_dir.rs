//! The directory of a run: everything that a later agent process needs to continue it.
//!
//! ```text
//! run.json        the lease, the task, the supervisor
//! prompt          standard input
//! control         named pipe to the supervisor
//! cgroup.json     path of the run's cgroup
//! groups.json     process groups of a run without a cgroup
//! stdout.N stderr.N   output of the N-th process of the run, as its supervisor stores it
//! end.N           how that process ended
//! events.jsonl    the events, as they are sent
//! verdict.json    the verdict, as it is sent
//! egress/         the socket to the proxy of a run with a list of hosts, see [`egress`](crate::sandbox::egress)
//! question/ answer/ questions.json   what the run asks a person, see [`question`](crate::run::question_files)
//! ```

use std::fmt;
use std::fs::DirBuilder;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::contexts::session::RunSession;
use crate::git::worktree::Prepared;
use crate::home::{MAX_JSON, private_dir, read_json, write_json, write_json_durably};
use crate::machine::boot_clock::Stamp;
use crate::machine::cgroup;
use crate::machine::open_below::{open_at, read_all};
use crate::machine::process::{Leader, Listed};
use crate::machine::removal::remove_all;
use crate::run::question_files::QuestionDir;
use crate::run::task::{Lease, Task};
use crate::run::verdict::{Stop, Verdict};
use bloom_client::now_ms;
use bloom_core::Ms;

/// The longest path of a directory in which the CLI can create its socket `cc-socks/PID.sock`. If the path is longer, the CLI uses a
/// directory that all runs share.
const MAX_TEMP_PATH: usize = 103 - "/cc-socks/4194304.sock".len();

/// The record of a run, stored before each step that can't be undone. A power cut may lose it, but also ends the processes of the run; the
/// server then delivers the lease again.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Record {
    pub lease: Lease,
    /// When the agent accepted the lease.
    pub taken_at: Ms,
    /// The same time on a clock that later processes can compare.
    pub taken: Stamp,
    pub task: Task,
    /// The worktree of the project, once it is prepared for the run.
    pub prepared: Option<Prepared>,
    /// The profile of the newest process.
    pub profile: Option<String>,
    /// The session of the newest process.
    pub session: Option<RunSession>,
    /// The supervisor of the newest process. It is stored before that process starts, so the record always leads to the process.
    pub process: Option<Running>,
    /// How many processes were started. A second one is started if the session of the first no longer existed.
    pub starts: u32,
}

impl Record {
    /// The record of a lease that is being accepted.
    pub(crate) fn new(lease: Lease, task: Task) -> Self {
        let (taken_at, taken) = (now_ms(), Stamp::now());
        Self { lease, taken_at, taken, task, prepared: None, profile: None, session: None, process: None, starts: 0 }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct Running {
    /// The supervisor.
    pub leader: Leader,
    pub started_at: Ms,
}

/// How a process ended, as observed by its supervisor.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct RunEnd {
    pub exit: Option<String>,
    /// Why the process was stopped. `None` if it ended by itself, or was stopped after its result.
    pub stop: Option<Stop>,
    /// Why the program could not be started.
    pub not_started: Option<String>,
    /// Why its output could not be stored.
    pub unstored: Option<String>,
    /// The kernel ended a process of the run because there was not enough memory.
    pub out_of_memory: bool,
    /// Whether no process of the run was left.
    pub is_clean: bool,
}

#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
}

impl fmt::Display for RunDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl RunDir {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The id of the run's lease, which is the directory's name.
    pub(crate) fn lease(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Creates the directory and the record, so that a later process finds the run.
    pub(crate) fn create(&self, record: &Record) -> io::Result<()> {
        private_dir(&self.path)?;
        self.keep(record)
    }

    pub(crate) fn keep(&self, record: &Record) -> io::Result<()> {
        write_json(&self.path.join("run.json"), record)
    }

    /// # Errors
    /// There is no record, or it can't be read.
    pub(crate) fn record(&self) -> io::Result<Record> {
        Ok(serde_json::from_slice(&read_all(open_at(&self.path.join("run.json"))?, MAX_JSON)?)?)
    }

    /// The ids of the task and the lease, even if the rest of the record can't be read.
    pub(crate) fn names(&self) -> Option<(Uuid, Uuid)> {
        #[derive(Deserialize)]
        struct Named {
            id: Uuid,
        }
        #[derive(Deserialize)]
        struct Names {
            lease: Named,
            task: Named,
        }
        read_json::<Names>(&self.path.join("run.json")).map(|names| (names.task.id, names.lease.id))
    }

    /// The directory with the socket by which a run in a sandbox reaches the network.
    pub(crate) fn egress(&self) -> PathBuf {
        self.path.join("egress")
    }

    /// The directory of temporary files and sockets of a run without a sandbox. It is in the agent's directory, or in the machine's
    /// temporary directory if the path would be too long for sockets. The end of a lease's id is random.
    pub(crate) fn temp(&self) -> PathBuf {
        let lease = self.lease();
        let name = lease.rsplit('-').next().unwrap_or_default();
        let own = self.path.ancestors().nth(2).unwrap_or(&self.path).join("tmp").join(name);
        if own.as_os_str().len() <= MAX_TEMP_PATH { own } else { Path::new("/tmp").join(format!("bloom-{name}")) }
    }

    /// Creates the temporary directory anew: empty, and accessible to the agent's user only, even if its parent is writable for others.
    pub(crate) fn make_temp(&self) -> io::Result<PathBuf> {
        let temp = self.temp();
        remove_all(&temp)?;
        private_dir(temp.parent().unwrap_or(&temp))?;
        DirBuilder::new().mode(0o700).create(&temp)?;
        Ok(temp)
    }

    pub(crate) fn verdict(&self) -> Option<Verdict> {
        read_json(&self.path.join("verdict.json"))
    }

    pub(crate) fn keep_verdict(&self, verdict: &Verdict) -> io::Result<()> {
        write_json_durably(&self.path.join("verdict.json"), verdict)
    }

    pub(crate) fn prompt(&self) -> PathBuf {
        self.path.join("prompt")
    }

    pub(crate) fn stdout(&self, start: u32) -> PathBuf {
        self.path.join(format!("stdout.{start}"))
    }

    pub(crate) fn stderr(&self, start: u32) -> PathBuf {
        self.path.join(format!("stderr.{start}"))
    }

    /// The named pipe by which the agent reaches the supervisor.
    pub(crate) fn control(&self) -> PathBuf {
        self.path.join("control")
    }

    pub(crate) fn events(&self) -> PathBuf {
        self.path.join("events.jsonl")
    }

    pub(crate) fn questions(&self) -> QuestionDir {
        QuestionDir::of_run(&self.path)
    }

    pub(crate) fn listed(&self) -> PathBuf {
        self.path.join("groups.json")
    }

    /// The process groups of the run, as the supervisor listed them last.
    pub(crate) fn groups(&self) -> Vec<Leader> {
        read_json::<Listed>(&self.listed()).map(Listed::current).unwrap_or_default()
    }

    /// Creates a new cgroup for the run, if the agent may, in place of that of an earlier process of the run. Its path is stored first.
    pub(crate) fn make_cgroup(&self, parent: Option<&cgroup::Parent>, limits: &cgroup::Limits) -> io::Result<Option<PathBuf>> {
        let Some(leaf) = parent.map(|parent| parent.leaf(&self.lease())) else { return Ok(None) };
        write_json(&self.path.join("cgroup.json"), &leaf)?;
        cgroup::remove(&leaf);
        cgroup::make(&leaf, limits)?;
        Ok(Some(leaf))
    }

    pub(crate) fn cgroup(&self) -> Option<PathBuf> {
        read_json(&self.path.join("cgroup.json"))
    }

    pub(crate) fn keep_end(&self, start: u32, end: &RunEnd) -> io::Result<()> {
        write_json_durably(&self.path.join(format!("end.{start}")), end)
    }

    /// How the process ended; everything is unknown if its supervisor died first.
    pub(crate) fn left_end(&self, start: u32) -> RunEnd {
        read_json(&self.path.join(format!("end.{start}"))).unwrap_or_default()
    }

    /// The last `max` bytes of standard error.
    pub(crate) fn stderr_tail(&self, start: u32, max: u64) -> String {
        let read = || -> io::Result<String> {
            let mut file = open_at(&self.stderr(start))?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(max)))?;
            let mut bytes = Vec::new();
            file.take(max).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_default()
    }

    /// Removes the directory, off the async threads: a run may have left very many files there.
    pub(crate) async fn remove(self) {
        let _ = tokio::task::spawn_blocking(move || self.remove_now()).await;
    }

    fn remove_now(&self) {
        if let Some(leaf) = self.cgroup() {
            cgroup::remove(&leaf);
        }
        // The run's directory goes last, because the agent uses it to find what is left of a run.
        if let Err(error) = remove_all(&self.temp()).and_then(|()| remove_all(&self.path)) {
            let task = self.names().map(|(task, _)| task.to_string());
            tracing::warn!(task, path = %self.path.display(), %error, "the files of a run could not be removed");
        }
    }
}
