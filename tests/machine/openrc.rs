//! The services of OpenRC: how they start, stop, reload and are watched over, and how their logs are rotated.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::alpine::{AGENT, Installed, KEY, SERVER};
use crate::chroot::Chroot;
use crate::support::certificates::Authority;

const READY: &str = "rc-service bloom-runtime healthcheck";
const SERVER_PID: &str = "cat /run/openrc/options/bloom-runtime/child_pid";
const AGENT_PID: &str = "cat /run/openrc/options/bloom-agent/child_pid";

fn with_server(installed: Installed) -> Chroot {
    installed.enable("bloom-runtime");
    let machine = installed.boot();
    machine.until(READY, |_| true);
    machine
}

fn owner(machine: &Chroot, path: &str) -> (u32, u32) {
    let metadata = std::fs::metadata(machine.path(path)).unwrap();
    (metadata.uid(), metadata.permissions().mode() & 0o777)
}

#[test]
fn a_server_with_a_certificate_is_healthy() {
    let machine = with_server(Installed::new());
    Authority::new().issue("bloom.example").install(&machine.path("/etc/tls"));
    machine.sh("chown bloom-runtime /etc/tls/tls.key").unwrap();
    let settings = machine.read("/etc/bloom-runtime.toml");
    let tls = "tls_cert_file = \"/etc/tls/tls.crt\"\ntls_key_file = \"/etc/tls/tls.key\"\n";
    machine.write("/etc/bloom-runtime.toml", &format!("{settings}{tls}"));
    machine.sh("rc-service bloom-runtime restart").unwrap();
    machine.until(READY, |_| true);
    machine.sh("rc-service bloom-runtime stop").unwrap();
    let refused = machine.sh(READY).unwrap_err();
    assert!(refused.contains("does not answer: can't connect: Connection refused"), "{refused}");
}

#[test]
fn the_server_is_started_watched_and_stopped() {
    let machine = with_server(Installed::new());
    let booted = machine.log();
    let at = |text: &str| booted.find(text).unwrap_or_else(|| panic!("no {text} in {booted}"));
    assert!(at("Bringing up loopback") < at("Starting bloom-runtime"));
    assert_eq!(owner(&machine, "/etc/bloom-runtime.env"), (0, 0o600));
    assert_eq!(owner(&machine, "/var/lib/bloom-runtime"), (SERVER, 0o750));
    assert_eq!(owner(&machine, "/var/log/bloom-runtime.log"), (SERVER, 0o640));
    assert_eq!(owner(&machine, "/var/log/bloom-runtime-error.log"), (SERVER, 0o640));
    assert_eq!(machine.sh("cat /proc/$(cat /run/bloom-runtime.pid)/comm").unwrap(), "supervise-daemo");
    let first = machine.sh(SERVER_PID).unwrap();
    assert_eq!(machine.sh(&format!("stat -c %u /proc/{first}")).unwrap(), SERVER.to_string());

    machine.sh(&format!("kill -KILL {first}")).unwrap();
    let second = machine.until(&format!("{SERVER_PID}; {READY} >/dev/null"), |pid| pid != first);

    // Settings that can't be used leave the process alone.
    let settings = machine.read("/etc/bloom-runtime.toml");
    machine.write("/etc/bloom-runtime.toml", &format!("{settings}port = \"many\"\n"));
    for action in ["checkconfig", "restart"] {
        let refused = machine.sh(&format!("rc-service bloom-runtime {action}")).unwrap_err();
        assert!(refused.contains("port = \"many\" (file /etc/bloom-runtime.toml)"), "{action}: {refused}");
    }
    machine.write("/etc/bloom-runtime.toml", &settings);
    let secrets = machine.read("/etc/bloom-runtime.env");
    machine.write("/etc/bloom-runtime.env", "RUNTIME_API_KEY\n");
    let refused = machine.sh("rc-service bloom-runtime restart").unwrap_err();
    assert!(refused.contains("/etc/bloom-runtime.env: line 1 is not NAME=VALUE"), "{refused}");
    machine.write("/etc/bloom-runtime.env", &secrets);
    assert_eq!(machine.sh(&format!("{SERVER_PID}; {READY} >/dev/null")).unwrap(), second);

    machine.write("/etc/bloom-runtime.toml", &settings.replace("info", "debug"));
    machine.sh("rc-service bloom-runtime reload").unwrap();
    machine.until("cat /var/log/bloom-runtime.log", |log| log.contains("level=\"debug\""));
    assert!(!machine.read("/var/log/bloom-runtime.log").contains("DEBUG"));
    machine.until(&format!("BLOOM_KEY={KEY} bloom-runtime stats >/dev/null; cat /var/log/bloom-runtime.log"), |log| log.contains("DEBUG"));
    assert_eq!(machine.sh(SERVER_PID).unwrap(), second, "a reload does not restart");

    machine.sh("rc-service bloom-runtime restart").unwrap();
    let third = machine.until(&format!("{READY} >/dev/null; {SERVER_PID}"), |pid| pid != second);
    machine.sh("rc-service bloom-runtime stop").unwrap();
    machine.sh(&format!("[ ! -e /proc/{third} ] && ! {READY}")).unwrap();
    let log = machine.read("/var/log/bloom-runtime.log");
    assert!(log.trim_end().ends_with("INFO stopped"), "{log}");
    assert_eq!(machine.read("/var/log/bloom-runtime-error.log"), "");

    machine.write("/etc/bloom-runtime.toml", "prot = 5000\n");
    let refused = machine.sh("rc-service bloom-runtime start").unwrap_err();
    assert!(refused.contains("did you mean port?"), "{refused}");
    machine.sh("rc-service bloom-runtime status").unwrap_err();
}

#[test]
fn a_log_that_is_rotated_loses_nothing() {
    let installed = Installed::new();
    // Each request is logged.
    installed.write("etc/bloom-runtime.toml", "log_level = \"debug\"\nrate_limit_per_minute = 0\n");
    let machine = with_server(installed);
    // The script counts its requests in a file, which the rotations watch.
    let requests = r#"
        count=0
        while [ ! -e /enough ]; do
            count=$((count + 1))
            wget -q --header "X-Request-Id: request-$count" -O /dev/null http://127.0.0.1:5000/api/runtime/stats || :
            echo "$count" >/count.new && mv /count.new /count
        done
        cat /count"#;
    const ROTATIONS: usize = 4;
    let rotate = "logrotate --force /etc/logrotate.d/bloom-runtime";
    let sent: usize = std::thread::scope(|scope| {
        let client = scope.spawn(|| machine.sh(requests).expect("the requests are sent"));
        for _ in 0..ROTATIONS {
            let before: usize = machine.until("cat /count", |count| !count.is_empty()).parse().unwrap();
            machine.until("cat /count", |count| count.parse::<usize>().is_ok_and(|count| count > before + 5));
            machine.sh(rotate).unwrap();
        }
        machine.write("/enough", "");
        client.join().unwrap().parse().unwrap()
    });
    machine.until(&format!("cd /var/log; grep -E 'request-{sent}([^0-9]|$)' bloom-runtime.log bloom-runtime.log.1"), |_| true);
    let all = machine.sh("cd /var/log; gunzip -c bloom-runtime.log.*.gz; cat bloom-runtime.log.1 bloom-runtime.log").unwrap();
    let mut logged: BTreeMap<usize, usize> = BTreeMap::new();
    for (_, rest) in all.lines().filter_map(|line| line.split_once("request-")) {
        let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
        *logged.entry(number.parse().unwrap()).or_default() += 1;
    }
    assert_eq!(logged, (1..=sent).map(|number| (number, 1)).collect(), "each request is logged once");
    assert!(sent > 5 * ROTATIONS);
    assert_eq!(owner(&machine, "/var/log/bloom-runtime.log"), (SERVER, 0o640));

    // Each reload leaves a line, so that there is something to rotate.
    for _ in 0..15 {
        machine.sh(rotate).unwrap();
        machine.until("cat /var/log/bloom-runtime.log", |log| log.contains("reloaded"));
    }
    let kept = machine.sh("ls /var/log/bloom-runtime.log.*").unwrap();
    let expected = std::iter::once(".1".to_owned()).chain((2..=14).map(|number| format!(".{number}.gz")));
    let mut expected: Vec<String> = expected.map(|end| format!("/var/log/bloom-runtime.log{end}")).collect();
    expected.sort();
    assert_eq!(kept.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn runs_go_on_when_the_agent_is_killed() {
    let installed = Installed::new();
    // In double quotes as agent-install.sh writes it, in single quotes, and bare.
    let name = r#"it's "$(id)" \ `x` #1"#;
    installed.write(
        "etc/bloom-agent.env",
        &format!(
            "# Settings.\n\nBLOOM_SERVER=http://127.0.0.1:5000\r\nBLOOM_KEY='{KEY}'\nBLOOM_GRACE_SECONDS=1000  \n\
             PATH=/var/lib/bloom-agent/bin:/usr/bin:/bin\n\
             BLOOM_PROFILES=/etc/profiles.toml\nBLOOM_AGENT_NAME=\"it's \\\"\\$(id)\\\" \\\\ \\`x\\` #1\""
        ),
    );
    installed.write("etc/profiles.toml", "[profiles.default]\nrunner = \"command\"\ncommand = [\"sh\"]\n");
    // The agent's user could put programs into its PATH, which root must never run.
    for program in ["sed", "awk", "checkpath", "su", "supervise-daemon"] {
        installed.program(&format!("var/lib/bloom-agent/bin/{program}"), "#!/bin/sh\nid >>/run-by\nexit 1\n");
    }
    installed.enable("bloom-agent");
    let machine = with_server(installed);
    let booted = machine.until("rc-service bloom-agent status", |_| true);
    assert!(booted.contains("started"), "{booted}");
    // The agent is killed by its supervisor only after its grace.
    assert_eq!(machine.until("cat /run/openrc/options/bloom-agent/retry", |_| true), "TERM/1030/KILL/5");
    let bloom = format!("export BLOOM_KEY={KEY}; bloom-runtime");
    machine.until(&format!("{bloom} worker list -o json"), |workers| workers.contains(&format!("{:?}", name)));

    let prompt = "echo begun >>$HOME/begun; while [ ! -e /go ]; do sleep 0.1; done; echo ended";
    let task = machine.sh(&format!("{bloom} task submit '{prompt}'")).unwrap();
    machine.until("cat /var/lib/bloom-agent/begun", |begun| begun == "begun");
    let first = machine.sh(AGENT_PID).unwrap();
    assert_eq!(machine.sh(&format!("stat -c %u /proc/{first}")).unwrap(), AGENT.to_string());
    let environment = machine.sh(&format!("tr '\\0' '\\n' </proc/{first}/environ")).unwrap();
    assert!(environment.lines().any(|variable| variable == "PATH=/var/lib/bloom-agent/bin:/usr/bin:/bin"), "{environment}");
    machine.sh(&format!("kill -KILL {first}")).unwrap();
    machine.until(AGENT_PID, |pid| pid != first && !pid.is_empty());
    machine.until("cat /var/log/bloom-agent.log", |log| log.contains("continuing an earlier run"));
    machine.write("/go", "");
    let ended = machine.sh(&format!("{bloom} task wait {task}")).unwrap();
    assert!(ended.contains(" completed ") && ended.contains(" 1/3 "), "{ended}");
    assert!(machine.sh(&format!("{bloom} task result {task}")).unwrap().contains("ended"));
    assert_eq!(machine.read("/var/lib/bloom-agent/begun"), "begun\n", "it ran once");

    machine.sh("logrotate --force /etc/logrotate.d/bloom-agent").unwrap();
    machine.until("cat /var/log/bloom-agent.log", |log| log.contains("reloaded"));
    machine.sh("rc-service bloom-agent stop").unwrap();
    assert_eq!(machine.read("/var/log/bloom-agent-error.log"), "");
    assert!(!machine.path("/run-by").exists(), "run by {}", machine.read("/run-by"));
}

#[test]
fn an_agent_that_does_not_stay_is_not_healthy() {
    const HEALTHY: &str = "rc-service bloom-agent healthcheck";
    let installed = Installed::new();
    let settings = format!("BLOOM_SERVER=http://127.0.0.1:5000\nBLOOM_KEY='{KEY}'\nBLOOM_RUNNER=echo\n");
    installed.write("etc/bloom-agent.env", &format!("{settings}BLOOM_PROFILES=/nowhere.toml\n"));
    installed.enable("bloom-agent");
    let machine = with_server(installed);
    let error = machine.until("cat /var/log/bloom-agent-error.log", |log| log.lines().count() > 1);
    for line in error.lines() {
        let (time, text) = line.split_once(' ').unwrap();
        assert!(time.parse::<jiff::Timestamp>().is_ok() && text.contains("/nowhere.toml"), "{line}");
    }
    assert!(machine.sh("rc-service bloom-agent status").unwrap().contains("started"));
    let refused = machine.sh(HEALTHY).unwrap_err();
    assert!(refused.contains("does not stay") && refused.contains("/nowhere.toml"), "{refused}");
    machine.write("/etc/bloom-agent.env", &settings);
    machine.sh("rc-service bloom-agent restart").unwrap();
    machine.until(HEALTHY, |_| true);
    machine.sh("rc-service bloom-agent stop").unwrap();
    machine.sh(HEALTHY).unwrap_err();
}
