//! Settings.

use std::collections::BTreeMap;

use super::sink::{COPY, Sink};
use crate::batch::save::Setting;
use crate::error::Error;
use crate::sql::conn::Conn;

// If a setting has several names, the one that takes precedence comes first: `membridge_admin_key` before `admin_key`.
const SETTINGS: &str = "SELECT to_jsonb(s)::text FROM runtime_settings s ORDER BY s.key COLLATE \"C\" DESC";

/// The settings that this program stores, and the names that they may have in the earlier runtime.
const SETTING_NAMES: [(&str, &[&str]); 2] = [
    (bloom_core::decide::MEMBRIDGE_SERVER_URL, &["membridge_server_url"]),
    (bloom_core::decide::MEMBRIDGE_ADMIN_KEY, &["membridge_admin_key", "admin_key"]),
];
/// Settings in which the earlier runtime only recorded its last call. They are left out.
const FORGOTTEN_SETTINGS: [&str; 4] = ["connected", "connection_status", "last_test", "last_test_at"];

pub(super) async fn write(conn: &mut Conn, sink: &mut Sink<'_>) -> Result<(), Error> {
    // The exported settings, each with the name that it had.
    let mut taken: BTreeMap<&str, String> = BTreeMap::new();
    sink.take(conn, "runtime_settings", SETTINGS, |sink, row| {
        let name = match row.text("key") {
            Ok(name) => name,
            Err(why) => return Ok(Err(why)),
        };
        if FORGOTTEN_SETTINGS.contains(&name.as_str()) {
            return Ok(Ok(()));
        }
        let Some((key, _)) = SETTING_NAMES.iter().find(|(_, names)| names.contains(&name.as_str())) else {
            return Ok(row.wrong("key", "is no setting of this program"));
        };
        match row.text("value") {
            Err(why) => Ok(Err(why)),
            // An empty value means that the setting is not set.
            Ok(value) if value.is_empty() => Ok(Ok(())),
            Ok(value) => match taken.get(key) {
                Some(other) if *other == name => Ok(row.wrong("key", COPY)),
                Some(_) => Ok(Ok(())),
                None => {
                    taken.insert(key, name);
                    sink.add(Setting { key, value: &value }).map(Ok)
                }
            },
        }
    })
    .await
}
