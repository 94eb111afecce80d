//! Calls of kubectl.

use std::io::ErrorKind;
use std::process::Stdio;

use clap::Args;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::object::Object;
use crate::CommandError;

/// The limit of a call to the cluster, as kubectl takes it.
const CALL_LIMIT: &str = "--request-timeout=30s";

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// The namespace of the LLMTask [default: that of the current context of kubectl]
    #[arg(short, long, global = true, value_name = "NAME")]
    namespace: Option<String>,
    /// The context of the kubeconfig; --context is the conversation of a task [default: the current one]
    #[arg(long, global = true, value_name = "NAME")]
    kube_context: Option<String>,
    /// The kubeconfig [default: the one that kubectl uses]
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<String>,
}

/// The cluster that kubectl calls.
pub(crate) struct Cluster {
    args: ClusterArgs,
}

/// A value of its own in each argument, so that it is never taken for a flag.
fn flag(name: &str, value: Option<&String>) -> Option<String> {
    value.map(|value| format!("--{name}={value}"))
}

impl Cluster {
    pub(crate) fn new(args: ClusterArgs) -> Self {
        Self { args }
    }

    /// The flags that name the cluster; the plugin and kubectl have different ones for the context.
    fn connection(&self, context: &str) -> impl Iterator<Item = String> {
        [flag(context, self.args.kube_context.as_ref()), flag("kubeconfig", self.args.kubeconfig.as_ref())].into_iter().flatten()
    }

    fn namespace(&self) -> Option<String> {
        flag("namespace", self.args.namespace.as_ref())
    }

    /// The flags with which a command of kubectl concerns the same objects, each after a space.
    pub(crate) fn flags_of_kubectl(&self) -> String {
        self.connection("context").chain(self.namespace()).map(|flag| format!(" {flag}")).collect()
    }

    /// The same for a command of the plugin.
    pub(crate) fn flags_of_plugin(&self) -> String {
        self.connection("kube-context").chain(self.namespace()).map(|flag| format!(" {flag}")).collect()
    }

    /// kubectl with these arguments, in the cluster of this command.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        // The connection flags come first, because the arguments may end with a name after `--`.
        command.args(self.connection("context")).args(arguments).kill_on_drop(true);
        command
    }

    /// Creates the object, and returns it as the cluster has it.
    pub(crate) async fn create(&self, object: &Object) -> Result<Value, CommandError> {
        self.call_in_namespace(&["create", "-f", "-"], Some(&object.0)).await
    }

    pub(crate) async fn llmtask(&self, name: &str) -> Result<Value, CommandError> {
        self.call_in_namespace(&["get", "llmtasks.bloom-runtime.dev", "--", name], None).await
    }

    async fn call_in_namespace(&self, arguments: &[&str], input: Option<&Value>) -> Result<Value, CommandError> {
        let namespace = self.namespace();
        let namespace: Vec<&str> = namespace.iter().map(String::as_str).collect();
        self.call(&[&namespace, arguments].concat(), input).await
    }

    /// Calls kubectl, and returns the object that it prints.
    pub(crate) async fn call(&self, arguments: &[&str], input: Option<&Value>) -> Result<Value, CommandError> {
        let mut command = self.kubectl(&[&["--output=json", CALL_LIMIT], arguments].concat());
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() }).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| not_started(&error))?;
        if let (Some(mut to), Some(input)) = (child.stdin.take(), input) {
            // If kubectl does not read its input, its own error says why.
            let _ = to.write_all(input.to_string().as_bytes()).await;
        }
        let output = child.wait_with_output().await.map_err(|error| format!("kubectl: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned().into());
        }
        serde_json::from_slice(&output.stdout).map_err(|error| format!("kubectl printed no JSON: {error}").into())
    }
}

pub(crate) fn not_started(error: &std::io::Error) -> CommandError {
    if error.kind() == ErrorKind::NotFound {
        return "kubectl was not found: install it, or add its directory to PATH".to_owned().into();
    }
    format!("kubectl can't be started: {error}").into()
}

/// The name of an object.
pub(crate) fn name_of(object: &Value) -> Result<String, CommandError> {
    let name = object["metadata"]["name"].as_str().map(str::to_owned);
    name.ok_or_else(|| "kubectl printed an object without a name".to_owned().into())
}
