//! The commands of manifests/alpine/README.md, run as they stand on a machine that knows nothing of bloom-runtime.

use crate::alpine::Installed;
use crate::chroot::{Chroot, static_program};
use crate::packages::repository;

const README: &str = include_str!("../../manifests/alpine/README.md");

/// Programs of Alpine that Debian's busybox does not have.
const PROGRAMS: [(&str, &str); 5] = [
    ("apk", ":"),
    (
        "install",
        "[ \"$1\" != -d ] || { shift; while getopts m:o:g: option; do case $option in m) mode=$OPTARG ;; o) user=$OPTARG ;; g) group=$OPTARG ;; esac; done
shift $((OPTIND - 1)); mkdir -p \"$1\" && chmod $mode \"$1\" && chown $user:$group \"$1\"; exit; }\nparents=no; [ \"$1\" != -D ] || { parents=yes; shift; }\n[ $parents = no ] || mkdir -p \"${4%/*}\"\ncp \"$3\" \"$4\" && chmod \"$2\" \"$4\"",
    ),
    ("addgroup", "shift; case $1 in bloom-runtime) id=901 ;; *) id=902 ;; esac; echo \"$1:x:$id:\" >>/etc/group"),
    (
        "adduser",
        "made=yes\nwhile getopts SDHh:s:G:g: option; do case $option in H) made=no ;; h) home=$OPTARG ;; s) shell=$OPTARG ;; esac; done
shift $((OPTIND - 1)); case $1 in bloom-runtime) id=901 ;; *) id=902 ;; esac
echo \"$1:x:$id:$id::$home:$shell\" >>/etc/passwd; [ $made = no ] || { mkdir -p $home; chown $id:$id $home; }",
    ),
    ("deluser", "sed -i \"/^$1:/d\" /etc/passwd /etc/group"),
];

/// The blocks of commands of a section. A line with a prompt begins a command; others continue it.
fn blocks(section: &str) -> Vec<String> {
    blocks_of(README, &format!("## {section}"))
}

fn blocks_of(page: &str, title: &str) -> Vec<String> {
    let (_, text) = page.split_once(&format!("\n{title}\n")).expect("the section");
    let text = text.split_once("\n## ").map_or(text, |(text, _)| text);
    let blocks = text.split("```console\n").skip(1).map(|block| block.split("```").next().unwrap());
    blocks.map(|block| block.lines().map(|line| format!("{}\n", line.strip_prefix(['#', '>']).expect("a prompt"))).collect()).collect()
}

/// A machine with a checkout, and nothing else of bloom-runtime.
fn machine() -> Chroot {
    let installed = Installed::bare();
    for (name, script) in PROGRAMS {
        installed.program(&format!("usr/local/sbin/{name}"), &format!("#!/bin/sh\n{script}\n"));
    }
    installed.copy(&repository().join("manifests"), "root/checkout/manifests");
    installed.copy(&static_program(), "root/checkout/bloom-runtime");
    let machine = installed.boot();
    machine.until("rc-status default", |services| services.contains("loopback"));
    machine
}

fn follow(machine: &Chroot, script: &str) -> String {
    machine.sh(&format!("cd /root/checkout\n{script}")).unwrap_or_else(|error| panic!("{script}\n{error}"))
}

#[test]
fn a_backup_is_restored_on_a_new_machine() {
    const RESTORE: &str = include_str!("../../docs/upgrades-and-backup.md");
    let [install] = &blocks("Install with the static program")[..] else { panic!("one block") };
    let [server, _] = &blocks("First start")[..] else { panic!("two blocks") };
    let (start, healthcheck) = server.trim_end().rsplit_once('\n').unwrap();
    let key = "export BLOOM_KEY=$(sed -n 's/^RUNTIME_API_KEY=//p' /etc/bloom-runtime.env)";
    let old = machine();
    follow(&old, &format!("{install}{start}"));
    old.until(healthcheck, |_| true);
    let task = follow(&old, &format!("{key}; bloom-runtime task submit hello"));
    follow(&old, "bloom-runtime-as-service backup /var/lib/bloom-runtime/bloom.db.copy");
    for by_root in [true, false] {
        let new = machine();
        follow(&new, install);
        std::fs::copy(old.path("/var/lib/bloom-runtime/bloom.db.copy"), new.path("/root/bloom.db")).unwrap();
        if by_root {
            let [restore] = &blocks_of(RESTORE, "### On a new machine")[..] else { panic!("one block") };
            follow(&new, restore);
        } else {
            // As the user of the service, who can make no directory there.
            follow(&new, "install -m 644 /root/bloom.db /tmp/bloom.db; bloom-runtime-as-service restore /tmp/bloom.db");
        }
        follow(&new, start);
        new.until(healthcheck, |_| true);
        assert!(follow(&new, &format!("{key}; bloom-runtime task list -o name")).contains(&task));
    }
}

#[test]
fn its_commands_install_start_upgrade_and_remove() {
    let machine = machine();
    let follow = |script: &str| follow(&machine, script);

    let [install] = &blocks("Install with the static program")[..] else { panic!("one block") };
    follow(install);
    let [server, agent] = &blocks("First start")[..] else { panic!("two blocks") };
    // A person is slower than the start.
    let (start, healthcheck) = server.trim_end().rsplit_once('\n').unwrap();
    follow(start);
    machine.until(healthcheck, |_| true);
    // There is no Claude CLI.
    follow("echo BLOOM_RUNNER=echo >>/etc/bloom-agent.env");
    follow(agent);
    let key = "export BLOOM_KEY=$(sed -n 's/^RUNTIME_API_KEY=//p' /etc/bloom-runtime.env)";
    machine.until(&format!("{key}; bloom-runtime worker list"), |workers| workers.contains("online"));
    assert!(follow(&format!("{key}; bloom-runtime task submit --wait hello")).contains("hello"));

    let told = follow("bloom-runtime-as-service doctor");
    assert!(told.contains("sqlite:/var/lib/bloom-runtime/bloom.db has") && told.contains("1 of 1 are online"), "{told}");
    follow("bloom-runtime-as-service backup --force '/var/lib/bloom-runtime/by hand.db'");
    assert!(follow("bloom-runtime-as-service doctor -o json").starts_with('['), "options are those of the command");
    assert!(follow("ls -l '/var/lib/bloom-runtime/by hand.db'").contains("bloom-runtime"), "it is its user's");

    let [upgrade] = &blocks("Upgrade")[..] else { panic!("one block") };
    follow(upgrade);
    machine.until(healthcheck, |_| true);
    assert!(follow(&format!("{key}; bloom-runtime task list")).contains("completed"));

    let [remove, settings] = &blocks("Remove")[..] else { panic!("two blocks") };
    follow(remove);
    assert!(follow("ls /var/lib/bloom-runtime /etc/bloom-runtime.env").contains("bloom.db"));
    follow(settings);
    assert_eq!(follow("ps -o args | grep '[s]upervise-daemon' || :; grep bloom /etc/passwd || :"), "");
    let left = follow("find / -xdev -name '*bloom*' -not -path '/proc/*' -not -path '/run/*' -not -path '/root/*'");
    assert_eq!(left, "");
}
