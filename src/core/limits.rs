//! Limits of what workers report. Calls that exceed a limit are refused.
//!
//! Lists show many workers and results at once, and reports sum up the numbers of many runs. The limits keep one worker from filling the
//! memory of a server, or from making a sum overflow.

/// Characters of a name or a slug.
pub const NAME_CHARS: usize = 128;
/// The URL of a worker, or of an agent of the control plane.
pub const URL_CHARS: usize = 2048;
/// Labels of a worker.
pub const WORKER_LABELS: usize = 64;
/// Characters of one label of a worker.
pub const WORKER_LABEL_CHARS: usize = 64;
/// Agent slugs that a worker serves. Also the limit of the combinations of an agent, a namespace and a project that it names.
pub const WORKER_AGENTS: usize = 512;
/// Bytes of all these slugs together.
pub const WORKER_AGENTS_BYTES: usize = 16 << 10;
/// Namespaces that a worker serves, or that a key is limited to.
pub const WORKER_NAMESPACES: usize = 512;
/// Pauses that a worker reports.
pub const WORKER_PAUSES: usize = 8;
/// Accounts that a worker shares with other workers.
pub const WORKER_ACCOUNTS: usize = 64;
/// Characters of the message of a pause, for people.
pub const PAUSE_MESSAGE_CHARS: usize = 600;
/// How far in the future the end of a reported pause may be. The worker reports it again while it lasts, so that no pause outlives its
/// worker.
pub const TOLD_PAUSE_MS: i64 = 60 * 60 * 1000;
/// The longest duration of a pause: the longest quota period is 7 days.
pub const PAUSE_MS: i64 = 8 * 24 * 60 * 60 * 1000;
/// The number of capabilities that an agent reports and this program does not interpret.
pub const OTHER_CAPABILITIES: usize = 32;
/// Characters of the name of one such capability.
pub const OTHER_CAPABILITY_NAME_CHARS: usize = 64;
/// Bytes of the names and values of all such capabilities of one worker together.
pub const OTHER_CAPABILITIES_BYTES: usize = 4 << 10;
/// Workers that may be registered over the API, and workers that the control plane's list may have.
pub const WORKERS: usize = 10_000;
/// Addresses of a worker.
pub const IP_ADDRS: usize = 32;
/// Characters of one address of a worker.
pub const IP_ADDR_CHARS: usize = 64;
/// Characters of the version of a worker's agent.
pub const AGENT_VERSION_CHARS: usize = 128;
/// Characters of the operating system of a worker.
pub const OS_INFO_CHARS: usize = 512;
/// Characters of the install method of a worker's agent.
pub const INSTALL_METHOD_CHARS: usize = 64;
/// Characters of the digest of a worker's database, from the control plane.
pub const DB_SHA_CHARS: usize = 128;

/// The longest time limit of a run that a server can allow, in seconds: a week.
pub const TIMEOUT_SEC: i64 = 7 * 24 * 60 * 60;

/// Characters of the name of a project of the control plane.
pub const PROJECT_NAME_CHARS: usize = 256;
/// Characters of the canonical id of a project of the control plane.
pub const CANONICAL_ID_CHARS: usize = 64;

/// Characters of the error message of a completion.
pub const ERROR_MESSAGE_CHARS: usize = 65_536;
/// Tags of the artifact of one result.
pub const ARTIFACT_TAGS: usize = 64;
/// Characters of one tag.
pub const ARTIFACT_TAG_CHARS: usize = 255;
/// Warnings of one result.
pub const WARNINGS: usize = 20;
/// Characters of one warning.
pub const WARNING_CHARS: usize = 500;
/// Tokens of one kind, in one run.
pub const TOKENS: i64 = 1_000_000_000_000;
/// Tokens of both kinds together.
pub const TOKENS_USED: i64 = 2 * TOKENS;
/// The longest duration of a run: 366 days.
pub const DURATION_MS: i64 = 366 * 24 * 60 * 60 * 1000;

/// The largest integer that every JSON reader represents exactly. Sums are capped at it.
pub const MAX_SAFE: i64 = 9_007_199_254_740_991;

/// Levels of arrays and objects in JSON that is stored unchanged. Readers reject deeper nesting: many after 128 levels, some after 100, and
/// the API's own answer adds a few levels.
pub const JSON_DEPTH: usize = 64;

/// How long a run may wait for people, in ms, in all its questions together: a day.
pub const ASKED_MS: i64 = 24 * 60 * 60 * 1000;
/// Bytes of the tool input that a person is asked to permit.
pub const QUESTION_INPUT_BYTES: usize = 16 << 10;
/// Questions in words that a run may ask at once.
pub const QUESTION_TEXTS: usize = 8;
/// Characters of one of these questions.
pub const QUESTION_TEXT_CHARS: usize = 2_000;

/// Labels of a task.
pub const TASK_LABELS: usize = 32;

/// Bytes of the events of one run. Agents stop before this limit; it keeps a client that speaks for them from filling the database.
pub const RUN_EVENTS_BYTES: i64 = 80 << 20;
/// Attempts that may be given back in the life of a task. After that, the task is dead.
pub const GIVE_BACKS: i64 = 20;
