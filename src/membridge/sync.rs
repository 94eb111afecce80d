//! Takes over the control plane's list of workers, and applies settings that another replica stored.

use secrecy::SecretString;
use tokio::sync::broadcast::error::RecvError;

use super::Membridge;
use bloom_core::decide::{MEMBRIDGE_ADMIN_KEY, MEMBRIDGE_SERVER_URL};
use bloom_engine::{Engine, Error};
use bloom_reconcile::{PAGE, ReconcileContext};
use bloom_store::{self as store, Store};

/// Registers the workers that the control plane lists. A worker that it no longer lists goes offline because it is not seen any more.
pub async fn workers(context: ReconcileContext, membridge: Membridge) {
    let pause = context.options.worker_sync_ms;
    context.every("membridge_sync", pause, |context| take_over(context, membridge.clone())).await;
}

async fn take_over(context: ReconcileContext, membridge: Membridge) -> Result<(), String> {
    if !membridge.is_configured() {
        return Ok(());
    }
    let listed = membridge.agents().await.map_err(|error| {
        tracing::warn!(error, "the workers of the control plane could not be listed");
        error
    })?;
    for page in listed.chunks(PAGE) {
        let Some(outcomes) = context.try_led(page.iter().cloned()).await else { return Ok(()) };
        context.progress.add(outcomes.len() as u64);
        for (change, outcome) in page.iter().zip(outcomes) {
            match outcome {
                // One that can't be taken over must not affect the others.
                Err(Error::Rejected(rejection)) => {
                    tracing::warn!(worker = change.id, %rejection, "an agent that the control plane lists was not taken over");
                }
                outcome => drop(outcome.map_err(|error| error.to_string())?),
            }
        }
    }
    Ok(())
}

/// Applies stored settings whenever they change.
pub async fn settings(engine: Engine, store: Store, membridge: Membridge) {
    let mut changes = engine.replica.subscribe();
    loop {
        let changed = tokio::select! {
            changed = changes.recv() => changed,
            () = engine.background.stopped() => return,
        };
        match changed {
            Ok(changes) if !changes.settings && !changes.reset => continue,
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
        if let Err(error) = load_settings(&store, &membridge).await {
            tracing::warn!(%error, "stored settings could not be read");
        }
    }
}

/// Applies the stored settings, which take precedence over flags and environment.
pub async fn load_settings(store: &Store, membridge: &Membridge) -> Result<(), store::Error> {
    let settings: std::collections::HashMap<_, _> = store.settings().await?.into_iter().collect();
    if let (Some(url), Some(key)) = (settings.get(MEMBRIDGE_SERVER_URL), settings.get(MEMBRIDGE_ADMIN_KEY)) {
        membridge.configure(url.clone(), SecretString::from(key.clone()));
    }
    Ok(())
}
