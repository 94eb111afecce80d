//! `task delete`: removes finished tasks.

use super::selection::{Act, Changed};
use crate::CommandError;
use crate::ids::path;
use crate::server_calls::Server;
use crate::term;
use bloom_core::task::Status;

const DELETE: Act = Act {
    verb: "delete",
    done: "deleted",
    statuses: &[Status::Completed, Status::Failed, Status::Dead, Status::Cancelled],
    fits: |_| true,
    usual: "completed",
};

/// # Errors
/// A task could not be deleted. The others were deleted.
pub(crate) async fn run(args: Changed, server: &Server) -> Result<(), CommandError> {
    let Some(chosen) = args.chosen(&DELETE, true, server).await? else { return Ok(()) };
    let is_told = !chosen.is_by_filter;
    let delete = |id| async move {
        let deleted = server.delete(&path(id, "")).await?;
        if is_told {
            term::info(&format!("task {id} is deleted"));
        }
        Ok(deleted)
    };
    chosen.change(&DELETE, delete).await?.1
}
