//! The object store: whether the server can do everything there that it needs to.

use bloom_config::Serve;
use bloom_objects::Objects;
use bloom_telemetry::Metrics;

use super::{Finding, State};

/// `database_id`: the id of the database; `None` if it was never used with an object store.
pub async fn look(settings: &Serve, database_id: Option<&str>) -> Option<Finding> {
    let finding = |state, text: String| Some(Finding::new("object store", state, text));
    let Some(at) = settings.objects.clone() else {
        return finding(State::Fine, "none is set: the database keeps all outputs; MINIO_ENDPOINT or AWS_S3_BUCKET names one".to_owned());
    };
    let place = at.place();
    let objects = Metrics::new().map_err(|error| error.to_string()).and_then(|metrics| Objects::new(at, metrics));
    let objects = match objects {
        Ok(objects) => objects,
        Err(error) => return finding(State::Wrong, error),
    };
    if let Err((verb, failure)) = objects.check().await {
        return finding(State::Warning, format!("{place}: can't {verb} an object: {}; {}", failure.text, advice(verb)));
    }
    match objects.known_owner().await {
        Err(failure) => finding(State::Warning, format!("{place}: can't read whose bucket it is: {}; {}", failure.text, advice("read"))),
        Ok(Some(owner)) if database_id != Some(owner.as_str()) => {
            let text = "another database writes there, so this one keeps its outputs: give each installation a bucket of its own; docs/objects.md says how to hand over a bucket";
            finding(State::Warning, format!("{place}: {text}"))
        }
        Ok(_) => finding(State::Fine, format!("objects can be written, read, listed and removed in {place}")),
    }
}

fn advice(verb: &str) -> &'static str {
    match verb {
        "write" => {
            "check that it runs, that the bucket exists, the keys, and that their policy allows s3:PutObject; until then, the database keeps the \
             outputs"
        }
        "read" => "allow the key s3:GetObject on the bucket; until then, outputs that are there can't be read",
        "list" => "allow the key s3:ListBucket on the bucket; until then, objects of removed tasks stay there",
        _ => "allow the key s3:DeleteObject on the bucket; until then, objects of removed tasks stay there",
    }
}
