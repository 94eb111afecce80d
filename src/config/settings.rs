//! The list of all settings, from which flags, environment variables, file keys, `--help` and `config check` are derived.

/// A setting of the server. Its key is the name in the TOML file; the flag and the environment variable are derived from it.
#[derive(Debug)]
pub struct Setting {
    /// The name in the TOML file, in snake case.
    pub key: &'static str,
    /// The placeholder of the value in `--help`.
    pub value_name: &'static str,
    /// The value if none is given; empty = unset, or explained in `help`.
    pub default: &'static str,
    /// The text in `--help`.
    pub help: &'static str,
    /// The heading under which `--help` lists it.
    pub group: &'static str,
    /// Never shown. It may also be read from the file that the setting with the suffix `_file` names.
    pub secret: bool,
}

impl Setting {
    /// `lease_ttl_seconds` → `LEASE_TTL_SECONDS`.
    pub fn env_name(&self) -> String {
        self.key.to_uppercase()
    }

    /// `lease_ttl_seconds` → `lease-ttl-seconds`, without the leading dashes.
    pub fn flag_name(&self) -> String {
        self.key.replace('_', "-")
    }

    /// The key of the setting that names a file with the value; only secrets have one.
    pub fn file_key(&self) -> String {
        format!("{}_file", self.key)
    }
}

const fn plain(group: &'static str, key: &'static str, value_name: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { key, value_name, default, help, group, secret: false }
}

const fn secret(group: &'static str, key: &'static str, value_name: &'static str, help: &'static str) -> Setting {
    Setting { key, value_name, default: "", help, group, secret: true }
}

const NETWORK: &str = "Network";
const DATA: &str = "Data";
const OBJECTS: &str = "Object store";
const KEYS: &str = "Keys";
const CONTROL_PLANE: &str = "Membridge control plane";
const LIMITS: &str = "Limits";
const WORK: &str = "Workers and tasks";
const KUBERNETES: &str = "Kubernetes";
const LOGS: &str = "Logs";
const TRACES: &str = "Traces";

pub(crate) const HOST: Setting =
    plain(NETWORK, "host", "ADDRESS", "127.0.0.1", "Address or host name to listen on; 0.0.0.0 or :: listens on every network");
pub(crate) const PORT: Setting = plain(NETWORK, "port", "PORT", "5000", "Port to listen on; 0 chooses a free port");
pub(crate) const PUBLIC_URL: Setting = plain(
    NETWORK,
    "public_url",
    "URL",
    "",
    "URL at which agents and browsers reach this server, if it differs from the address that clients call",
);
pub(crate) const ALLOWED_HOSTS: Setting = plain(
    NETWORK,
    "allowed_hosts",
    "HOSTS",
    "",
    "Further names and addresses, without port, by which clients may call a server without keys; separated by commas",
);
pub(crate) const TRUSTED_PROXIES: Setting = plain(
    NETWORK,
    "trusted_proxies",
    "NETWORKS",
    "",
    "Proxies whose X-Forwarded-* headers are trusted: addresses or networks, separated by commas",
);

pub(crate) const TLS_CERT_FILE: Setting = plain(
    NETWORK,
    "tls_cert_file",
    "FILE",
    "",
    "PEM file with the server's certificate and those of the authorities between it and the root; with it, the server speaks https",
);
pub(crate) const TLS_KEY_FILE: Setting =
    plain(NETWORK, "tls_key_file", "FILE", "", "PEM file with the private key of the certificate in TLS_CERT_FILE, without a password");
pub(crate) const TLS_CLIENT_CA_FILE: Setting = plain(
    NETWORK,
    "tls_client_ca_file",
    "FILE",
    "",
    "PEM file with the authorities of client certificates: calls of workers then need such a certificate, besides the key",
);

pub(crate) const DATA_DIR: Setting = plain(
    DATA,
    "data_dir",
    "DIR",
    "",
    "Directory of the SQLite database; default: $XDG_DATA_HOME/bloom-runtime, else ~/.local/share/bloom-runtime",
);
pub(crate) const DATABASE_URL: Setting = Setting {
    key: "database_url",
    value_name: "URL",
    default: "",
    help: "sqlite:FILE or postgres://USER:PASSWORD@HOST/DATABASE; default: bloom.db in the data directory",
    group: DATA,
    secret: true,
};
pub(crate) const DATABASE_MAX_CONNECTIONS: Setting = plain(
    DATA,
    "database_max_connections",
    "N",
    "10",
    "Maximum number of database connections for reads of API requests; everything else has its own",
);
pub(crate) const TASK_RETENTION_DAYS: Setting =
    plain(DATA, "task_retention_days", "DAYS", "0", "Days after which finished tasks are removed; 0 keeps them forever");
pub(crate) const AUDIT_RETENTION_DAYS: Setting =
    plain(DATA, "audit_retention_days", "DAYS", "0", "Days after which audit entries are removed; 0 keeps them forever");
pub(crate) const BACKUP_DIR: Setting =
    plain(DATA, "backup_dir", "DIR", "", "Directory for scheduled backups of the SQLite database; without it, the server makes none");
pub(crate) const BACKUP_EVERY_SECONDS: Setting =
    plain(DATA, "backup_every_seconds", "SECONDS", "86400", "Interval of scheduled backups, counted from the newest one in the directory");
pub(crate) const BACKUP_KEEP: Setting =
    plain(DATA, "backup_keep", "N", "7", "Scheduled backups to keep; older ones are removed after a new one");

pub(crate) const MINIO_ENDPOINT: Setting = plain(
    OBJECTS,
    "minio_endpoint",
    "HOST",
    "",
    "Host name, or http or https URL, of MinIO or another store that speaks S3: large outputs and the audit trail go there",
);
pub(crate) const MINIO_PORT: Setting =
    plain(OBJECTS, "minio_port", "PORT", "", "Port of MinIO; default: 9000, or that of the URL in MINIO_ENDPOINT");
pub(crate) const MINIO_USE_SSL: Setting =
    plain(OBJECTS, "minio_use_ssl", "BOOL", "false", "true calls MinIO by https; not needed with an https URL in MINIO_ENDPOINT");
pub(crate) const MINIO_ACCESS_KEY: Setting = secret(OBJECTS, "minio_access_key", "KEY", "Access key of MinIO");
pub(crate) const MINIO_SECRET_KEY: Setting = secret(OBJECTS, "minio_secret_key", "KEY", "Secret key of MinIO");
pub(crate) const MINIO_ARTIFACT_BUCKET: Setting =
    plain(OBJECTS, "minio_artifact_bucket", "BUCKET", "bloom-artifacts", "Bucket of MinIO, for this installation alone");
pub(crate) const AWS_S3_BUCKET: Setting = plain(
    OBJECTS,
    "aws_s3_bucket",
    "BUCKET",
    "",
    "Bucket of Amazon S3, for this installation alone: large outputs and the audit trail go there, instead of to MinIO",
);
pub(crate) const AWS_REGION: Setting = plain(OBJECTS, "aws_region", "REGION", "us-east-1", "Region of the bucket");
pub(crate) const AWS_ACCESS_KEY_ID: Setting = secret(OBJECTS, "aws_access_key_id", "KEY", "Access key of Amazon S3");
pub(crate) const AWS_SECRET_ACCESS_KEY: Setting = secret(OBJECTS, "aws_secret_access_key", "KEY", "Secret key of Amazon S3");
pub(crate) const OBJECT_GRACE_SECONDS: Setting = plain(
    OBJECTS,
    "object_grace_seconds",
    "SECONDS",
    "86400",
    "Objects to which no artifact refers are removed when they are older than this",
);

pub(crate) const RUNTIME_API_KEY: Setting =
    secret(KEYS, "runtime_api_key", "KEY", "Key that allows everything; without any key, authentication is off");
pub(crate) const RUNTIME_WORKER_KEY: Setting = secret(
    KEYS,
    "runtime_worker_key",
    "KEY",
    "Key for workers; it allows register, claim, heartbeat, events, questions, complete and release",
);
pub(crate) const RUNTIME_READ_KEY: Setting = secret(KEYS, "runtime_read_key", "KEY", "Key that allows reading only");
pub(crate) const ALLOW_NO_KEY: Setting = plain(
    KEYS,
    "allow_no_key",
    "BOOL",
    "false",
    "true lets a server without any key listen beyond loopback: everybody who reaches it may do everything",
);

pub(crate) const MEMBRIDGE_SERVER_URL: Setting = plain(
    CONTROL_PLANE,
    "membridge_server_url",
    "URL",
    "",
    "http or https URL of the control plane: requests are proxied to it, workers are read from it",
);
pub(crate) const MEMBRIDGE_ADMIN_KEY: Setting =
    secret(CONTROL_PLANE, "membridge_admin_key", "KEY", "Key for the control plane, sent as X-MEMBRIDGE-ADMIN");
pub(crate) const MEMBRIDGE_AGENT_KEY: Setting =
    secret(CONTROL_PLANE, "membridge_agent_key", "KEY", "Key for calls to agents, sent as X-MEMBRIDGE-AGENT");
pub(crate) const WORKER_SYNC_SECONDS: Setting =
    plain(CONTROL_PLANE, "worker_sync_seconds", "SECONDS", "10", "Interval at which the control plane's list of agents is read");

pub(crate) const WITH_MEMBRIDGE: Setting = plain(
    CONTROL_PLANE,
    "with_membridge",
    "BOOL",
    "false",
    "true runs a control plane in the server, which is then the one that the server uses: MEMBRIDGE_SERVER_URL stays unset",
);
pub(crate) const MEMBRIDGE_HOST: Setting = plain(
    CONTROL_PLANE,
    "membridge_host",
    "ADDRESS",
    "127.0.0.1",
    "Address or host name on which this program's own control plane listens; beyond loopback it needs MEMBRIDGE_ADMIN_KEY",
);
pub(crate) const MEMBRIDGE_PORT: Setting =
    plain(CONTROL_PLANE, "membridge_port", "PORT", "8000", "Port of this program's own control plane; 0 chooses a free port");
pub(crate) const MEMBRIDGE_DATABASE_URL: Setting = Setting {
    key: "membridge_database_url",
    value_name: "URL",
    default: "",
    help: "Database of `bloom-runtime membridge`, as DATABASE_URL; default: membridge.db in the data directory",
    group: CONTROL_PLANE,
    secret: true,
};

pub(crate) const RATE_LIMIT_PER_MINUTE: Setting =
    plain(LIMITS, "rate_limit_per_minute", "N", "100", "API requests per minute from one client address; 0 = no limit");
pub(crate) const TEST_CONNECTION_PER_MINUTE: Setting =
    plain(LIMITS, "test_connection_per_minute", "N", "20", "Connection tests per minute from one client address; 0 = no limit");
pub(crate) const WORKER_RATE_LIMIT_PER_MINUTE: Setting = plain(
    LIMITS,
    "worker_rate_limit_per_minute",
    "N",
    "6000",
    "Requests of workers per minute from one client address, and as many for events of runs; 0 = no limit",
);
pub(crate) const MAX_BODY_BYTES: Setting =
    plain(LIMITS, "max_body_bytes", "BYTES", "1048576", "Maximum size of a request body, not counting a task's output");
pub(crate) const MAX_OUTPUT_BYTES: Setting = plain(LIMITS, "max_output_bytes", "BYTES", "16777216", "Maximum size of a task's output");
pub(crate) const MAX_ARTIFACT_BYTES: Setting = plain(LIMITS, "max_artifact_bytes", "BYTES", "67108864", "Maximum size of an uploaded file");
pub(crate) const REQUEST_TIMEOUT_SECONDS: Setting = plain(
    LIMITS,
    "request_timeout_seconds",
    "SECONDS",
    "30",
    "Maximum duration of a request, and one second more for each 64 KiB of its body; long polls and streams are exempt",
);

pub(crate) const LEASE_TTL_SECONDS: Setting =
    plain(WORK, "lease_ttl_seconds", "SECONDS", "300", "How long a lease lasts without a heartbeat, unless the caller sets ttl_seconds");
pub(crate) const WORKER_OFFLINE_AFTER_SECONDS: Setting =
    plain(WORK, "worker_offline_after_seconds", "SECONDS", "60", "A worker that has not been seen for longer than this is offline");
pub(crate) const SESSION_WAIT_SECONDS: Setting =
    plain(WORK, "session_wait_seconds", "SECONDS", "30", "How long a task waits for a free slot on the worker that has its session");
pub(crate) const NAMED_AGENT_WAIT_SECONDS: Setting =
    plain(WORK, "named_agent_wait_seconds", "SECONDS", "30", "How long a task waits for workers that name its agent_slug; 0: not at all");

pub(crate) const MAX_TIMEOUT_SECONDS: Setting =
    plain(WORK, "max_timeout_seconds", "SECONDS", "86400", "Longest time limit that a task may set for its runs");

pub(crate) const OPERATOR: Setting =
    plain(KUBERNETES, "operator", "BOOL", "false", "true runs the tasks that are described by LLMTask objects of a Kubernetes cluster");
pub(crate) const OPERATOR_NAMESPACES: Setting = plain(
    KUBERNETES,
    "operator_namespaces",
    "NAMES",
    "",
    "Kubernetes namespaces whose objects are served, separated by commas; default: all of the cluster",
);
pub(crate) const OPERATOR_AGENT_IMAGE: Setting =
    plain(KUBERNETES, "operator_agent_image", "IMAGE", "", "Image of the agents of WorkerPools that name none");
pub(crate) const OPERATOR_AGENT_SERVER: Setting =
    plain(KUBERNETES, "operator_agent_server", "URL", "", "URL at which the agents of WorkerPools reach this server; default: PUBLIC_URL");
pub(crate) const POD_NAMESPACE: Setting = plain(
    KUBERNETES,
    "pod_namespace",
    "NAME",
    "",
    "Kubernetes namespace of this server, for the leader's Lease; default: that of its service account or kubeconfig",
);
pub(crate) const POD_NAME: Setting =
    plain(KUBERNETES, "pod_name", "NAME", "", "Name of this server's pod, by which operators elect their leader; default: the host name");

pub(crate) const LOG_FILE: Setting =
    plain(LOGS, "log_file", "FILE", "", "File that the log is written to instead of standard error; SIGHUP opens it anew");
pub(crate) const LOG_FORMAT: Setting = plain(LOGS, "log_format", "FORMAT", "text", "Log format: text or json");
pub(crate) const LOG_LEVEL: Setting =
    plain(LOGS, "log_level", "LEVEL", "info", "Log level: error, warn, info, debug, trace or off; also per module, as in info,sqlx=warn");

pub(crate) const OTEL_EXPORTER_OTLP_ENDPOINT: Setting = plain(
    TRACES,
    "otel_exporter_otlp_endpoint",
    "URL",
    "",
    "URL of a collector of traces, which takes OTLP over HTTP at v1/traces below it; without it, there are no traces",
);
pub(crate) const OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: Setting = plain(
    TRACES,
    "otel_exporter_otlp_traces_endpoint",
    "URL",
    "",
    "URL that traces are posted to, as it is, instead of v1/traces below OTEL_EXPORTER_OTLP_ENDPOINT",
);
pub(crate) const OTEL_EXPORTER_OTLP_PROTOCOL: Setting =
    plain(TRACES, "otel_exporter_otlp_protocol", "NAME", "http/protobuf", "Protocol of the collector; there is no other one");
pub(crate) const OTEL_EXPORTER_OTLP_HEADERS: Setting =
    secret(TRACES, "otel_exporter_otlp_headers", "PAIRS", "Headers for the collector: name=value pairs, separated by commas");
pub(crate) const OTEL_EXPORTER_OTLP_TIMEOUT: Setting =
    plain(TRACES, "otel_exporter_otlp_timeout", "MILLISECONDS", "10000", "Maximum duration of one call of the collector");
pub(crate) const OTEL_SERVICE_NAME: Setting = plain(
    TRACES,
    "otel_service_name",
    "NAME",
    "",
    "Name of this program in traces; default: service.name of OTEL_RESOURCE_ATTRIBUTES, else bloom-runtime (bloom-agent for agents)",
);
pub(crate) const OTEL_RESOURCE_ATTRIBUTES: Setting =
    plain(TRACES, "otel_resource_attributes", "PAIRS", "", "Attributes of this program in traces: name=value pairs, separated by commas");
pub(crate) const OTEL_TRACES_SAMPLER: Setting = plain(
    TRACES,
    "otel_traces_sampler",
    "NAME",
    "parentbased_always_on",
    "Which traces are recorded: always_on, always_off, traceidratio, or parentbased_ with one of them behind it, for new traces only",
);
pub(crate) const OTEL_TRACES_SAMPLER_ARG: Setting = plain(
    TRACES,
    "otel_traces_sampler_arg",
    "RATIO",
    "1",
    "The part of all traces that the samplers with traceidratio record, from 0 to 1",
);
pub(crate) const OTEL_SDK_DISABLED: Setting = plain(TRACES, "otel_sdk_disabled", "BOOL", "false", "true turns traces off");

/// All settings, in the order of `--help` and `config check`.
pub const SETTINGS: &[&Setting] = &[
    &HOST,
    &PORT,
    &PUBLIC_URL,
    &ALLOWED_HOSTS,
    &TRUSTED_PROXIES,
    &TLS_CERT_FILE,
    &TLS_KEY_FILE,
    &TLS_CLIENT_CA_FILE,
    &DATA_DIR,
    &DATABASE_URL,
    &DATABASE_MAX_CONNECTIONS,
    &TASK_RETENTION_DAYS,
    &AUDIT_RETENTION_DAYS,
    &BACKUP_DIR,
    &BACKUP_EVERY_SECONDS,
    &BACKUP_KEEP,
    &MINIO_ENDPOINT,
    &MINIO_PORT,
    &MINIO_USE_SSL,
    &MINIO_ACCESS_KEY,
    &MINIO_SECRET_KEY,
    &MINIO_ARTIFACT_BUCKET,
    &AWS_S3_BUCKET,
    &AWS_REGION,
    &AWS_ACCESS_KEY_ID,
    &AWS_SECRET_ACCESS_KEY,
    &OBJECT_GRACE_SECONDS,
    &RUNTIME_API_KEY,
    &RUNTIME_WORKER_KEY,
    &RUNTIME_READ_KEY,
    &ALLOW_NO_KEY,
    &MEMBRIDGE_SERVER_URL,
    &MEMBRIDGE_ADMIN_KEY,
    &MEMBRIDGE_AGENT_KEY,
    &WORKER_SYNC_SECONDS,
    &WITH_MEMBRIDGE,
    &MEMBRIDGE_HOST,
    &MEMBRIDGE_PORT,
    &MEMBRIDGE_DATABASE_URL,
    &RATE_LIMIT_PER_MINUTE,
    &TEST_CONNECTION_PER_MINUTE,
    &WORKER_RATE_LIMIT_PER_MINUTE,
    &MAX_BODY_BYTES,
    &MAX_OUTPUT_BYTES,
    &MAX_ARTIFACT_BYTES,
    &REQUEST_TIMEOUT_SECONDS,
    &LEASE_TTL_SECONDS,
    &WORKER_OFFLINE_AFTER_SECONDS,
    &SESSION_WAIT_SECONDS,
    &NAMED_AGENT_WAIT_SECONDS,
    &MAX_TIMEOUT_SECONDS,
    &OPERATOR,
    &OPERATOR_NAMESPACES,
    &OPERATOR_AGENT_IMAGE,
    &OPERATOR_AGENT_SERVER,
    &POD_NAMESPACE,
    &POD_NAME,
    &LOG_FILE,
    &LOG_FORMAT,
    &LOG_LEVEL,
    &OTEL_EXPORTER_OTLP_ENDPOINT,
    &OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    &OTEL_EXPORTER_OTLP_PROTOCOL,
    &OTEL_EXPORTER_OTLP_HEADERS,
    &OTEL_EXPORTER_OTLP_TIMEOUT,
    &OTEL_SERVICE_NAME,
    &OTEL_RESOURCE_ATTRIBUTES,
    &OTEL_TRACES_SAMPLER,
    &OTEL_TRACES_SAMPLER_ARG,
    &OTEL_SDK_DISABLED,
];
