//! What the agent says when the server refuses its key: what to do, and that once, because each of its calls is refused until somebody
//! has done it.

use uuid::Uuid;

use crate::Agent;
use crate::server_calls::renewal::RenewableFiles;
use bloom_api::error::{OTHER_WORKER, WRONG_SCOPE};
use bloom_client as client;
use bloom_core::api_key::{Scope, is_key_name};

impl Agent {
    /// Logs that a call failed, which is repeated. A refused key is logged once, until the server accepts a key or gives another reason.
    pub(crate) fn tell_failure(&self, error: &client::Error, what: &'static str) {
        let Some(advice) = self.advice(error, true) else {
            tracing::warn!(%error, "{what}; trying again");
            return;
        };
        let why = error.to_string();
        let mut told = self.refused_key.lock();
        if told.as_ref() == Some(&why) {
            tracing::debug!(%error, "{what}; trying again");
            return;
        }
        let to_do = advice.replace('\n', "; ");
        let runs = self.lock().len();
        tracing::error!(%error, runs, to_do, "{what}, because the server refuses the key of this agent; its runs go on as long as their leases last, and it goes on trying");
        *told = Some(why);
    }

    /// The server accepted a call with the agent's key.
    pub(crate) fn key_is_accepted(&self) {
        if self.refused_key.lock().take().is_some() {
            tracing::info!("the server accepts the key of this agent again");
        }
    }

    /// Records whether the server refused the verdict of this lease because of the agent's key. A stop does not wait for such verdicts,
    /// because its run directory keeps each of them for the next start.
    pub(crate) fn note_if_key_is_refused(&self, lease: Uuid, error: &client::Error) {
        if let Some(held) = self.lock().get_mut(&lease) {
            held.is_key_refused = self.advice(error, true).is_some();
        }
        self.changed.notify_waiters();
    }

    /// What to do if the server refused the agent's key; `None` for other failures. `is_running`: the agent goes on, and does not end
    /// with this failure.
    pub(crate) fn advice(&self, error: &client::Error, is_running: bool) -> Option<String> {
        advice(error, &self.name, &self.settings.renewable, is_running)
    }
}

fn advice(error: &client::Error, worker: &str, files: &RenewableFiles, is_running: bool) -> Option<String> {
    let told = error.to_string();
    if error.status() == Some(403) {
        // The token need not be replaced: it only has to be passed with the right option.
        if told.strip_prefix(WRONG_SCOPE).is_some_and(|scope| scope.trim_start().starts_with(Scope::Join.as_str())) {
            let how = "This is a join token, which the agent exchanges for a key of its own: give its file with --join-token-file instead of \
                       --key-file";
            return Some(how.to_owned());
        }
        if !told.starts_with(WRONG_SCOPE) && !told.starts_with(OTHER_WORKER) {
            return None;
        }
    } else if !client::is_about_key(error) {
        return None;
    }
    // Worker names may have characters that are not allowed in names of keys and of files.
    let key = if is_key_name(worker) { worker } else { "NAME" };
    let quoted = if is_key_name(worker) { worker.to_owned() } else { format!("'{}'", worker.replace('\'', r"'\''")) };
    let start = if is_running { "the agent reads it within some seconds" } else { "start the agent again" };
    Some(match (&files.join_token, &files.key) {
        (Some(file), _) => format!(
            "Create a join token for this worker, with a key that has the scope admin: bloom-runtime key create {key}-again --scope join \
             --worker {quoted} --out {key}.token\nThen put it into the file {}, and {start}",
            file.display()
        ),
        (None, file) => {
            let create = format!(
                "Create a key for this worker, with a key that has the scope admin: bloom-runtime key create {key} --scope worker --worker \
                 {quoted} --out {key}.key"
            );
            match file {
                Some(file) => format!("{create}\nThen put it into the file {}, and {start}", file.display()),
                None => format!("{create}\nThen start the agent with --key-file {key}.key in place of --key or BLOOM_KEY"),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(status: u16, message: &str, files: &RenewableFiles) -> Option<String> {
        let error = client::Error::Refused { status, message: message.to_owned(), retry_after: None, fields: Vec::new() };
        advice(&error, "box", files, true)
    }

    #[test]
    fn a_key_of_a_wrong_scope_is_explained() {
        let of_scope =
            |status, scope: &str| told(status, &format!("{WRONG_SCOPE} {scope}, and this call needs worker"), &RenewableFiles::default());
        let join = of_scope(403, "join").unwrap();
        assert!(join.contains("--join-token-file") && !join.contains("key create"), "{join}");
        assert!(of_scope(403, "read").unwrap().contains("key create box --scope worker"));
        assert_eq!(of_scope(500, "join"), None);
        assert_eq!(told(403, "This key does not allow its worker a url", &RenewableFiles::default()), None);
    }

    #[test]
    fn a_refused_key_is_told_with_where_to_put_another_one() {
        let refused = client::REFUSES_KEY;
        let none = RenewableFiles::default();
        assert!(
            told(401, refused, &none).unwrap().ends_with("Then start the agent with --key-file box.key in place of --key or BLOOM_KEY")
        );
        let key = RenewableFiles { key: Some("/etc/bloom/box.key".into()), join_token: None };
        assert!(
            told(401, refused, &key)
                .unwrap()
                .ends_with("Then put it into the file /etc/bloom/box.key, and the agent reads it within some seconds")
        );
        let token = RenewableFiles { key: None, join_token: Some("/etc/bloom/join.token".into()) };
        let how = told(403, &format!("{OTHER_WORKER} 'w10' only"), &token).unwrap();
        assert!(how.contains("key create box-again --scope join --worker box") && how.contains("/etc/bloom/join.token"), "{how}");
        assert_eq!(told(401, "the answer 401 Unauthorized is not from this API", &none), None, "it is a proxy's");
        assert_eq!(told(401, "the control plane http://plane answers 401", &none), None);
    }
}
