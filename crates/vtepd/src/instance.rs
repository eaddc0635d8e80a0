//! One vtepd per network namespace: an abstract Unix socket is the lock. It belongs to the
//! namespace and goes with the process. By it a newer vtepd asks the running one to end
//! (`--replace`), from whatever PID namespace.
//!
//! Any user may bind any abstract name. A name of a user who is neither root nor this process's own
//! is no lock: where such a user has the usual name, vtepd takes one with a random ending, and
//! everybody looks for those, too.

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
use crate::privilege;

/// Name of the socket, after the leading zero byte; `ss -xl` shows it as `@vtepd`.
const NAME: &str = "vtepd";
/// What is between the name and a random ending.
const RANDOM: char = '.';
/// What a successor says.
const END: &[u8] = b"end\n";
/// How long a peer gets to say something.
const SPEAKING: Duration = Duration::from_secs(1);
/// How long the one before gets to end. It takes hooks off one by one, 7 to 31 ms each.
const LEAVING: Duration = Duration::from_secs(60);
/// How long one that has ended may still hold the lock.
const RELEASE: Duration = Duration::from_secs(2);

/// The lock.
#[derive(Debug)]
pub struct Instance(UnixListener);

/// The lock could not be had.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// Somebody has it.
    #[error(
        "another vtepd ({}) has this network namespace already; take over from it with --replace, stop it first, or run in \
         another namespace", process(*.pid)
    )]
    Running {
        /// Process id, as this process's PID namespace numbers it; 0 where it cannot be seen from
        /// here.
        pid: i32,
    },
    /// The one that was to be replaced stays.
    #[error("the running vtepd ({}) was asked to end and has not; stop it first", process(*.pid))]
    Stays {
        /// As above.
        pid: i32,
    },
    /// The system refused.
    #[error("the lock of this network namespace (abstract socket @vtepd) cannot be had: {0}")]
    System(#[from] io::Error),
}

/// How a process is called that may be in another PID namespace, as another container's is.
pub fn process(pid: i32) -> String {
    if pid == 0 { "in another container".to_owned() } else { format!("process {pid}") }
}

impl Instance {
    /// Takes the lock of the calling thread's network namespace. One that was killed a moment ago
    /// may still have it: the kernel takes its time with the sockets of the dead, which are waited
    /// for.
    ///
    /// # Errors
    /// When another vtepd has it.
    pub async fn lock() -> Result<Self, InstanceError> {
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
        // Under whatever name.
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
            // It came this moment.
            return Err(InstanceError::Running { pid: holder.pid });
        }
        let name =
            format!("{NAME}{RANDOM}{:016x}", RandomState::new().hash_one(std::process::id()));
        let who = holder
            .map_or_else(|error| format!("who does not answer ({error})"), |who| who.to_string());
        tracing::warn!("the abstract socket @{NAME} is held by {who}: this vtepd's is @{name}");
        let bound = Self::bind(&name)?;
        // Of two that come at once, at most one stays.
        match running_ones().find(|(other, _)| *other != name) {
            Some((_, Holder { pid, .. })) => Err(InstanceError::Running { pid }),
            None => Ok(bound),
        }
    }

    fn bind(name: &str) -> io::Result<Self> {
        let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self(UnixListener::from_std(listener)?))
    }

    /// Takes the lock; one that has it is asked to end, and waited for.
    ///
    /// # Errors
    /// When it does not end within a minute.
    pub async fn replace() -> Result<Self, InstanceError> {
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
        // It says nothing; its end is heard. Whether that was in order or not is the same here.
        let mut word = [0];
        let gone = timeout(LEAVING, stream.read(&mut word)).await;
        let _ = gone.map_err(|_| InstanceError::Stays { pid })?;
        match Self::lock().await {
            Err(InstanceError::Running { .. }) => Err(InstanceError::Stays { pid }),
            other => other,
        }
    }

    /// Waits for a successor that may ask this process to end. It takes the end of the connection
    /// for the end of this process.
    pub async fn successor(&self) -> UnixStream {
        loop {
            let Ok((mut stream, _)) = self.0.accept().await else {
                sleep(SPEAKING).await;
                continue;
            };
            let Ok(peer) = stream.peer_cred() else { continue };
            // Before any time is given to it: everybody may connect.
            if ![0, geteuid().as_raw()].contains(&peer.uid()) {
                continue;
            }
            let mut said = [0; END.len()];
            let spoken = timeout(SPEAKING, stream.read_exact(&mut said)).await;
            if !matches!(spoken, Ok(Ok(_))) || said != END {
                continue;
            }
            // A successor in another container cannot be looked at.
            let pid = peer.pid().filter(|pid| *pid != 0);
            match pid.map_or(Ok(()), |pid| privilege::check(Some(pid))) {
                Ok(()) => return stream,
                Err(reason) => tracing::warn!("vtepd was asked to end, and does not: {reason}"),
            }
        }
    }
}

/// The process that has the lock of the calling thread's network namespace, as
/// [`InstanceError::Running`] has it.
pub fn running() -> Option<i32> {
    running_one().map(|(_, holder)| holder.pid)
}

fn running_one() -> Option<(String, Holder)> {
    running_ones().next()
}

/// The names that may be a vtepd's lock and that a user holds who may run one, with their holders.
fn running_ones() -> impl Iterator<Item = (String, Holder)> {
    // Of the calling thread's network namespace.
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
    names.into_iter().filter_map(|name| {
        let holder = Holder::of(name.as_bytes()).ok().filter(|holder| holder.is_trusted())?;
        Some((name, holder))
    })
}

/// Whether a process is dead, or cannot be seen from here.
fn is_ending(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The state follows the name, which stands in parentheses (proc(5)).
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}
