//! Whether another process may change vtepd's state. It needs CAP_NET_ADMIN, as for `ip link`. User
//! 0 without that capability, as in a restricted container, is not enough.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};

/// `CAP_NET_ADMIN` (`include/uapi/linux/capability.h`).
const NET_ADMIN: u32 = 12;

/// The process that connected a Unix socket.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Its id; 0 in a PID namespace that cannot be seen from here.
    pid: i32,
    process: Process,
}

/// What holds a process, so that its id cannot be that of a later process unnoticed.
#[derive(Debug)]
enum Process {
    /// A descriptor of it.
    Held(OwnedFd),
    /// It has ended.
    Ended,
    /// The kernel has no `SO_PEERPIDFD` (Linux 6.5). Only the id is known.
    Unknown,
}

impl Peer {
    /// The process that connected this socket. A process that has got the connection from it since
    /// is another one.
    ///
    /// # Errors
    /// As getsockopt(2) for `SO_PEERCRED`, or too few descriptors are left (`EMFILE`).
    pub(crate) fn of(socket: &impl AsFd) -> nix::Result<Self> {
        let pid = getsockopt(socket, PeerCredentials)?.pid();
        let process = match getsockopt(socket, PeerPidfd) {
            Ok(process) => Process::Held(process),
            Err(Errno::ENOPROTOOPT) => Process::Unknown,
            Err(error @ (Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)) => return Err(error),
            Err(_) => Process::Ended,
        };
        Ok(Self { pid, process })
    }

    /// Whether the process is in a PID namespace that cannot be seen from here.
    pub(crate) const fn is_hidden(&self) -> bool {
        self.pid <= 0
    }

    /// Checks whether the process may change vtepd's state now.
    ///
    /// # Errors
    /// Why it may not: it lacks the capability, has ended, or is not visible from this PID
    /// namespace.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.is_hidden() {
            return Err("the process that asks is in another PID namespace, so its capabilities cannot be seen; ask from \
                        vtepd's own container or from the host of vtepd"
                .to_owned());
        }
        let result = has_capability(self.pid);
        // A process that still lives was the one with its id before.
        if self.lives() {
            result
        } else {
            Err(format!("process {}, which connected, has ended: connect again", self.pid))
        }
    }

    fn lives(&self) -> bool {
        match &self.process {
            Process::Held(process) => {
                // Readable means that it has ended (pidfd_open(2)).
                let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
                poll(&mut ended, PollTimeout::ZERO) == Ok(0)
            }
            Process::Ended => false,
            Process::Unknown => true,
        }
    }
}

/// Checks whether the process with this id has the capability.
fn has_capability(pid: i32) -> Result<(), String> {
    let read = |process: &str, file: &str| {
        let path = format!("/proc/{process}/{file}");
        fs::read_to_string(&path).map_err(|error| format!("{path} cannot be read: {error}"))
    };
    let pid = pid.to_string();
    // In a user namespace of its own, a process has all capabilities, but they do not apply here.
    if read(&pid, "uid_map")? != read("self", "uid_map")? {
        return Err(format!("process {pid} is in another user namespace"));
    }
    let status = read(&pid, "status")?;
    if effective(&status).is_some_and(|set| set >> NET_ADMIN & 1 == 1) {
        Ok(())
    } else {
        Err(format!("process {pid} has not the capability CAP_NET_ADMIN"))
    }
}

/// The effective capabilities in a status file of proc(5).
fn effective(status: &str) -> Option<u64> {
    let text = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(text.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    use std::process::{Child, Command, Stdio};

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

    use super::*;

    #[test]
    fn the_capability_is_read_from_the_status_file() {
        let text =
            |set: &str| format!("Name:\tvtepctl\nCapPrm:\t000001ffffffffff\nCapEff:\t{set}\n");
        assert_eq!(effective(&text("0000000000001000")), Some(1 << NET_ADMIN));
        assert_eq!(effective("Name:\tvtepctl\n"), None);
        let hidden = Peer { pid: 0, process: Process::Unknown };
        assert!(hidden.is_hidden() && hidden.check().is_err());
        assert!(has_capability(i32::MAX).is_err());
    }

    /// The name of the socket that [`connects_its_standard_input`] connects to.
    const CONNECT: &str = "VTEPD_TEST_CONNECT";

    /// Does nothing unless the test below runs it in a process of its own.
    #[test]
    fn connects_its_standard_input() {
        if let Ok(name) = std::env::var(CONNECT) {
            use std::os::fd::AsRawFd as _;
            let address = UnixAddr::new_abstract(name.as_bytes()).unwrap();
            connect(std::io::stdin().as_raw_fd(), &address).unwrap();
        }
    }

    /// A process with the id `pid`, which has ended.
    fn successor(pid: u32) -> Option<Child> {
        (0..1000).find_map(|_| {
            fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
            let mut child = Command::new("sleep").arg("60").spawn().unwrap();
            if child.id() == pid {
                return Some(child);
            }
            child.kill().unwrap();
            child.wait().unwrap();
            None
        })
    }

    #[test]
    fn a_process_that_has_the_id_of_the_one_that_connected_is_another_one() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIPPED a_process_that_has_the_id…: it needs root");
            return;
        }
        let name = format!("vtepd-privilege-{}", std::process::id());
        let listener =
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let ours =
            socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "privilege::tests::connects_its_standard_input"])
            .env(CONNECT, &name)
            .stdin(Stdio::from(ours.try_clone().unwrap()))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let peer = Peer::of(&listener.accept().unwrap().0).unwrap();
        assert_eq!(peer.pid as u32, child.id());
        assert!(child.wait().unwrap().success());
        let Some(mut successor) = successor(child.id()) else {
            panic!("no process got the id {}", child.id());
        };
        let checked = (has_capability(peer.pid), peer.check());
        successor.kill().unwrap();
        successor.wait().unwrap();
        assert!(checked.0.is_ok() && checked.1.is_err(), "{checked:?}");
    }
}
