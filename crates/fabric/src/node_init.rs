//! The first process of a node: it keeps the node's namespaces, as the init process of a container
//! does.
//!
//! It mounts the `/proc` of its PID namespace, and reaps processes whose parents have ended. With it,
//! the kernel ends all processes of the node (`pid_namespaces(7)`).

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;

use nix::mount::{MsFlags, mount};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

/// Waits for the end of standard input: the caller's root is the node's then. Mounts `/proc` of the
/// calling process's PID namespace at these paths. Then reaps processes for ever.
///
/// # Errors
/// As read(2), mount(2) and sigwait(3).
pub fn run(procs: &[PathBuf]) -> io::Result<Infallible> {
    let children: SigSet = [Signal::SIGCHLD].into_iter().collect();
    children.thread_block()?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    for proc in procs {
        mount(Some("proc"), proc, Some("proc"), flags, None::<&str>)?;
    }
    loop {
        children.wait()?;
        // One signal may stand for several children.
        while waitpid(None, Some(WaitPidFlag::WNOHANG))
            .is_ok_and(|status| status != WaitStatus::StillAlive)
        {}
    }
}
