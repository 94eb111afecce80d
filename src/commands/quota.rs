//! What to do when the quota of the key of a call is used up.

use super::server_calls::Server;
use crate::CommandError;
use bloom_core::command::{QUOTA_IS, QUOTA_LATER};

/// The limits as the refusals name them, and the flags that set them.
const LIMITS: [(&str, &str); 3] =
    [("open tasks", "--max-open-tasks N"), ("tasks a minute", "--max-tasks-per-minute N"), ("stored bytes", "--max-stored-mib MIB")];

/// Whether the call was refused for want of quota.
pub(crate) fn is_refusal(failure: &CommandError) -> bool {
    failure.message.contains(QUOTA_IS)
}

/// Whether there may be room for a smaller call.
pub(crate) fn has_room_for_less(failure: &CommandError) -> bool {
    is_refusal(failure) && !failure.message.contains(QUOTA_LATER)
}

/// Adds to a refusal for want of quota how to see what is used, and how to change the limit.
pub(crate) async fn with_what_to_do(failure: CommandError, server: &Server) -> CommandError {
    if !is_refusal(&failure) {
        return failure;
    }
    // The name is needed only for this hint, so an error about it is not reported.
    let caller = server.get("api/runtime/whoami").await.unwrap_or_default();
    let name = caller["key"]["name"].as_str().unwrap_or("NAME");
    let limit = LIMITS.into_iter().find(|(text, _)| failure.message.contains(text)).map_or("--help", |(_, flag)| flag);
    let message = format!(
        "{}\nWhat is used: bloom-runtime key whoami. An administrator sets another limit: bloom-runtime key quota {name} {limit}",
        failure.message
    );
    CommandError { message, ..failure }
}
