//! What runs in a sandbox can't ask of the kernel, and how much of the memory their files take.

use super::sandbox::printed;
use super::*;
use crate::support::agent::AgentPlan;
use crate::support::{Database, Server};

const PYTHON: &str = "[profiles.NAME]\nrunner = \"command\"\ncommand = [\"/usr/bin/python3\"]\n";
const SHELL: &str = "[profiles.NAME]\nrunner = \"command\"\ncommand = [\"/bin/sh\"]\n";
/// Starts the agent as a user without any rights, who owns the agent's directory.
const AS_A_USER: &str = r#"
    chown -R nobody . && exec setpriv --pdeathsig KILL --reuid nobody --regid nogroup --clear-groups --bounding-set=-all --no-new-privs "$0" "$@""#;
const AS_ROOT: &str = r#"exec "$0" "$@""#;

/// Prints which of these calls of the system the filter does not refuse. All are made so that they do no harm where they succeed.
const CALLS: &str = r"
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
at = 0 if platform.machine() == 'x86_64' else 1
room = ctypes.create_string_buffer(256)
NEW_USER_AND_FS = 0x10000200  # contradict each other, so no process is made
calls = {
    'io_uring_setup': ([425, 425], 1, room), 'userfaultfd': ([323, 282], 1), 'ptrace': ([101, 117], 0, 0, 0, 0),
    'keyctl': ([250, 219], 0, -3, 1), 'bpf': ([321, 280], 0, 0, 0), 'process_vm_readv': ([310, 270], 1, 0, 0, 0, 0, 0),
    'open_by_handle_at': ([304, 265], -1, 0, 0), 'unshare': ([272, 97], 0x10000000), 'clone': ([56, 220], NEW_USER_AND_FS, 0, 0, 0, 0),
    'clone3': ([435, 435], 0, 0), 'mount': ([165, 40], 0, room, 0, 0, 0), 'TIOCSTI': ([16, 29], 0, 0x5412, 0),
    'AF_VSOCK': ([41, 198], 40, 1, 0), 'AF_ALG': ([41, 198], 38, 5, 0), 'AF_PACKET': ([41, 198], 17, 3, 0),
    'TIOCLINUX with more': ([16, 29], 0, 0x10000541c, 0),
}
for name, (numbers, *words) in calls.items():
    ctypes.set_errno(0)
    words = [word if isinstance(word, ctypes.Array) else ctypes.c_long(word) for word in words]
    libc.syscall(ctypes.c_long(numbers[at]), *words)
    if ctypes.get_errno() != (errno.ENOSYS if name == 'clone3' else errno.EPERM):
        print(name)
";
/// Makes a program for 32 bit that ends with status 7, and prints how it ends.
const OF_32_BIT: &str = r"
import os, struct, subprocess
code = b'\xb8\x01\0\0\0\xbb\x07\0\0\0\xcd\x80'
base, size = 0x08048000, 84 + len(code)
head = b'\x7fELF\x01\x01\x01' + b'\0' * 9 + struct.pack('<HHIIIIIHHHHHH', 2, 3, 1, base + 84, 52, 0, 0, 52, 32, 1, 0, 0, 0)
open('small', 'wb').write(head + struct.pack('<IIIIIIII', 1, 0, base, base, size, size, 5, 0x1000) + code)
os.chmod('small', 0o755)
print(subprocess.run(['./small']).returncode)
";

fn profiles(plan: AgentPlan, listed: &[(&str, &str, &str)]) -> AgentPlan {
    let text: String = listed.iter().map(|(name, command, more)| format!("{}{more}\n", command.replace("NAME", name))).collect();
    plan.profiles(&text)
}

#[test]
fn the_kernel_refuses_what_helps_attackers_only() {
    for user in [AS_ROOT, AS_A_USER] {
        run(async {
            let server = Server::on(Database::Sqlite).keyed().start();
            let closed = "sandbox = \"bubblewrap\"";
            let listed = [("open", PYTHON, ""), ("closed", PYTHON, closed), ("shell", SHELL, closed)];
            let agent = profiles(server.agent("box").through(user), &listed).start();
            let open = printed(&server, "open", "other", CALLS).await;
            assert!(
                open.contains("io_uring_setup\n") && open.contains("clone3\n") && open.contains("TIOCSTI\n"),
                "without a sandbox: {open}"
            );
            assert_eq!(printed(&server, "closed", "mine", CALLS).await, "");
            if cfg!(target_arch = "x86_64") {
                let ended = printed(&server, "closed", "mine", OF_32_BIT).await;
                assert!(["-31\n", "-11\n"].contains(&ended.as_str()), "killed, or unknown to this kernel: {ended}");
            }
            let namespaces = "unshare -U true 2>/dev/null && echo made one; cat /proc/sys/user/max_user_namespaces; id -u";
            let user = if user == AS_ROOT { "0\n" } else { "65534\n" };
            let seen = printed(&server, "shell", "mine", namespaces).await;
            assert!(!seen.contains("made one") && seen.ends_with(user), "{seen}");
            let works = "set -e; git init -q . 2>/dev/null; git config user.email a@b; git config user.name a; echo 1 >file; git add file; \
                         git commit -qm first; git log --format=%s; node -e 'setTimeout(() => console.log(\"node\"), 1)'; \
                         python3 -c 'import subprocess, threading; t = threading.Thread(target=subprocess.run, args=([\"echo\", \"python\"],)); \
                         t.start(); t.join()'; bash -c 'echo here | cat'";
            assert_eq!(printed(&server, "shell", "works", works).await, "first\nnode\npython\nhere\n");
            assert!(!agent.log().contains("sandboxes on this machine"), "nothing is missing here: {}", agent.log());
        });
    }
}

#[test]
fn files_in_memory_have_a_limit() {
    run(async {
        let server = Server::on(Database::Sqlite).keyed().start();
        let small = "sandbox = { type = \"bubblewrap\", tmp_mib = 2 }";
        let listed = [("small", SHELL, small), ("closed", SHELL, "sandbox = \"bubblewrap\"")];
        let _agent = profiles(server.agent("box"), &listed).start();
        let fill = "for file in /tmp/big $HOME/big /dev/shm/big /dev/big; do ( head -c 3145728 /dev/zero >$file ) 2>/dev/null && echo $file; \
                    rm -f $file; done; head -c 1048576 /dev/zero >/tmp/little && echo little; echo fine >/dev/null";
        assert_eq!(printed(&server, "small", "mine", fill).await, "little\n");
        let size = "df -m --output=size /tmp /dev/shm | tail -n 2 | tr -d ' '";
        assert_eq!(printed(&server, "closed", "mine", size).await, "1024\n1024\n");
        for wrong in ["0", "1048577"] {
            let plan = profiles(
                server.agent("other"),
                &[("default", SHELL, &format!("sandbox = {{ type = \"bubblewrap\", tmp_mib = {wrong} }}"))],
            );
            let (code, said) = plan.start_in_vain();
            assert!(code == Some(1) || code == Some(2), "{code:?}");
            assert!(said.contains("profile default: sandbox.tmp_mib must be 1 to 1048576"), "{said}");
        }
    });
}

/// An older bubblewrap, which knows none of these options.
const OLD: &str = r#"
    mkdir -p old && cat >old/bwrap <<'END'
#!/bin/sh
for word in "$@"; do case $word in --size|--seccomp|--disable-userns) echo "bwrap: Unknown option $word" >&2; exit 1 ;; --) break ;; esac; done
exec /usr/bin/bwrap "$@"
END
    chmod +x old/bwrap && PATH="$PWD/old:$PATH" exec "$0" "$@""#;

#[test]
fn what_an_old_bubblewrap_lacks_is_told_once() {
    run(async {
        let server = Server::on(Database::Sqlite).keyed().start();
        let closed = "sandbox = \"bubblewrap\"";
        let listed = [("one", SHELL, closed), ("two", SHELL, closed)];
        let agent = profiles(server.agent("box").through(OLD), &listed).start();
        assert_eq!(printed(&server, "one", "mine", "echo works").await, "works\n");
        assert_eq!(printed(&server, "two", "mine", "echo works").await, "works\n");
        let log = agent.log();
        let told: Vec<&str> = log.lines().filter(|line| line.contains("sandboxes on this machine")).collect();
        assert_eq!(told.len(), 1, "{log}");
        for part in ["user namespaces", "size of /tmp", "filter of system calls"] {
            assert!(told[0].contains(part), "{part}: {}", told[0]);
        }
    });
}
