//! Submits commands to the writers. Each writer has an inbox, and commands are answered after the commit.

use std::sync::Arc;

use bloom_core::command::{Command, Op, Operation};
use bloom_database::{Done, Maintenance};
use tokio::sync::oneshot;

use super::Error;
use super::inbox::{Inbox, Pending};

/// The inboxes of the writers. Commands are executed in batches.
pub struct Writers {
    /// For commands that place leases or set up workers. If the database is not shared, it is the same inbox as `general`.
    pub(super) placement: Arc<Inbox>,
    pub(super) general: Arc<Inbox>,
}

impl Writers {
    pub(super) fn new(is_shared: bool) -> Self {
        let general = Arc::new(Inbox::default());
        let placement = if is_shared { Arc::default() } else { general.clone() };
        Self { placement, general }
    }

    /// Executes one command. Returns after its commit.
    ///
    /// # Errors
    /// [`Error`] says why the command was not executed.
    pub async fn submit<O: Operation + Into<Op>>(&self, command: impl Into<Command<O>>) -> Result<O::Reply, Error> {
        let mut replies = self.submit_all(vec![command.into()]).await;
        replies.pop().unwrap_or(Err(Error::Internal))
    }

    /// Executes commands independently of each other, in one commit if they fit into one batch.
    pub async fn submit_all<O: Operation + Into<Op>>(&self, commands: Vec<Command<O>>) -> Vec<Result<O::Reply, Error>> {
        let mut answers = Vec::with_capacity(commands.len());
        let mut general = Vec::new();
        let mut placement = Vec::new();
        for command in commands {
            let (reply, answer) = oneshot::channel();
            answers.push(answer);
            let inbox = if command.op.is_placement() { &mut placement } else { &mut general };
            inbox.push(Pending::new(command.into_any(), reply));
        }
        // A refused command drops its reply channel, so the reason is kept here.
        let refused = [self.general.push(general), self.placement.push(placement)].into_iter().find_map(Result::err);
        let mut replies = Vec::with_capacity(answers.len());
        for answer in answers {
            let reply = answer.await.unwrap_or_else(|_| Err(refused.clone().unwrap_or(Error::Unavailable)));
            // Each operation has its own reply type, so this never fails.
            replies.push(reply.and_then(|reply| reply.try_into().map_err(|_| Error::Internal)));
        }
        replies
    }

    /// Runs a maintenance job between two batches.
    ///
    /// # Errors
    /// If the job was not done. The caller tries again later.
    pub async fn maintain(&self, job: Maintenance) -> Result<Done, Error> {
        let (reply, answer) = oneshot::channel();
        self.general.push_maintenance(job, reply)?;
        answer.await.unwrap_or(Err(Error::Unavailable))
    }

    /// Refuses new commands. Commands that were already accepted are still executed.
    pub(super) fn close(&self) {
        self.placement.close();
        self.general.close();
    }
}
