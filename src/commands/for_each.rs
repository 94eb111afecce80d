//! Makes the same call for each of several objects, a few at a time. A failure does not affect the other objects.

use std::pin::pin;

use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};

use super::server_calls::{Again, Server, failed};
use super::term;
use crate::CommandError;

/// The maximum number of concurrent calls.
const AT_ONCE: usize = 8;

/// The outcomes of the calls for these names, in the order of the names.
pub(crate) fn outcomes<'a, F: Future>(names: &'a [String], mut call: impl FnMut(&'a str) -> F) -> impl Stream<Item = F::Output> {
    stream::iter(names).map(move |name| call(name)).buffered(AT_ONCE)
}

/// The answers of the successful calls, and the failures of the others.
pub(crate) async fn answers<'a, F: Future<Output = Result<Value, CommandError>>>(
    names: &'a [String],
    call: impl Fn(&'a str) -> F,
) -> (Vec<Value>, Vec<CommandError>) {
    let (mut answers, mut failures) = (Vec::new(), Vec::new());
    let mut outcomes = pin!(outcomes(names, |name| {
        let call = call(name);
        async move { call.await.map_err(|failure| failure.about(name)) }
    }));
    while let Some(outcome) = outcomes.next().await {
        match outcome {
            Ok(answer) => answers.push(answer),
            Err(failure) => failures.push(failure),
        }
    }
    (answers, failures)
}

impl Server {
    /// The objects with these names that exist, and an error that names all missing ones.
    ///
    /// # Errors
    /// A call failed for another reason.
    pub async fn get_each(
        &self,
        names: &[String],
        path: impl Fn(&str) -> String,
    ) -> Result<(Vec<Value>, Result<(), CommandError>), CommandError> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in names {
            let path = path(name);
            match self.call(Again::Busy, || self.client.get(&path)).await {
                Ok(thing) => found.push(thing),
                Err(error) if error.status() == Some(404) => missing.push(failed(error).about(name)),
                Err(error) => return Err(failed(error).about(name)),
            }
        }
        Ok((found, CommandError::all(&missing)))
    }

    /// Posts to each of these names. Returns the answers, and an error with the failures of the others.
    pub async fn post_each(&self, names: &[String], path: impl Fn(&str) -> String) -> (Vec<Value>, Result<(), CommandError>) {
        let (found, failures) = answers(names, |name| {
            let path = path(name);
            async move { self.post(&path, &json!({})).await }
        })
        .await;
        (found, CommandError::all(&failures))
    }

    /// Deletes the objects with these names, and reports each one.
    ///
    /// # Errors
    /// Some could not be deleted. The others were deleted.
    pub async fn delete_each(
        &self,
        names: &[String],
        path: impl Fn(&str) -> String,
        told: impl Fn(&str) -> String,
    ) -> Result<(), CommandError> {
        let (_, failures) = answers(names, |name| {
            let (path, told) = (path(name), told(name));
            async move { self.delete(&path).await.inspect(|_| term::info(&told)) }
        })
        .await;
        CommandError::all(&failures)
    }
}
