//! Watches of the cluster's objects.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::health::Health;

/// The wait after an error, such as the end of the connection. It does not grow, because an API server that was restarted must be watched
/// again soon.
const RESTART_AFTER: Duration = Duration::from_secs(2);

/// A watch is restarted after this time, so that one that has become silent, for example behind a proxy, does not stay unnoticed.
const SECONDS: u32 = 60;

struct Steady;

impl Iterator for Steady {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(RESTART_AFTER)
    }
}

impl Backoff for Steady {
    fn reset(&mut self) {}
}

/// Watches objects forever. Errors are reported only to `health`, because a controller would pause everything that it follows after an
/// error of one watch.
pub(crate) fn watch<K>(
    objects: Api<K>,
    config: watcher::Config,
    resource: &'static str,
    health: Health,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(objects, config.timeout(SECONDS))
        .inspect(move |event| health.watched(resource, event))
        .backoff(Steady)
        .filter(|event| std::future::ready(event.is_ok()))
}
