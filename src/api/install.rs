//! The parameters of the script that installs an agent.

use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::lists::parameter;
use super::values::URL_PATTERN;

/// `node_id`, `server_url` and `port`.
pub struct InstallParams;

impl IntoParams for InstallParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let name = ObjectBuilder::new().schema_type(Type::String).max_length(Some(128)).pattern(Some(r"^[^\x00-\x1F\x7F-\x9F]*$"));
        let url = format!("^$|{URL_PATTERN}");
        let url = ObjectBuilder::new().schema_type(Type::String).max_length(Some(2048)).pattern(Some(url));
        let port = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1)).maximum(Some(65_535));
        vec![
            parameter(
                "node_id",
                "The worker's name. Default: made from the machine's host name.",
                Schema::Object(name.build()),
                "worker-01",
            ),
            parameter(
                "server_url",
                "URL at which the agent reaches this server. Default: the address of this request.",
                Schema::Object(url.build()),
                "http://bloom.internal:5000",
            ),
            parameter(
                "port",
                "The port on which the agent listens for pushes. Default: it does not listen.",
                Schema::Object(port.build()),
                9400,
            ),
        ]
    }
}
