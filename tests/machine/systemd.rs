//! The units of systemd. There is no systemd to start them in a test, so what they promise is read from them.

use std::fs;
use std::process::Command;

use bloom_config::SETTINGS;

use crate::packages::repository;
use crate::support::{janitor, server::BINARY};

fn unit(name: &str) -> String {
    fs::read_to_string(repository().join("manifests/systemd").join(name)).unwrap()
}

fn value<'a>(unit: &'a str, name: &str) -> &'a str {
    unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_else(|| panic!("no {name} in {unit}"))
}

#[test]
fn systemd_accepts_the_units() {
    let dir = janitor::new_path("units");
    fs::create_dir_all(&dir).unwrap();
    for name in ["bloom-runtime.service", "bloom-agent.service"] {
        let path = dir.join(name);
        // The program must be there.
        fs::write(&path, unit(name).replace("/usr/bin/bloom-runtime", BINARY)).unwrap();
        let done = Command::new("systemd-analyze").arg("verify").arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        // Versions before 254 do not know this one, and ignore it.
        let wrong = said.lines().any(|line| !line.contains("DelegateSubgroup"));
        assert!(done.status.success() && !wrong, "{name}: {done:?}");
    }
}

#[test]
fn the_server_has_time_to_stop_and_few_rights() {
    let unit = unit("bloom-runtime.service");
    let timeout = SETTINGS.iter().find(|setting| setting.key == "request_timeout_seconds").unwrap().default;
    let (timeout, stop): (u64, u64) = (timeout.parse().unwrap(), value(&unit, "TimeoutStopSec").parse().unwrap());
    // What the server itself takes beyond the last request.
    assert!(stop >= timeout + 10, "{stop}");
    for (name, expected) in
        [("User", "bloom-runtime"), ("ProtectSystem", "strict"), ("NoNewPrivileges", "yes"), ("CapabilityBoundingSet", "")]
    {
        assert_eq!(value(&unit, name), expected);
    }
}

#[test]
fn runs_survive_the_agent_and_one_another() {
    let unit = unit("bloom-agent.service");
    let help = Command::new(BINARY).args(["agent", "--help"]).output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    let (_, grace) = help.split_once("--grace-seconds <").unwrap();
    let grace: u64 = grace.split_once("[default: ").unwrap().1.split_once(']').unwrap().0.parse().unwrap();
    let stop: u64 = value(&unit, "TimeoutStopSec").parse().unwrap();
    assert!(stop >= grace + 30, "{stop}");
    for (name, expected) in [("User", "bloom-agent"), ("KillMode", "process"), ("OOMPolicy", "continue"), ("NoNewPrivileges", "yes")] {
        assert_eq!(value(&unit, name), expected);
    }
    // So that the agent may make cgroups for them.
    assert!(!unit.contains("ProtectControlGroups"));
    for (name, expected) in [("Delegate", "yes"), ("DelegateSubgroup", "agent")] {
        assert_eq!(value(&unit, name), expected);
    }
}
