//! nginx in front of the server of a test.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::janitor::{self, AtTheEnd};

pub struct Nginx {
    process: Child,
}

impl Nginx {
    /// `site` is what its `http` block contains; it listens on this port of `127.0.0.1`, among others.
    pub fn start(dir: &Path, site: &str, port: u16) -> Self {
        let here = dir.display();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|kind| format!("{kind}_temp_path {here}/{kind};"));
        let main = format!(
            "daemon off;\nuser root;\npid {here}/pid;\nerror_log {here}/error.log;\nevents {{}}\nhttp {{\naccess_log off;\n{}\n{site}\n}}\n",
            temporary.join("\n"),
        );
        fs::write(dir.join("nginx.conf"), main).expect("the settings");
        let mut command = janitor::bound(Path::new("nginx"), None, AtTheEnd::Kill);
        command.arg("-c").arg(dir.join("nginx.conf")).arg("-e").arg(dir.join("error.log")).stderr(Stdio::null());
        let process = janitor::spawn(command).expect("nginx (Debian: apt-get install nginx; tests/run does it)");
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(dir.join("error.log")).unwrap_or_default();
            assert!(started.elapsed() < Duration::from_secs(30) && !log.contains("[emerg]"), "nginx does not answer: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { process }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The kernel would leave the workers of a killed master.
        janitor::signal(self.process.id(), "QUIT");
        let _ = self.process.wait();
    }
}
