//! Ensures that one vtepd runs in each network namespace. An abstract Unix socket is the lock: it
//! belongs to the network namespace and disappears with the process. A newer vtepd asks the running
//! one to end through this socket (`--replace`), from any PID namespace.
//!
//! Any user may bind any abstract name. A name that belongs neither to root nor to this process's
//! own user is not a lock. If such a user holds the usual name, vtepd binds a name with a random
//! suffix. The search for a running vtepd covers those names, too.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::time::Duration;

use nix::unistd::geteuid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout};

use crate::holder::Holder;
use crate::privilege::Peer;

/// Name of the socket, after the leading zero byte; `ss -xl` shows it as `@vtepd`.
const NAME: &str = "vtepd";
/// Separates the name from a random suffix.
const RANDOM: char = '.';
/// The request of a successor.
const END: &[u8] = b"end\n";
/// How long a peer may take to send its request.
const SPEAKING: Duration = Duration::from_secs(1);
/// How long a replaced vtepd may take to end. It detaches its hooks one by one.
const LEAVING: Duration = Duration::from_secs(60);
/// How long a process that has ended may still hold the lock.
const RELEASE: Duration = Duration::from_secs(2);

/// The lock of a network namespace. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct Instance(UnixListener);

/// The lock could not be acquired.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstanceError {
    /// Another vtepd holds it.
    #[error(
        "another vtepd ({}) has this network namespace already; take over from it with --replace, stop it first, or run in \
         another namespace", process(*.pid)
    )]
    Running {
        /// Process id in this process's PID namespace; 0 if the process is not visible from there.
        pid: i32,
    },
    /// The vtepd that was to be replaced does not end.
    #[error("the running vtepd ({}) was asked to end and has not; stop it first", process(*.pid))]
    Stays {
        /// As in [`InstanceError::Running`].
        pid: i32,
    },
    /// A system call failed.
    #[error("the lock of this network namespace (abstract socket @vtepd) cannot be had: {0}")]
    System(#[from] io::Error),
}

/// Describes a process that may be in another PID namespace, for example in another container.
pub(crate) fn process(pid: i32) -> String {
    if pid == 0 { "in another container".to_owned() } else { format!("process {pid}") }
}

impl Instance {
    /// Acquires the lock of the calling thread's network namespace. The kernel closes the sockets
    /// of a killed process with a delay. A lock that such a process still holds is waited for.
    ///
    /// # Errors
    /// When another vtepd holds it.
    pub(crate) async fn lock() -> Result<Self, InstanceError> {
        let start = Instant::now();
        loop {
            match Self::try_lock() {
                Err(InstanceError::Running { pid })
                    if is_ending(pid) && start.elapsed() < RELEASE =>
                {
                    sleep(Duration::from_millis(5)).await;
                }
                other => return other,
            }
        }
    }

    fn try_lock() -> Result<Self, InstanceError> {
        // The name of a running vtepd may have a random suffix.
        if let Some((_, Holder { pid, .. })) = running_one() {
            return Err(InstanceError::Running { pid });
        }
        match Self::bind(NAME) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return Ok(bound?),
        }
        let holder = Holder::of(NAME.as_bytes());
        if let Ok(holder) = &holder
            && holder.is_trusted()
        {
            // Another vtepd bound the name after the check above.
            return Err(InstanceError::Running { pid: holder.pid });
        }
        let name =
            format!("{NAME}{RANDOM}{:016x}", RandomState::new().hash_one(std::process::id()));
        let who = holder
            .map_or_else(|error| format!("who does not answer ({error})"), |who| who.to_string());
        tracing::warn!("the abstract socket @{NAME} is held by {who}: this vtepd's is @{name}");
        let bound = Self::bind(&name)?;
        // If two processes get here at the same time, at most one keeps its lock.
        match running_ones().into_iter().find(|(other, _)| *other != name) {
            Some((_, Holder { pid, .. })) => Err(InstanceError::Running { pid }),
            None => Ok(bound),
        }
    }

    fn bind(name: &str) -> io::Result<Self> {
        let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self(UnixListener::from_std(listener)?))
    }

    /// Acquires the lock. A vtepd that holds it is asked to end, and waited for.
    ///
    /// # Errors
    /// When it does not end within a minute.
    pub(crate) async fn replace() -> Result<Self, InstanceError> {
        let pid = match Self::lock().await {
            Err(InstanceError::Running { pid }) => pid,
            other => return other,
        };
        tracing::info!("the running vtepd ({}) is asked to end", process(pid));
        let name = running_one().map_or_else(|| NAME.to_owned(), |(name, _)| name);
        let stream = StdStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
        stream.set_nonblocking(true)?;
        let mut stream = UnixStream::from_std(stream)?;
        stream.write_all(END).await?;
        // The running vtepd closes the connection when it ends. An error means the same.
        let mut word = [0];
        let gone = timeout(LEAVING, stream.read(&mut word)).await;
        let _ = gone.map_err(|_| InstanceError::Stays { pid })?;
        match Self::lock().await {
            Err(InstanceError::Running { .. }) => Err(InstanceError::Stays { pid }),
            other => other,
        }
    }

    /// Waits for a successor that may ask this process to end. The caller must keep the returned
    /// connection open until this process has released everything, because the successor waits for
    /// its end.
    pub(crate) async fn successor(&self) -> UnixStream {
        loop {
            let Ok((mut stream, _)) = self.0.accept().await else {
                sleep(SPEAKING).await;
                continue;
            };
            let (Ok(user), Ok(peer)) = (stream.peer_cred(), Peer::of(&stream)) else { continue };
            // Checked before waiting for a request: any user may connect.
            if ![0, geteuid().as_raw()].contains(&user.uid()) {
                continue;
            }
            let mut said = [0; END.len()];
            let spoken = timeout(SPEAKING, stream.read_exact(&mut said)).await;
            if !matches!(spoken, Ok(Ok(_))) || said != END {
                continue;
            }
            // The capabilities of a process in another PID namespace cannot be read.
            match if peer.is_hidden() { Ok(()) } else { peer.check() } {
                Ok(()) => return stream,
                Err(reason) => tracing::warn!("vtepd was asked to end, and does not: {reason}"),
            }
        }
    }
}

/// The process that holds the lock of the calling thread's network namespace. The id is as in
/// [`InstanceError::Running`].
pub(crate) fn running() -> Option<i32> {
    running_one().map(|(_, holder)| holder.pid)
}

fn running_one() -> Option<(String, Holder)> {
    running_ones().into_iter().next()
}

/// The names that may be locks of vtepd and whose holders are trusted, with the holders.
fn running_ones() -> Vec<(String, Holder)> {
    // The sockets of the calling thread's network namespace.
    let sockets = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    let is_lock = |name: &str| {
        let rest = name.strip_prefix(NAME)?;
        (rest.is_empty() || rest.starts_with(RANDOM)).then(|| name.to_owned())
    };
    let names =
        sockets.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    let mut names: Vec<String> = names.filter_map(is_lock).collect();
    // Connections have the name of their listener.
    names.sort_unstable();
    names.dedup();
    Holder::trusted_of(names)
}

/// Whether a process is dead, or not visible in this PID namespace.
fn is_ending(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The state follows the name, which stands in parentheses (proc(5)).
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}
