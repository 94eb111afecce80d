//! The commands that messages recommend to users of the plugin.

use super::cluster::Cluster;
use crate::CommandError;
use crate::task::wait::WHAT_TO_DO;

/// The commands with which a user can continue with an LLMTask.
pub(crate) struct Advice {
    name: String,
    /// The flags of the plugin and of kubectl that select the same cluster and namespace again.
    of_plugin: String,
    of_kubectl: String,
}

impl Advice {
    pub(crate) fn new(cluster: &Cluster, name: &str) -> Self {
        Self { name: name.to_owned(), of_plugin: cluster.flags_of_plugin(), of_kubectl: cluster.flags_of_kubectl() }
    }

    pub(crate) fn follow(&self) -> String {
        format!("kubectl bloom logs -f {}{}", self.name, self.of_plugin)
    }

    /// Commands of `task`, each with the command that does the same in the cluster.
    fn commands(&self) -> [(&'static str, String); 4] {
        let Self { name, of_plugin, of_kubectl } = self;
        [
            ("describe", format!("kubectl describe lt/{name}{of_kubectl}")),
            ("wait", self.follow()),
            ("result", format!("kubectl bloom result {name}{of_plugin}")),
            ("cancel", format!("kubectl patch lt/{name}{of_kubectl} --type=merge -p '{{\"spec\":{{\"cancel\":true}}}}'")),
        ]
    }

    /// Code that is shared with the command line recommends its commands, with the id of the task. They are replaced by the corresponding
    /// commands of kubectl.
    pub(crate) fn translated(&self, id: &str, failure: CommandError) -> CommandError {
        let replaced = |message: String, (verb, own): &(&str, String)| message.replace(&format!("bloom-runtime task {verb} {id}"), own);
        // The command line can't retry the task of an object, so this advice is left out.
        let message = failure.message.split(WHAT_TO_DO).next().unwrap_or_default().to_owned();
        CommandError { message: self.commands().iter().fold(message, replaced), ..failure }
    }

    /// Adds the name of the created LLMTask to a failure. Without it, people would submit the task again.
    pub(crate) fn with_what_was_created(&self, failure: CommandError) -> CommandError {
        let is_told = self.commands().iter().any(|(_, command)| failure.message.contains(command));
        // An empty message means that there is nothing to report.
        if is_told || failure.message.is_empty() {
            return failure;
        }
        let Self { name, of_kubectl, .. } = self;
        let told = format!("The LLMTask {name} was created.\nIts status: kubectl get lt {name}{of_kubectl}\nIts output: {}", self.follow());
        CommandError { message: format!("{}\n{told}", failure.message), ..failure }
    }
}
