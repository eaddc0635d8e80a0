//! Gives up privileges after the start: capabilities, privileges through executed programs, system
//! calls that vtepd does not make, and changes of files.
//!
//! Capabilities and file rules belong to the calling thread and to the threads that it starts
//! later, so each older thread calls [`capabilities`] itself. The system call filter applies to all
//! threads.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::system_calls::ALLOWED;

/// Numbers of capabilities (`include/uapi/linux/capability.h`).
const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;
const IPC_LOCK: u32 = 14;
const SYS_ADMIN: u32 = 21;
const SYS_NICE: u32 = 23;
const BPF: u32 = 39;
/// Highest number to try.
const LAST: u32 = 63;
/// The capabilities that attaching, netlink, packet sockets and the workers' scheduling need later.
const KEPT: [u32; 5] = [NET_ADMIN, NET_RAW, IPC_LOCK, SYS_NICE, BPF];

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

/// `struct __user_cap_data_struct`: one for the first 32 capabilities and one for the others.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn prctl(option: libc::c_int, argument: u64) -> io::Result<libc::c_int> {
    // SAFETY: the options used here take numbers.
    let result = unsafe { libc::prctl(option, argument, 0u64, 0u64, 0u64) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn permitted() -> io::Result<u64> {
    let mut header = CapHeader { version: VERSION_3, pid: 0 };
    let mut data = [CapData::default(); 2];
    // SAFETY: version 3 writes two structures, and `data` has two.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
    let [low, high] = data;
    Ok(u64::from(low.permitted) | u64::from(high.permitted) << 32)
}

/// Gives up all capabilities of the calling thread except those needed after the start, and sets
/// `no_new_privs`. A thread without CAP_BPF keeps CAP_SYS_ADMIN, which includes it.
///
/// # Errors
/// When the kernel refuses.
pub fn capabilities() -> io::Result<()> {
    let bit = |capability: u32| 1u64 << capability;
    let permitted = permitted()?;
    let mut kept = KEPT.into_iter().map(bit).sum::<u64>() & permitted;
    if permitted & bit(BPF) == 0 {
        kept |= bit(SYS_ADMIN) & permitted;
    }
    for capability in 0..=LAST {
        // The bounding set applies only to programs that are executed later, and vtepd executes
        // none. Dropping needs CAP_SETPCAP, so failures are ignored.
        let is_bounded = prctl(libc::PR_CAPBSET_READ, capability.into()).is_ok_and(|set| set == 1);
        if is_bounded && kept & bit(capability) == 0 {
            let _ = prctl(libc::PR_CAPBSET_DROP, capability.into());
        }
    }
    let _ = prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as u64);
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    let half = |set: u64| CapData { effective: set as u32, permitted: set as u32, inheritable: 0 };
    let mut header = CapHeader { version: VERSION_3, pid: 0 };
    let data = [half(kept), half(kept >> 32)];
    // SAFETY: version 3 reads two structures, and `data` has two.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) })?;
    Ok(())
}

/// `BPF_LD | BPF_W | BPF_ABS`, `BPF_JMP | BPF_JEQ | BPF_K` and `BPF_RET | BPF_K`.
const LOAD: u16 = 0x20;
const JUMP_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
/// `AUDIT_ARCH_*` of the machine that this is built for.
#[cfg(target_arch = "x86_64")]
const OURS: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const OURS: u32 = 0xc000_00b7;

const fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

/// A filter that allows these system calls. All others fail with EPERM.
fn filter(allowed: &[libc::c_long]) -> Vec<libc::sock_filter> {
    let refuse = statement(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let mut program = vec![
        statement(LOAD, ARCHITECTURE),
        libc::sock_filter { code: JUMP_EQUAL, jt: 1, jf: 0, k: OURS },
        refuse,
        statement(LOAD, NUMBER),
    ];
    for call in allowed {
        program.push(libc::sock_filter { code: JUMP_EQUAL, jt: 0, jf: 1, k: *call as u32 });
        program.push(statement(RETURN, libc::SECCOMP_RET_ALLOW));
    }
    program.push(refuse);
    program
}

/// Makes all system calls of the process fail with EPERM, except those that vtepd makes. The kernel
/// logs them if `kernel.seccomp.actions_logged` contains `errno`.
///
/// # Errors
/// When the kernel has no such filters, or when a thread has a filter of its own.
pub fn system_calls() -> io::Result<()> {
    let program = filter(ALLOWED);
    let length = libc::c_ushort::try_from(program.len()).map_err(io::Error::other)?;
    let filter = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // `SPEC_ALLOW`: older kernels otherwise disable speculation in filtered threads.
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC
        | libc::SECCOMP_FILTER_FLAG_LOG
        | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: the kernel reads the program, which lives until the call returns.
    let set = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter)
    };
    // A positive result is the identifier of a thread that could not be synchronised.
    if check(set)? == 0 { Ok(()) } else { Err(io::Error::other("a thread keeps its own filter")) }
}

/// `LANDLOCK_ACCESS_FS_*` (`include/uapi/linux/landlock.h`) of the first version: all rights that
/// change files, and execution.
const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_SOCK: u64 = 1 << 9;
const CHANGES: u64 = EXECUTE | WRITE_FILE | 0x1ff0;
/// `LANDLOCK_RULE_PATH_BENEATH`.
const PATH_BENEATH: u32 = 1;

#[repr(C)]
struct RulesetAttributes {
    handled_access_fs: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: i32,
}

/// Forbids the calling thread, and those that it starts later, to change or execute files.
/// Exceptions are `/dev/net/tun`, the directory of `socket`, and the switch of RCU grace periods if
/// `expedited_rcu` is set.
///
/// # Errors
/// When the kernel has no such rules.
pub fn files(socket: Option<&Path>, expedited_rcu: bool) -> io::Result<()> {
    let attributes = RulesetAttributes { handled_access_fs: CHANGES };
    let size = size_of::<RulesetAttributes>();
    // SAFETY: the kernel reads `size` bytes of the structure and returns a new descriptor.
    let ruleset = unsafe {
        let call = libc::SYS_landlock_create_ruleset;
        let ruleset = check(libc::syscall(call, &raw const attributes, size, 0u32))?;
        OwnedFd::from_raw_fd(i32::try_from(ruleset).map_err(io::Error::other)?)
    };
    let folder = socket.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    let rules = [
        (expedited_rcu.then(|| Path::new(crate::rcu_expedite::SWITCH)), WRITE_FILE),
        // A deleted TAP is opened again when it returns.
        (Some(Path::new("/dev/net/tun")), WRITE_FILE),
        (folder, MAKE_SOCK | REMOVE_FILE),
    ];
    for (path, allowed_access) in rules {
        // A path that does not exist cannot be allowed.
        let Some(place) = path.and_then(|path| {
            OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
                .open(path)
                .ok()
        }) else {
            continue;
        };
        let rule = PathBeneath { allowed_access, parent_fd: place.as_raw_fd() };
        let call = libc::SYS_landlock_add_rule;
        // SAFETY: the kernel reads the rule; both descriptors are open.
        check(unsafe {
            libc::syscall(call, ruleset.as_raw_fd(), PATH_BENEATH, &raw const rule, 0u32)
        })?;
    }
    // SAFETY: a descriptor and a number.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict of the filter for a system call, interpreted as the kernel does.
    fn verdict(program: &[libc::sock_filter], architecture: u32, number: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            match step.code {
                LOAD => accumulator = if step.k == NUMBER { number } else { architecture },
                JUMP_EQUAL => {
                    at += usize::from(if accumulator == step.k { step.jt } else { step.jf })
                }
                RETURN => return step.k,
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn the_filter_allows_what_is_listed_on_this_architecture_alone() {
        let program = filter(ALLOWED);
        let allow = libc::SECCOMP_RET_ALLOW;
        let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        for call in [libc::SYS_bpf, libc::SYS_sendmmsg, libc::SYS_ppoll, libc::SYS_futex] {
            assert_eq!(verdict(&program, OURS, call as u32), allow, "{call}");
            assert_eq!(verdict(&program, OURS ^ 1, call as u32), refuse, "{call}");
        }
        for call in [
            libc::SYS_execve,
            libc::SYS_setns,
            libc::SYS_mount,
            libc::SYS_ptrace,
            libc::SYS_unshare,
        ] {
            assert_eq!(verdict(&program, OURS, call as u32), refuse, "{call}");
        }
        assert!(program.len() < 4096, "the kernel takes no longer ones");
    }

    /// Runs in a thread of its own, so that the rest of the process keeps its privileges. Needs
    /// root.
    #[test]
    fn capabilities_are_given_up_and_files_stay_as_they_are() {
        let confined = || {
            capabilities().unwrap();
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let file = std::env::temp_dir().join(format!("vtepd-confined-{}", std::process::id()));
            std::fs::write(&file, "").unwrap();
            let (allowed, at) = (files(None, false), file.clone());
            let written = std::fs::write(at, "");
            std::fs::read(&file).unwrap();
            (status, allowed.map(|()| written.is_err()), file)
        };
        let (status, files_stay, file) = std::thread::spawn(confined).join().unwrap();
        std::fs::remove_file(file).unwrap();
        let kept: u64 = KEPT.into_iter().map(|capability| 1 << capability).sum();
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        assert_eq!(
            (set("CapEff:"), set("CapPrm:"), set("CapInh:"), set("CapAmb:")),
            (kept, kept, 0, 0)
        );
        assert_eq!(set("CapBnd:") & !kept, 0);
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
        // Only where the kernel has landlock.
        assert!(files_stay.unwrap_or(true));
    }
}
