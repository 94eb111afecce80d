//! The filter of system calls (seccomp) for processes in a sandbox, as a program that bubblewrap loads.
//!
//! It refuses what programs of a run don't need, and what attackers use to get more rights from the kernel: see [`REFUSED`]. All else is
//! allowed.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch, sock_filter,
};

/// These are answered with EPERM.
const REFUSED: [i64; 39] = [
    // New interfaces of the kernel with many errors so far, and helpers of attacks on it.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    // The key rings of the kernel, which are shared with all processes of the user.
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
    // What is mounted, and other namespaces.
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
/// The crate libc does not name it for all systems.
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
/// The families of sockets that programs need. The others are refused: `AF_VSOCK` reaches the hypervisor and its other machines, whatever the network
/// namespace is, and most have seen more errors of the kernel than users.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// These put input into the terminal of others.
const TERMINAL_INPUT: [u32; 2] = [0x5412, 0x541c];
/// The numbers of the x32 variant of x86_64 begin here. No other system has numbers that high.
const X32: u32 = 0x4000_0000;
const CLONE3: u32 = 435;

/// The filter, as bubblewrap reads it.
///
/// # Errors
/// There is none for this architecture.
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
    // The kernel looks at 32 bits of the request.
    let is_request = |request: &u32| rule(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(*request));
    // The rules of a call are alternatives; the conditions of a rule are met together.
    let is_other = |family: &i32| SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, u64::from(family.cast_unsigned()));
    let is_unusual = SeccompRule::new(FAMILIES.iter().map(is_other).collect::<Result<_, _>>()?)?;
    rules.insert(libc::SYS_socket, vec![is_unusual]);
    rules.insert(libc::SYS_ioctl, TERMINAL_INPUT.iter().map(is_request).collect::<Result<_, _>>()?);
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    // It kills processes of other architectures, whose calls have other numbers.
    let filter: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()?;
    Ok(unknown().into_iter().chain(filter).collect())
}

fn rule(argument: u8, length: SeccompCmpArgLen, compared: SeccompCmpOp, with: u64) -> Result<SeccompRule, Error> {
    Ok(SeccompRule::new(vec![SeccompCondition::new(argument, length, compared, with)?])?)
}

/// Answers with ENOSYS, as a kernel does that does not know a call: `clone3`, whose flags a filter can't see, so that libraries use `clone`;
/// and the calls of x32. A filter of the crate has one answer only.
fn unknown() -> [sock_filter; 4] {
    let statement = |code: u32, k, jt, jf| sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k };
    let jump = libc::BPF_JMP | libc::BPF_K;
    [
        // The number of the call is at the beginning of what a filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(jump | libc::BPF_JGE, X32, 1, 0),
        statement(jump | libc::BPF_JEQ, CLONE3, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned(), 0, 0),
    ]
}
