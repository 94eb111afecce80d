//! The table of all settings: from it come flags, environment variables, file keys, `--help`, `config check`, docs/settings.md, and the values that
//! the programs use.

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use secrecy::SecretString;
use url::{Host, Url};

use super::parse;
use super::setting::{Reader, Setting};
use bloom_core::Ms;
use bloom_core::limits::TIMEOUT_SEC;
use bloom_telemetry::LogFormat;
use bloom_telemetry::traces::{self, HeaderMap};

/// In seconds. Half of it is more than the writes of a completion may take, the other half is more than a commit may.
const SHORTEST_GRACE: u64 = 30;

/// The key of a setting, from the name of its variable.
const fn lower_case<const BYTES: usize>(name: &str) -> [u8; BYTES] {
    let (mut key, mut at) = ([0; BYTES], 0);
    while at < BYTES {
        key[at] = name.as_bytes()[at].to_ascii_lowercase();
        at += 1;
    }
    key
}

const fn utf8(key: &'static [u8]) -> &'static str {
    match str::from_utf8(key) {
        Ok(key) => key,
        Err(_) => "",
    }
}

/// A group has its name and its heading in `--help`; a setting has its help, its variable, the field of the group with its type, the method of
/// [`Reader`] that reads it, with its parser, the placeholder of its value, its default, and `secret` if it is one.
macro_rules! settings {
    (@is_secret) => { false };
    (@is_secret secret) => { true };
    ($(
        $(#[doc = $about:literal])+
        $visibility:vis $group:ident $heading:literal {$(
            $(#[doc = $help:literal])+
            $name:ident $field:ident: $type:ty = $read:ident($($parse:expr)?), $value_name:ident $default:literal $($secret:ident)?;
        )+}
    )+) => {
        $($(
            pub(crate) const $name: Setting = Setting {
                key: {
                    const KEY: [u8; stringify!($name).len()] = lower_case(stringify!($name));
                    utf8(&KEY)
                },
                value_name: stringify!($value_name),
                default: $default,
                help: concat!($($help),+).trim_ascii(),
                group: $heading,
                secret: settings!(@is_secret $($secret)?),
            };
        )+)+

        /// All settings, in the order of `--help` and `config check`.
        pub const SETTINGS: &[&Setting] = &[$($(&$name),+),+];

        $(
            $(#[doc = $about])+
            #[derive(Clone, Debug)]
            $visibility struct $group {$(
                $(#[doc = $help])+
                pub $field: $type,
            )+}

            impl $group {
                /// Reads each of them even after a mistake, so that all mistakes are reported at once.
                pub(crate) fn read(reader: &mut impl Reader) -> Option<Self> {
                    $(let $field = reader.$read(&$name $(, $parse)?);)+
                    Some(Self { $($field: $field?),+ })
                }
            }
        )+
    };
}

settings! {
    /// Where the server listens, and how it is reached.
    pub Network "Network" {
        /// Address or host name to listen on; 0.0.0.0 or :: listens on every network
        HOST host: String = required(parse::host), ADDRESS "127.0.0.1";
        /// Port to listen on; 0 chooses a free port
        PORT port: u16 = required(parse::whole(0, u16::MAX)), PORT "5000";
        /// URL at which agents and browsers reach this server, if it differs from the address that clients call
        PUBLIC_URL public_url: Option<Url> = optional(parse::public_url), URL "";
        /// Further names and addresses, without port, by which clients may call a server without keys; separated by commas
        ALLOWED_HOSTS allowed_hosts: Vec<Host> = list(parse::hosts), HOSTS "";
        /// Proxies whose X-Forwarded-* headers are trusted: addresses or networks, separated by commas
        TRUSTED_PROXIES trusted_proxies: Vec<IpNet> = list(parse::networks), NETWORKS "";
        /// PEM file with the server's certificate and those of the authorities between it and the root; with it, the server speaks https
        TLS_CERT_FILE tls_cert_file: Option<PathBuf> = optional(parse::file), FILE "";
        /// PEM file with the private key of the certificate in TLS_CERT_FILE, without a password
        TLS_KEY_FILE tls_key_file: Option<PathBuf> = optional(parse::file), FILE "";
        /// PEM file with the authorities of client certificates: calls of workers then need such a certificate, besides the key
        TLS_CLIENT_CA_FILE tls_client_ca_file: Option<PathBuf> = optional(parse::file), FILE "";
    }

    /// The database, how long it keeps what has ended, and its backups.
    pub Data "Data" {
        /// Directory of the SQLite database; default: $XDG_DATA_HOME/bloom-runtime, else ~/.local/share/bloom-runtime
        DATA_DIR dir: PathBuf = data_dir(), DIR "";
        /// sqlite:FILE or postgres://USER:PASSWORD@HOST/DATABASE; default: bloom.db in the data directory
        DATABASE_URL database_url: SecretString = database_url("bloom.db"), URL "" secret;
        /// Maximum number of database connections for reads of API requests; everything else has its own
        DATABASE_MAX_CONNECTIONS max_connections: u32 = required(parse::whole(1, 500)), N "10";
        /// Days after which finished tasks are removed; 0 keeps them forever
        TASK_RETENTION_DAYS task_retention_days: u32 = required(parse::whole(0, 36_500)), DAYS "0";
        /// Days after which audit entries are removed; 0 keeps them forever
        AUDIT_RETENTION_DAYS audit_retention_days: u32 = required(parse::whole(0, 36_500)), DAYS "0";
        /// Directory for scheduled backups of the SQLite database; without it, the server makes none
        BACKUP_DIR backup_dir: Option<PathBuf> = optional(parse::directory), DIR "";
        /// Interval of scheduled backups, counted from the newest one in the directory
        BACKUP_EVERY_SECONDS backup_every: Duration = required(parse::seconds(1, 31 * 86_400)), SECONDS "86400";
        /// Scheduled backups to keep; older ones are removed after a new one
        BACKUP_KEEP backup_keep: usize = required(parse::whole(1, 1_000)), N "7";
    }

    /// The object store, before it is clear which one it is.
    pub(crate) ObjectSettings "Object store" {
        /// Host name, or http or https URL, of MinIO or another store that speaks S3: large outputs and the audit trail go there
        MINIO_ENDPOINT minio_endpoint: Option<String> = optional(parse::endpoint), HOST "";
        /// Port of MinIO; default: 9000, or that of the URL in MINIO_ENDPOINT
        MINIO_PORT minio_port: Option<u16> = optional(parse::whole(1, u16::MAX)), PORT "";
        /// true calls MinIO by https; not needed with an https URL in MINIO_ENDPOINT
        MINIO_USE_SSL minio_use_ssl: bool = required(parse::truth), BOOL "false";
        /// Access key of MinIO
        MINIO_ACCESS_KEY minio_access_key: Option<SecretString> = optional(parse::key), KEY "" secret;
        /// Secret key of MinIO
        MINIO_SECRET_KEY minio_secret_key: Option<SecretString> = optional(parse::key), KEY "" secret;
        /// Bucket of MinIO, for this installation alone
        MINIO_ARTIFACT_BUCKET minio_bucket: String = required(parse::bucket), BUCKET "bloom-artifacts";
        /// Bucket of Amazon S3, for this installation alone: large outputs and the audit trail go there, instead of to MinIO
        AWS_S3_BUCKET s3_bucket: Option<String> = optional(parse::bucket), BUCKET "";
        /// Region of the bucket
        AWS_REGION region: String = required(parse::region), REGION "us-east-1";
        /// Access key of Amazon S3
        AWS_ACCESS_KEY_ID s3_access_key: Option<SecretString> = optional(parse::key), KEY "" secret;
        /// Secret key of Amazon S3
        AWS_SECRET_ACCESS_KEY s3_secret_key: Option<SecretString> = optional(parse::key), KEY "" secret;
        /// Age in seconds at which objects to which no artifact refers are removed
        OBJECT_GRACE_SECONDS grace: Duration = required(parse::seconds(SHORTEST_GRACE, 366 * 86_400)), SECONDS "86400";
    }

    /// The keys of the API that the settings name.
    pub Keys "Keys" {
        /// Key that allows everything; without any key, authentication is off
        RUNTIME_API_KEY api: Option<SecretString> = optional(parse::key), KEY "" secret;
        /// Key for workers; it allows register, claim, heartbeat, events, questions, complete and release
        RUNTIME_WORKER_KEY worker: Option<SecretString> = optional(parse::key), KEY "" secret;
        /// Key that allows reading only
        RUNTIME_READ_KEY read: Option<SecretString> = optional(parse::key), KEY "" secret;
        /// true lets a server without any key listen beyond loopback: everybody who reaches it may do everything
        ALLOW_NO_KEY allow_none: bool = required(parse::truth), BOOL "false";
    }

    /// The control plane that the server uses, and that of this program.
    pub ControlPlane "Membridge control plane" {
        /// http or https URL of the control plane: requests are proxied to it, workers are read from it
        MEMBRIDGE_SERVER_URL server_url: Option<Url> = optional(parse::http_url), URL "";
        /// Key for the control plane, sent as X-MEMBRIDGE-ADMIN
        MEMBRIDGE_ADMIN_KEY admin_key: Option<SecretString> = optional(parse::key), KEY "" secret;
        /// Key for calls to agents, sent as X-MEMBRIDGE-AGENT
        MEMBRIDGE_AGENT_KEY agent_key: Option<SecretString> = optional(parse::key), KEY "" secret;
        /// Interval at which the control plane's list of agents is read
        WORKER_SYNC_SECONDS worker_sync_ms: Ms = required(parse::seconds_in_ms(1, 3_600)), SECONDS "10";
        /// true runs a control plane in the server, which is then the one that the server uses: MEMBRIDGE_SERVER_URL stays unset
        WITH_MEMBRIDGE in_server: bool = required(parse::truth), BOOL "false";
        /// Address or host name on which this program's own control plane listens; beyond loopback it needs MEMBRIDGE_ADMIN_KEY
        MEMBRIDGE_HOST host: String = required(parse::host), ADDRESS "127.0.0.1";
        /// Port of this program's own control plane; 0 chooses a free port
        MEMBRIDGE_PORT port: u16 = required(parse::whole(0, u16::MAX)), PORT "8000";
        /// Database of `bloom-runtime membridge`, as DATABASE_URL; default: membridge.db in the data directory
        MEMBRIDGE_DATABASE_URL database_url: SecretString = database_url("membridge.db"), URL "" secret;
    }

    /// How much clients may send, and how long a request may take.
    pub Limits "Limits" {
        /// API requests per minute from one client address; 0 = no limit
        RATE_LIMIT_PER_MINUTE requests_per_minute: u32 = required(parse::whole(0, u32::MAX)), N "100";
        /// Connection tests per minute from one client address; 0 = no limit
        TEST_CONNECTION_PER_MINUTE test_connection_per_minute: u32 = required(parse::whole(0, u32::MAX)), N "20";
        /// Requests of workers per minute from one client address; events of runs have a separate limit of the same size; 0 = no limit
        WORKER_RATE_LIMIT_PER_MINUTE worker_requests_per_minute: u32 = required(parse::whole(0, u32::MAX)), N "6000";
        /// Maximum size of a request body, not counting a task's output
        MAX_BODY_BYTES body_bytes: usize = required(parse::whole(1_024, 1 << 30)), BYTES "1048576";
        /// Maximum size of a task's output
        MAX_OUTPUT_BYTES output_bytes: usize = required(parse::whole(1_024, 1 << 30)), BYTES "16777216";
        /// Maximum size of an uploaded file
        MAX_ARTIFACT_BYTES artifact_bytes: usize = required(parse::whole(1_024, 1 << 30)), BYTES "67108864";
        /// Maximum duration of a request, plus one second for each 64 KiB of its body; long polls and streams are exempt
        REQUEST_TIMEOUT_SECONDS request_timeout: Duration = required(parse::seconds(1, 3_600)), SECONDS "30";
    }

    /// How long leases last, and what tasks wait for.
    pub Work "Workers and tasks" {
        /// How long a lease lasts without a heartbeat, unless the caller sets ttl_seconds
        LEASE_TTL_SECONDS lease_ttl_ms: Ms = required(parse::seconds_in_ms(1, 86_400)), SECONDS "300";
        /// A worker that has not been seen for longer than this is offline
        WORKER_OFFLINE_AFTER_SECONDS worker_offline_after_ms: Ms = required(parse::seconds_in_ms(1, 86_400)), SECONDS "60";
        /// How long a task waits for a free slot on the worker that has its session
        SESSION_WAIT_SECONDS session_wait_ms: Ms = required(parse::seconds_in_ms(0, 86_400)), SECONDS "30";
        /// How long a task waits for a worker that serves its agent_slug by name, before any other worker gets it; 0: not at all
        NAMED_AGENT_WAIT_SECONDS named_agent_wait_ms: Ms = required(parse::seconds_in_ms(0, 86_400)), SECONDS "30";
        /// Longest time limit that a task may set for its runs
        MAX_TIMEOUT_SECONDS max_timeout_sec: i64 = required(parse::whole(1, TIMEOUT_SEC)), SECONDS "86400";
    }

    /// The operator.
    pub Kubernetes "Kubernetes" {
        /// true runs the tasks that are described by LLMTask objects of a Kubernetes cluster
        OPERATOR operator: bool = required(parse::truth), BOOL "false";
        /// Kubernetes namespaces whose objects are served, separated by commas; default: all of the cluster
        OPERATOR_NAMESPACES namespaces: Vec<String> = list(parse::namespaces), NAMES "";
        /// Image of the agents of WorkerPools that name none
        OPERATOR_AGENT_IMAGE agent_image: Option<String> = optional(parse::image), IMAGE "";
        /// URL at which the agents of WorkerPools reach this server; default: PUBLIC_URL
        OPERATOR_AGENT_SERVER agent_server: Option<Url> = optional(parse::http_url), URL "";
        /// Kubernetes namespace of this server, for the leader's Lease; default: that of its service account or kubeconfig
        POD_NAMESPACE pod_namespace: Option<String> = optional(parse::namespace), NAME "";
        /// Name of this server's pod, by which operators elect their leader; default: the host name
        POD_NAME pod_name: Option<String> = optional(parse::pod_name), NAME "";
    }

    /// How the server logs.
    pub(crate) Logs "Logs" {
        /// File that the log is written to instead of standard error; SIGHUP reopens it
        LOG_FILE file: Option<PathBuf> = optional(parse::log_file), FILE "";
        /// Log format: text or json
        LOG_FORMAT format: LogFormat = required(parse::log_format), FORMAT "text";
        /// Log level: error, warn, info, debug, trace or off; also per module, as in info,sqlx=warn
        LOG_LEVEL level: String = required(parse::log_level), LEVEL "info";
    }

    /// The variables of OpenTelemetry.
    pub(crate) TraceVariables "Traces" {
        /// URL of a collector of traces, which accepts OTLP over HTTP at v1/traces below this URL; without it, there are no traces
        OTEL_EXPORTER_OTLP_ENDPOINT endpoint: Option<Url> = optional(parse::otlp_url), URL "";
        /// URL that traces are posted to, as it is, instead of v1/traces below OTEL_EXPORTER_OTLP_ENDPOINT
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT traces_endpoint: Option<Url> = optional(parse::otlp_url), URL "";
        /// Protocol of the collector; no other one is supported
        OTEL_EXPORTER_OTLP_PROTOCOL protocol: () = required(parse::otlp_protocol), NAME "http/protobuf";
        /// Headers for the collector: name=value pairs, separated by commas
        OTEL_EXPORTER_OTLP_HEADERS headers: HeaderMap = list(traces::headers), PAIRS "" secret;
        /// Maximum duration of one call to the collector
        OTEL_EXPORTER_OTLP_TIMEOUT timeout_ms: u64 = required(parse::whole(1, 60_000)), MILLISECONDS "10000";
        /// Name of this program in traces; default: service.name of OTEL_RESOURCE_ATTRIBUTES, else bloom-runtime (bloom-agent for agents)
        OTEL_SERVICE_NAME service_name: Option<String> = optional(parse::service_name), NAME "";
        /// Attributes of this program in traces: name=value pairs, separated by commas
        OTEL_RESOURCE_ATTRIBUTES attributes: Vec<(String, String)> = list(traces::attributes), PAIRS "";
        /// Which traces are recorded: always_on, always_off, traceidratio, or parentbased_ with one of them behind it, for new traces only
        OTEL_TRACES_SAMPLER sampler: String = required(parse::sampler), NAME "parentbased_always_on";
        /// The part of all traces that the samplers with traceidratio record, from 0 to 1
        OTEL_TRACES_SAMPLER_ARG ratio: f64 = required(parse::ratio), RATIO "1";
        /// true turns traces off
        OTEL_SDK_DISABLED is_off: bool = required(parse::truth), BOOL "false";
    }
}
