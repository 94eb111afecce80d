//! Query parameters of uploads.

use utoipa::IntoParams;
use utoipa::openapi::Required;
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::files::InputPath;
use super::lists::parameter;
use super::values::Id;
use super::wire::{Wire, one_of};
use bloom_core::file::FileKind;

/// What an upload says of its file.
pub struct UploadParams;

impl IntoParams for UploadParams {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let kind = one_of(FileKind::ALL.iter().map(|kind| kind.as_str()));
        let digest = Schema::Object(ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[0-9a-fA-F]{64}$")).build());
        let digest_of_example = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        let mut name =
            parameter("name", "The name of the file: a relative path of up to 1024 bytes.", InputPath::describe(), "notes/plan.md");
        name.required = Required::True;
        vec![
            name,
            parameter(
                "sha256",
                "The digest of the file. If the content that arrives has another digest, the upload is refused.",
                digest,
                digest_of_example,
            ),
            parameter("type", "`OUTPUT` or `GIT_DIFF` for a file of a run, else `INPUT`.", kind, "INPUT"),
            parameter(
                "task_id",
                "The task of the run; only together with `lease_id`.",
                Id::describe(),
                "019c936e-3800-7000-8000-000000000001",
            ),
            parameter("lease_id", "The active lease of the run; with `task_id`.", Id::describe(), "019c936e-3800-7000-8000-000000000002"),
        ]
    }
}
