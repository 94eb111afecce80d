//! The way to the writers: an inbox for each, and answers that come after the commit.

use std::sync::Arc;

use bloom_core::command::{Command, Op, Operation};
use bloom_database::{Done, Maintenance};
use tokio::sync::oneshot;

use super::Error;
use super::inbox::{Inbox, Pending};

pub struct Writers {
    /// Commands that place leases or set up workers, and all others; where the database is not shared both are one.
    pub(super) placement: Arc<Inbox>,
    pub(super) ledger: Arc<Inbox>,
}

impl Writers {
    pub(super) fn new(is_shared: bool) -> Self {
        let ledger = Arc::new(Inbox::default());
        let placement = if is_shared { Arc::default() } else { ledger.clone() };
        Self { placement, ledger }
    }

    /// Carries one command out; returns after its commit.
    ///
    /// # Errors
    /// [`Error`] says why it was not carried out.
    pub async fn submit<O: Operation + Into<Op>>(&self, command: impl Into<Command<O>>) -> Result<O::Reply, Error> {
        let mut replies = self.submit_all(vec![command.into()]).await;
        replies.pop().unwrap_or(Err(Error::Internal))
    }

    /// Carries commands out, each on its own, in one commit where they fit into one batch.
    pub async fn submit_all<O: Operation + Into<Op>>(&self, commands: Vec<Command<O>>) -> Vec<Result<O::Reply, Error>> {
        let mut answers = Vec::with_capacity(commands.len());
        let mut ledger = Vec::new();
        let mut placement = Vec::new();
        for command in commands {
            let (reply, answer) = oneshot::channel();
            answers.push(answer);
            let inbox = if command.op.is_placement() { &mut placement } else { &mut ledger };
            inbox.push(Pending::new(command.into_any(), reply));
        }
        // Refused commands drop their reply channels; what that means stands here.
        let refused = [self.ledger.push(ledger), self.placement.push(placement)].into_iter().find_map(Result::err);
        let mut replies = Vec::with_capacity(answers.len());
        for answer in answers {
            let reply = answer.await.unwrap_or_else(|_| Err(refused.clone().unwrap_or(Error::Unavailable)));
            // An operation's reply is of its own type, so this never fails.
            replies.push(reply.and_then(|reply| reply.try_into().map_err(|_| Error::Internal)));
        }
        replies
    }

    /// Has a maintenance job done between two batches.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when it failed: it is to be asked for again.
    pub async fn maintain(&self, job: Maintenance) -> Result<Done, Error> {
        let (reply, answer) = oneshot::channel();
        self.ledger.push_maintenance(job, reply)?;
        answer.await.unwrap_or(Err(Error::Unavailable))
    }

    /// What was taken in is carried out; nothing more is taken in.
    pub(super) fn close(&self) {
        self.placement.close();
        self.ledger.close();
    }
}
