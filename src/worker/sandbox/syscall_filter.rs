//! The filter of system calls (seccomp) for processes in a sandbox, in the form of a program that bubblewrap loads.
//!
//! It refuses system calls that programs of a run don't need, and that attackers use to get more rights from the kernel: see [`REFUSED`].
//! All others are allowed.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

/// System calls that fail with EPERM.
const REFUSED: [i64; 39] = [
    // New kernel interfaces in which many vulnerabilities were found, and those that help attacks on the kernel.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    // The key rings of the kernel, which all processes of the user share.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // The memory and the files of other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_open_by_handle_at,
    // Mounts and other namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    // The machine itself.
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
];
/// The libc crate does not define it for all systems.
const KEXEC_FILE_LOAD: i64 = if cfg!(target_arch = "x86_64") { 320 } else { 294 };
/// The flags of `clone` that make namespaces.
const NEW_NAMESPACE: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
/// The socket families that programs need. All others are refused: `AF_VSOCK` reaches the hypervisor and its other machines, regardless of
/// the network namespace, and most of the rest had more vulnerabilities in the kernel than they have users.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// Requests that put input into somebody else's terminal.
const TERMINAL_INPUT: [u32; 2] = [0x5412, 0x541c];
/// The first number of the x32 variant's calls on x86_64. No other system has numbers that high.
const X32: u32 = 0x4000_0000;
const CLONE3: u32 = 435;

/// The filter in the form that bubblewrap reads.
///
/// # Errors
/// There is no filter for this architecture.
pub(crate) fn bytes() -> Result<Vec<u8>, String> {
    let program = program().map_err(|error| error.to_string())?;
    let bytes = |part: sock_filter| {
        let [code, k] = [part.code.to_ne_bytes().to_vec(), part.k.to_ne_bytes().to_vec()];
        [code, vec![part.jt, part.jf], k].concat()
    };
    Ok(program.into_iter().flat_map(bytes).collect())
}

fn program() -> Result<BpfProgram, Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let has_flag = |flag: &i32| {
        let flag = u64::from(flag.cast_unsigned());
        rule(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)
    };
    rules.insert(libc::SYS_clone, NEW_NAMESPACE.iter().map(has_flag).collect::<Result<_, _>>()?);
    // The kernel uses only 32 bits of the request.
    let is_request = |request: &u32| rule(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(*request));
    // A call matches if one of its rules does; a rule matches if all of its conditions do.
    let is_other = |family: &i32| SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, u64::from(family.cast_unsigned()));
    let is_unusual = SeccompRule::new(FAMILIES.iter().map(is_other).collect::<Result<_, _>>()?)?;
    rules.insert(libc::SYS_socket, vec![is_unusual]);
    rules.insert(libc::SYS_ioctl, TERMINAL_INPUT.iter().map(is_request).collect::<Result<_, _>>()?);
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    // The filter kills processes of other architectures, whose calls have other numbers.
    let filter: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()?;
    Ok(unknown().into_iter().chain(filter).collect())
}

fn rule(argument: u8, length: SeccompCmpArgLen, compared: SeccompCmpOp, with: u64) -> Result<SeccompRule, Error> {
    Ok(SeccompRule::new(vec![SeccompCondition::new(argument, length, compared, with)?])?)
}

/// Makes calls fail with ENOSYS, as in a kernel that does not know them: `clone3`, so that libraries use `clone` (a filter can't see the
/// flags of `clone3`), and the calls of x32. These are separate, because a filter of the crate has only one result for refused calls.
fn unknown() -> [sock_filter; 4] {
    let statement = |code: u32, k, jt, jf| sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k };
    let jump = libc::BPF_JMP | libc::BPF_K;
    [
        // The number of the call is the first field of the filter's input.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(jump | libc::BPF_JGE, X32, 1, 0),
        statement(jump | libc::BPF_JEQ, CLONE3, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned(), 0, 0),
    ]
}
