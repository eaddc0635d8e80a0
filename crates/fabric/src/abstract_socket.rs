//! Unix sockets with an abstract name. Every user of a network namespace may bind such a name and
//! send to it, so the lab asks the kernel who the other process is.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, UnixCredentials,
    bind, getsockopt, recv, recvmsg, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use nix::unistd::geteuid;

/// A process at the other end of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The process id in this process's PID namespace; 0 if it is not visible from there.
    pid: i32,
    /// The user id.
    uid: u32,
}

impl Peer {
    /// The process id in this process's PID namespace; `None` if it is not visible from there.
    pub fn pid(self) -> Option<i32> {
        Some(self.pid).filter(|pid| *pid > 0)
    }

    /// Whether it runs as root or as the user of this process.
    pub fn is_trusted(self) -> bool {
        [0, geteuid().as_raw()].contains(&self.uid)
    }

    /// The process that listens at an abstract name in the network namespace of the calling thread
    /// (`SO_PEERCRED`).
    ///
    /// # Errors
    /// As connect(2).
    pub fn listening(name: &str) -> io::Result<Self> {
        let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        let peer = getsockopt(&stream, sockopt::PeerCredentials)?;
        Ok(Self { pid: peer.pid(), uid: peer.uid() })
    }

    /// The process that has bound an abstract name in the network namespace of the calling thread;
    /// `None` if it is not visible.
    pub fn holding(name: &str) -> Option<Self> {
        let sockets = std::fs::read_to_string("/proc/thread-self/net/unix").ok()?;
        let inode = inode_of(&sockets, name)?;
        let link = format!("socket:[{inode}]");
        let has = |pid: i32| {
            let files =
                std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            files.into_iter().any(|file| {
                std::fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == &*link)
            })
        };
        let mut processes = std::fs::read_dir("/proc").ok()?.flatten();
        let pid = processes.find_map(|process| {
            process.file_name().to_str()?.parse::<i32>().ok().filter(|pid| has(*pid))
        })?;
        // The owner of the files in /proc is root's if the process is not dumpable.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        Some(Self { pid, uid: users.split_whitespace().nth(1)?.parse().ok()? })
    }
}

/// The inode of the socket that has bound an abstract name, in the text of `/proc/net/unix`. A name
/// may contain line breaks, and thus lines that name other sockets: two lines count as none.
fn inode_of<'s>(sockets: &'s str, name: &str) -> Option<&'s str> {
    let mut inodes = sockets.lines().filter_map(|line| {
        let (fields, bound) = line.split_once(" @")?;
        (bound == name).then(|| fields.split_whitespace().nth(6))?
    });
    inodes.next().filter(|_| inodes.next().is_none())
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => write!(f, "a process in another container, of user {}", self.uid),
            pid => write!(f, "process {pid} of user {}", self.uid),
        }
    }
}

/// The most bytes of a message.
pub const LONGEST: usize = 1 << 20;

/// A datagram socket that learns from whom each message is.
#[derive(Debug)]
pub struct Datagrams(OwnedFd);

/// A message, and where it came from.
#[derive(Debug)]
pub struct Message {
    /// What was sent.
    pub bytes: Vec<u8>,
    /// The process that sent it.
    pub from: Peer,
    /// Where to send the answer; `None` if the sender has no address.
    pub address: Option<UnixAddr>,
}

impl Datagrams {
    /// Opens a socket that sends messages of at most [`LONGEST`] bytes. It gets an address of the
    /// kernel's choice when it sends.
    ///
    /// # Errors
    /// As socket(2).
    pub fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        // Before it has a name, so that no message comes without credentials.
        setsockopt(&socket, sockopt::PassCred, &true)?;
        // Room for a long message. Without the privilege, there is the room that all sockets have.
        let _ = setsockopt(&socket, sockopt::SndBufForce, &(2 * LONGEST));
        Ok(Self(socket))
    }

    /// Opens a socket with an abstract name that does not wait for messages.
    ///
    /// # Errors
    /// As bind(2).
    pub fn bound(name: &str) -> io::Result<Self> {
        let opened = Self::open()?;
        bind(opened.0.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
        nix::fcntl::fcntl(&opened.0, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK))?;
        Ok(opened)
    }

    /// Limits the time that [`Datagrams::receive`] and [`Datagrams::send`] wait.
    ///
    /// # Errors
    /// As setsockopt(2).
    pub fn set_timeout(&self, limit: Duration) -> io::Result<()> {
        let limit = TimeVal::new(limit.as_secs().cast_signed(), limit.subsec_micros().into());
        setsockopt(&self.0, sockopt::SendTimeout, &limit)?;
        Ok(setsockopt(&self.0, sockopt::ReceiveTimeout, &limit)?)
    }

    /// Receives a message of at most `most` bytes.
    ///
    /// # Errors
    /// As recvmsg(2). A longer message is an error, and is gone.
    pub fn receive(&self, most: usize) -> io::Result<Message> {
        let length = recv(self.0.as_raw_fd(), &mut [], MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC)?;
        if length > most {
            recv(self.0.as_raw_fd(), &mut [], MsgFlags::MSG_TRUNC)?;
            let text = format!("a message of {length} bytes: {most} at most are expected");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let mut bytes = vec![0; length];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let mut space = nix::cmsg_space!(UnixCredentials);
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let received =
            recvmsg::<UnixAddr>(self.0.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
        let from = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::ScmCredentials(sender) => {
                Some(Peer { pid: sender.pid(), uid: sender.uid() })
            }
            _ => None,
        });
        let from = from.ok_or_else(|| io::Error::other("a message without credentials"))?;
        let address = received.address;
        Ok(Message { bytes, from, address })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// As sendto(2).
    pub fn send(&self, bytes: &[u8], to: &UnixAddr) -> io::Result<()> {
        sendto(self.0.as_raw_fd(), bytes, to, MsgFlags::MSG_NOSIGNAL)?;
        Ok(())
    }
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_behind_a_name_and_a_message_is_known() {
        let name = format!("lab-abstract-{}", std::process::id());
        assert_eq!(Peer::holding(&name), None);
        let bound = Datagrams::bound(&name).unwrap();
        let own = Peer { pid: std::process::id().cast_signed(), uid: geteuid().as_raw() };
        assert_eq!(Peer::holding(&name), Some(own));
        assert!(own.is_trusted());
        assert!(bound.receive(8).is_err(), "it does not wait");
        let sender = Datagrams::open().unwrap();
        sender.send(b"question", &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
        let message = bound.receive(64).unwrap();
        assert_eq!((message.bytes.as_slice(), message.from), (b"question".as_slice(), own));
        let address = message.address.unwrap();
        bound.send(b"answer", &address).unwrap();
        assert_eq!(sender.receive(64).unwrap().bytes, b"answer");
        let long = vec![7; 400_000];
        bound.send(&long, &address).unwrap();
        bound.send(&long, &address).unwrap();
        let error = sender.receive(399_999).map(|message| message.bytes.len()).unwrap_err();
        assert!(error.to_string().starts_with("a message of 400000 bytes"), "{error}");
        assert_eq!(sender.receive(LONGEST).unwrap().bytes, long);
        drop(bound);
        assert_eq!(Peer::holding(&name), None);
    }

    #[test]
    fn nobody_waits_for_one_that_does_not_read() {
        let name = format!("lab-abstract-full-{}", std::process::id());
        let _bound = Datagrams::bound(&name).unwrap();
        let sender = Datagrams::open().unwrap();
        sender.set_timeout(Duration::from_millis(20)).unwrap();
        let to = UnixAddr::new_abstract(name.as_bytes()).unwrap();
        let errors = (0..10_000).find_map(|_| sender.send(b"question", &to).err());
        assert_eq!(errors.map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
    }

    /// A name with a line break plants a line of another socket.
    #[test]
    fn a_name_that_two_lines_have_is_held_by_nobody() {
        let line = |inode: u32, name: &str| format!("0: 2 0 0 0001 01 {inode} @{name}\n");
        let sockets = line(7, "x") + &line(5, "lab") + &line(9, "y");
        assert_eq!(inode_of(&sockets, "lab"), Some("5"));
        let planted = sockets + &line(11, &("z\n".to_owned() + line(1, "lab").trim_end()));
        assert_eq!(inode_of(&planted, "lab"), None);
    }
}
