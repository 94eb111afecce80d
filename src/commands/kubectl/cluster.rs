//! Calls of kubectl.

use std::io::ErrorKind;
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use super::super::term;
use super::object::Object;
use crate::CommandError;

/// The limit of a call to the cluster, as kubectl takes it.
const CALL_LIMIT: &str = "--request-timeout=30s";
/// How often an object is read until the server has accepted it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After this time without a word from the server, the user is told what may be missing.
const SILENT_FOR: Duration = Duration::from_secs(10);

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// The namespace of the LLMTask [default: that of the current context of kubectl]
    #[arg(short, long, global = true, value_name = "NAME")]
    namespace: Option<String>,
    /// The context of the kubeconfig; --context is the conversation of a task [default: the current one]
    #[arg(long, global = true, value_name = "NAME")]
    kube_context: Option<String>,
    /// The kubeconfig [default: as kubectl]
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<String>,
}

/// The cluster that kubectl calls.
pub struct Cluster {
    connection: Vec<String>,
    namespace: Vec<String>,
}

impl Cluster {
    pub fn new(args: &ClusterArgs) -> Self {
        // A value of its own in each argument, so that it is never taken for a flag.
        let flag = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("--{name}={value}"));
        let connection = [flag("context", &args.kube_context), flag("kubeconfig", &args.kubeconfig)];
        Self { connection: connection.into_iter().flatten().collect(), namespace: flag("namespace", &args.namespace).into_iter().collect() }
    }

    /// kubectl with these arguments, in the cluster of this command.
    pub fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        // Before the arguments, which may end with a name after `--`.
        command.args(&self.connection).args(arguments).kill_on_drop(true);
        command
    }

    /// Creates the object, and returns it as the cluster has it.
    pub async fn create(&self, object: &Object) -> Result<Value, CommandError> {
        self.call_in_namespace(&["create", "-f", "-"], Some(&object.0)).await
    }

    /// The id of the task of this LLMTask. With a limit, which may be none, waits until the server has accepted it, and says why it did not.
    pub async fn task_id(&self, name: &str, limit: Option<Option<Duration>>) -> Result<String, CommandError> {
        let started = Instant::now();
        let mut told = String::new();
        loop {
            let object = self.call_in_namespace(&["get", "llmtasks.bloom-runtime.dev", "--", name], None).await?;
            let status = &object["status"];
            if let Some(id) = status["taskId"].as_str() {
                return Ok(id.to_owned());
            }
            let why = match status["message"].as_str() {
                Some(message) => term::line(message),
                None if limit.is_some() && started.elapsed() < SILENT_FOR => String::new(),
                None => "no server has taken it yet: does one run with OPERATOR=true, and serve this namespace?".to_owned(),
            };
            let Some(limit) = limit else {
                return Err(format!("the LLMTask {name} has no task yet: {why}").into());
            };
            if limit.is_some_and(|limit| started.elapsed() >= limit) {
                return Err(CommandError::too_late(format!("the LLMTask {name} has no task yet: {why}")));
            }
            if why != told {
                term::info(&format!("LLMTask {name}: {why}"));
                told = why;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    async fn call_in_namespace(&self, arguments: &[&str], input: Option<&Value>) -> Result<Value, CommandError> {
        let namespace: Vec<&str> = self.namespace.iter().map(String::as_str).collect();
        self.call(&[&namespace, arguments].concat(), input).await
    }

    /// Calls kubectl, and returns the object that it prints.
    pub async fn call(&self, arguments: &[&str], input: Option<&Value>) -> Result<Value, CommandError> {
        let mut command = self.kubectl(&[&["--output=json", CALL_LIMIT], arguments].concat());
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() }).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| not_started(&error))?;
        if let (Some(mut to), Some(input)) = (child.stdin.take(), input) {
            // If kubectl does not read it, it says why.
            let _ = to.write_all(input.to_string().as_bytes()).await;
        }
        let output = child.wait_with_output().await.map_err(|error| format!("kubectl: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned().into());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("kubectl printed no JSON: {error}").into())
    }
}

pub fn not_started(error: &std::io::Error) -> CommandError {
    if error.kind() == ErrorKind::NotFound {
        return "kubectl was not found: install it, or add its directory to PATH".to_owned().into();
    }
    format!("kubectl can't be started: {error}").into()
}

/// The name of an object.
pub fn name_of(object: &Value) -> Result<String, CommandError> {
    let name = object["metadata"]["name"].as_str().map(str::to_owned);
    name.ok_or_else(|| "kubectl printed an object without a name".to_owned().into())
}
