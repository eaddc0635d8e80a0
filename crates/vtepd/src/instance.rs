//! One vtepd per network namespace: an abstract Unix socket is the lock. It belongs to the namespace and goes with the process.
//! By it a newer vtepd asks the running one to end (`--replace`), from whatever PID namespace.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep, timeout};

/// Name of the socket, after the leading zero byte; `ss -xl` shows it as `@vtepd`.
const NAME: &[u8] = b"vtepd";
/// What a successor says.
const END: &[u8] = b"end\n";
/// How long a peer gets to say something.
const SPEAKING: Duration = Duration::from_secs(1);
/// How long the one before gets to end. It takes hooks off one by one, 7 to 31 ms each.
const ENDING: Duration = Duration::from_secs(60);
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
        /// Process id, as this process's PID namespace numbers it; 0 where it cannot be seen from here.
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
    /// Takes the lock of the calling thread's network namespace. One that was killed a moment ago may still have it: the kernel
    /// takes its time with the sockets of the dead, which are waited for.
    ///
    /// # Errors
    /// When another vtepd has it.
    pub async fn lock() -> Result<Self, InstanceError> {
        let start = Instant::now();
        loop {
            match Self::try_lock() {
                Err(InstanceError::Running { pid }) if is_ending(pid) && start.elapsed() < RELEASE => {
                    sleep(Duration::from_millis(5)).await;
                }
                other => return other,
            }
        }
    }

    fn try_lock() -> Result<Self, InstanceError> {
        let address = address()?;
        match StdListener::bind_addr(&address) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                Ok(Self(UnixListener::from_std(listener)?))
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(InstanceError::Running { pid: holder().unwrap_or(0) })
            }
            Err(error) => Err(error.into()),
        }
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
        let stream = StdStream::connect_addr(&address()?)?;
        stream.set_nonblocking(true)?;
        let mut stream = UnixStream::from_std(stream)?;
        stream.write_all(END).await?;
        // It says nothing; its end is heard. Whether that was in order or not is the same here.
        let mut word = [0];
        let gone = timeout(ENDING, stream.read(&mut word)).await;
        let _ = gone.map_err(|_| InstanceError::Stays { pid })?;
        match Self::lock().await {
            Err(InstanceError::Running { .. }) => Err(InstanceError::Stays { pid }),
            other => other,
        }
    }

    /// Waits for a successor that may ask this process to end. It takes the end of the connection for the end of this process.
    pub async fn successor(&self) -> UnixStream {
        loop {
            let Ok((mut stream, _)) = self.0.accept().await else {
                sleep(SPEAKING).await;
                continue;
            };
            let same_user =
                stream.peer_cred().is_ok_and(|peer| [0, geteuid().as_raw()].contains(&peer.uid()));
            let mut said = [0; END.len()];
            let spoken = timeout(SPEAKING, stream.read_exact(&mut said)).await;
            if same_user && matches!(spoken, Ok(Ok(_))) && said == END {
                return stream;
            }
        }
    }
}

/// The process that has the lock of the calling thread's network namespace, as [`InstanceError::Running`] has it.
pub fn running() -> Option<i32> {
    holder().ok()
}

/// Whether a process is dead, or cannot be seen from here.
fn is_ending(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The state follows the name, which stands in parentheses (proc(5)).
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

fn address() -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(NAME)
}

fn holder() -> io::Result<i32> {
    let stream = StdStream::connect_addr(&address()?)?;
    Ok(getsockopt(&stream, PeerCredentials).map_or(0, |credentials| credentials.pid()))
}
