//! PgBouncer in front of the database of a test.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use super::janitor::{self, AtTheEnd};
use super::postgres::{give_to_system_user, system_user};

pub struct PgBouncer {
    /// The database's URL by this pooler.
    pub url: String,
    process: Child,
}

impl PgBouncer {
    /// `url` is `postgres://user@host:port/database`; `more` are further lines of its settings.
    pub fn start(url: &str, mode: &str, more: &str) -> Self {
        let dir = janitor::new_path("pgbouncer");
        fs::create_dir(&dir).expect("a directory");
        let (user, rest) = url.strip_prefix("postgres://").and_then(|url| url.split_once('@')).expect("a user");
        let (place, database) = rest.split_once('/').expect("a database");
        let (host, target) = place.split_once(':').expect("a port");
        let port = janitor::free_port();
        let settings = format!(
            "[databases]\n{database} = host={host} port={target}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = {mode}\nlogfile = {}\n{more}\n",
            dir.join("users").display(),
            dir.join("log").display(),
        );
        fs::write(dir.join("users"), format!("\"{user}\" \"\"\n")).expect("the users");
        fs::write(dir.join("pgbouncer.ini"), settings).expect("the settings");
        give_to_system_user(&dir);
        let mut command = janitor::bound(Path::new("/usr/sbin/pgbouncer"), system_user(), AtTheEnd::Kill);
        command.arg("-q").arg(dir.join("pgbouncer.ini")).current_dir("/");
        let process = janitor::spawn(command).expect("pgbouncer (Debian: apt-get install pgbouncer; tests/run does it)");
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(started.elapsed() < Duration::from_secs(30), "PgBouncer does not answer: {:?}", fs::read_to_string(dir.join("log")));
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { url: format!("postgres://{user}@127.0.0.1:{port}/{database}"), process }
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
