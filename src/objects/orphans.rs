//! Removes objects to which no artifact refers, because their completion or upload did not commit, or because their task was removed.

use std::collections::HashSet;

use bloom_core::Ms;
use bloom_engine::Error;
use bloom_reconcile::ReconcileContext;
use bloom_store::Store;
use object_store::ObjectMeta;
use object_store::path::Path;
use uuid::Uuid;

use super::Objects;
use super::client::Prefix;

/// The beginning of a page in the lists of objects. The list of outputs comes first, then the list of files.
pub(crate) struct Page {
    prefix: Prefix,
    after: Option<Path>,
}

impl Page {
    pub(crate) fn first() -> Self {
        Self { prefix: Prefix::Outputs, after: None }
    }
}

/// Removes the orphans in one page of the list of objects. Returns where the next page begins; `None` if the end of the list was reached,
/// or the list could not be read.
pub(crate) async fn sweep(context: &ReconcileContext, store: &Store, objects: &Objects, from: Page) -> Result<Option<Page>, Error> {
    let now = context.engine.clock.now();
    let Page { prefix, after } = from;
    let page = match objects.listed(prefix, after.as_ref()).await {
        Ok(page) => page,
        Err(failure) => {
            tracing::warn!(failure = failure.text, "the objects could not be listed; it will be retried");
            context.progress.failed(&failure.text);
            return Ok(None);
        }
    };
    let is_old = |(artifact, object): &(Uuid, &ObjectMeta)| now.saturating_sub(made_at(*artifact, object)) > objects.grace_ms();
    let old: Vec<(Uuid, &ObjectMeta)> = page.iter().filter_map(|object| named(prefix, object)).filter(is_old).collect();
    let ids: Vec<Uuid> = old.iter().map(|(id, _)| *id).collect();
    let known = match prefix {
        Prefix::Outputs => store.existing_artifacts(&ids).await,
        Prefix::Files => store.existing_files(&ids).await,
    };
    let known: HashSet<Uuid> = known.map_err(super::unreadable)?.into_iter().collect();
    let mut removed = 0;
    for (_, object) in old.iter().filter(|(id, _)| !known.contains(id)) {
        if let Err(failure) = objects.remove(&object.location).await {
            tracing::warn!(failure = failure.text, "an object without an artifact could not be removed; it will be retried");
            context.progress.failed(&failure.text);
            break;
        }
        removed += 1;
    }
    objects.metrics().objects().removed(removed);
    context.progress.add(removed as u64);
    if removed > 0 {
        tracing::info!(removed, "objects without an artifact were removed");
    }
    let last = page.last().filter(|_| page.len() >= super::client::LISTED);
    Ok(match last {
        Some(last) => Some(Page { prefix, after: Some(last.location.clone()) }),
        None => Some(Page { prefix: Prefix::Files, after: None }).filter(|_| prefix == Prefix::Outputs),
    })
}

/// When the artifact was made, by the database's clock, which also decides how long a completion may refer to the object. Ids of imported
/// artifacts contain no time, so the time of the object is used.
fn made_at(artifact: Uuid, object: &ObjectMeta) -> Ms {
    let of_id = artifact.get_timestamp().and_then(|at| Ms::try_from(at.to_unix().0 * 1_000).ok());
    of_id.unwrap_or_else(|| object.last_modified.timestamp_millis())
}

/// The artifact that the key of the object names. Objects with other keys do not belong to this program.
fn named(prefix: Prefix, object: &ObjectMeta) -> Option<(Uuid, &ObjectMeta)> {
    let mut parts = object.location.as_ref().split('/').skip(1);
    if prefix == Prefix::Outputs {
        Uuid::parse_str(parts.next()?).ok()?;
    }
    let (artifact, end) = (parts.next()?, parts.next());
    Some((Uuid::parse_str(artifact).ok()?, object)).filter(|_| end.is_none())
}
