//! Limits of what workers report: calls that exceed one are refused.
//!
//! Lists show many workers and results at once, and reports add the numbers of many runs up, so one worker must not be able to fill the
//! memory of a server, or a sum.

/// Also the length of a slug.
pub const NAME_CHARS: usize = 128;
/// The URL of a worker, or of an agent of the control plane.
pub const URL_CHARS: usize = 2048;
/// Labels of a worker.
pub const WORKER_LABELS: usize = 64;
/// Of one label of a worker.
pub const WORKER_LABEL_CHARS: usize = 64;
/// Agent slugs that a worker serves, and combinations of an agent, a namespace and a project, of those that it names.
pub const WORKER_AGENTS: usize = 512;
/// Bytes of all these slugs together.
pub const WORKER_AGENTS_BYTES: usize = 16 << 10;
/// Namespaces that a worker serves, or that a key is limited to.
pub const WORKER_NAMESPACES: usize = 512;
/// Pauses that a worker tells of.
pub const WORKER_PAUSES: usize = 8;
/// Accounts of a worker that other workers use, too.
pub const WORKER_ACCOUNTS: usize = 64;
/// What a pause says to people.
pub const PAUSE_MESSAGE_CHARS: usize = 600;
/// How far away the end of a pause may be that a worker tells of. It tells again while the pause lasts, so that none outlives its worker.
pub const TOLD_PAUSE_MS: i64 = 60 * 60 * 1000;
/// How long a pause can be: the longest quota is one of 7 days.
pub const PAUSE_MS: i64 = 8 * 24 * 60 * 60 * 1000;
/// What an agent says of itself beside what this program knows of: how much, the length of a name, and bytes of all together.
pub const OTHER_CAPABILITIES: usize = 32;
/// Of the name of one such capability.
pub const OTHER_CAPABILITY_NAME_CHARS: usize = 64;
/// Of the names and values of all such capabilities of one worker together.
pub const OTHER_CAPABILITIES_BYTES: usize = 4 << 10;
/// Workers that may be registered over the API, and that the control plane's list may have.
pub const WORKERS: usize = 10_000;
/// Addresses of a worker.
pub const IP_ADDRS: usize = 32;
/// Of one address of a worker.
pub const IP_ADDR_CHARS: usize = 64;
/// The version of a worker's agent.
pub const AGENT_VERSION_CHARS: usize = 128;
/// The operating system of a worker.
pub const OS_INFO_CHARS: usize = 512;
/// How the agent of a worker was installed.
pub const INSTALL_METHOD_CHARS: usize = 64;
/// For the control plane's description of a worker's database.
pub const DB_SHA_CHARS: usize = 128;

/// The longest time limit of a run that a server can allow, in seconds: a week.
pub const TIMEOUT_SEC: i64 = 7 * 24 * 60 * 60;

/// The name of a project of the control plane.
pub const PROJECT_NAME_CHARS: usize = 256;
/// The canonical id of a project of the control plane.
pub const CANONICAL_ID_CHARS: usize = 64;

/// What a completion says of why the run failed.
pub const ERROR_MESSAGE_CHARS: usize = 65_536;
/// Tags of the artifact of one result.
pub const ARTIFACT_TAGS: usize = 64;
/// Of one tag.
pub const ARTIFACT_TAG_CHARS: usize = 255;
/// Of one result.
pub const WARNINGS: usize = 20;
/// Of one warning.
pub const WARNING_CHARS: usize = 500;
/// Of one kind, in one run.
pub const TOKENS: i64 = 1_000_000_000_000;
/// Of both kinds.
pub const TOKENS_USED: i64 = 2 * TOKENS;
/// 366 days.
pub const DURATION_MS: i64 = 366 * 24 * 60 * 60 * 1000;

/// The largest whole number that every JSON reader keeps exact. Sums stay at it.
pub const MAX_SAFE: i64 = 9_007_199_254_740_991;

/// Levels of arrays and objects in JSON that is kept as it comes. Readers give up on what is nested deeper: many after 128 levels, some
/// after 100, and an answer adds a few.
pub const JSON_DEPTH: usize = 64;

/// How long a run may wait for people, in ms, all its questions together: a day.
pub const ASKED_MS: i64 = 24 * 60 * 60 * 1000;
/// Bytes of what a tool is to do, as a person is asked.
pub const QUESTION_INPUT_BYTES: usize = 16 << 10;
/// Questions in words that are asked at once.
pub const QUESTION_TEXTS: usize = 8;
/// Of one of these questions.
pub const QUESTION_TEXT_CHARS: usize = 2_000;

/// Labels of a task.
pub const TASK_LABELS: usize = 32;

/// Bytes of what the events of one run say. Agents stop before; a client that speaks for them can't fill the database either.
pub const RUN_EVENTS_BYTES: i64 = 80 << 20;
/// Attempts that are given back in the life of a task; after that, the task is dead.
pub const GIVE_BACKS: i64 = 20;
