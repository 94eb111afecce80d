//! Commands that print or write what can be generated from the program itself: the description of the API, custom resources and manual
//! pages.

use std::path::Path;

use bloom_commands::{CommandError, term};
use bloom_http as http;

use super::command;

pub fn openapi() -> Result<(), CommandError> {
    let document = http::openapi()
        .and_then(|document| serde_json::to_string_pretty(&document))
        .map_err(|error| format!("the OpenAPI document can't be written: {error}"))?;
    term::print(&format!("{document}\n"))
}

pub fn crds(dir: Option<&Path>) -> Result<(), CommandError> {
    let manifests = bloom_operator::crds::manifests().map_err(|error| format!("the manifests can't be made: {error}"))?;
    let Some(dir) = dir else {
        return manifests.iter().try_for_each(|(_, manifest)| term::print(&format!("---\n{manifest}")));
    };
    let write = |(name, manifest): &(String, String)| std::fs::write(dir.join(name), manifest);
    let written = std::fs::create_dir_all(dir).and_then(|()| manifests.iter().try_for_each(write));
    Ok(written.map_err(|error| format!("the manifests can't be written to {}: {error}", dir.display()))?)
}

pub fn man(dir: &Path) -> Result<(), CommandError> {
    let written = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command(), dir));
    Ok(written.map_err(|error| format!("the manual pages can't be written to {}: {error}", dir.display()))?)
}
