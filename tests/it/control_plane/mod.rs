//! The control plane of this program: `bloom-runtime membridge`, and the one that runs in a server.

mod leadership;
mod memory;
mod routes;
mod security;
mod working;

use std::sync::OnceLock;

use crate::support::server::Plan;
use crate::support::*;

pub const KEY: &str = "membridge-admin-key";
pub const AGENT_KEY: &str = "agent-key";

/// A control plane by itself, on a new database.
pub fn plan(database: Database) -> Plan {
    let plan = Server::on(database).words(&["membridge"]).env("MEMBRIDGE_PORT", 0).env("MEMBRIDGE_ADMIN_KEY", KEY);
    let plan = plan.env("MEMBRIDGE_AGENT_KEY", AGENT_KEY);
    match database {
        Database::Sqlite => plan,
        Database::Postgres => plan.env("MEMBRIDGE_DATABASE_URL", postgres::database()),
    }
}

/// The database of such a control plane.
pub fn url_of(server: &Server) -> String {
    let postgres = server.plan().setting("MEMBRIDGE_DATABASE_URL");
    postgres.unwrap_or_else(|| format!("sqlite:{}", server.data_dir().join("membridge.db").display()))
}

/// The control plane that tests share. They use unique names.
pub fn shared_plane(database: Database) -> Api {
    static SQLITE: OnceLock<Server> = OnceLock::new();
    static POSTGRES: OnceLock<Server> = OnceLock::new();
    let place = match database {
        Database::Sqlite => &SQLITE,
        Database::Postgres => &POSTGRES,
    };
    admin(place.get_or_init(|| plan(database).start()).base())
}

/// Calls with the admin's key. The answers are those of the documented control plane.
pub fn admin(base: &str) -> Api {
    Api::agent(base).with_header("x-membridge-admin", KEY)
}

pub async fn beat(plane: &Api, node: &str, project: &str, more: Value) -> Value {
    let mut body = json!({ "node_id": node, "canonical_id": canonical_id(project), "project_id": project });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    plane.post("/agent/heartbeat", body).await.ok()
}

pub async fn select(plane: &Api, project: &str, body: Value) -> Answer {
    plane.post(&format!("/projects/{}/leadership/select", canonical_id(project)), body).await
}

pub async fn leadership(plane: &Api, project: &str) -> Value {
    plane.get(&format!("/projects/{}/leadership", canonical_id(project))).await.ok()
}

pub async fn sync(plane: &Api, action: &str, project: &str, agent: &str) -> Answer {
    plane.post(&format!("/sync/{action}"), json!({ "project": project, "agent": agent })).await
}

/// The first 16 hexadecimal digits of the SHA-256 digest of the name, as the contract says.
pub fn canonical_id(project: &str) -> String {
    let digest = std::process::Command::new("sh").args(["-c", "printf %s \"$0\" | sha256sum", project]).output().unwrap().stdout;
    String::from_utf8(digest).unwrap()[..16].to_owned()
}
