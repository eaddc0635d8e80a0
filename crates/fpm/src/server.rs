//! The server that zebra connects to.
//!
//! Only the users of [`Users`] may connect. Other connections are closed immediately.
//!
//! zebra is a single client, and reconnects only after its own end is closed. A second connection
//! therefore means that the first is half-open, or that one of the two is another client. The
//! second connection replaces the first in two cases:
//!
//! - the first has not sent a frame yet (a port scan, a health check), and both users have the same
//!   rank;
//! - the settings name the user of the second connection but not that of the first.
//!
//! Otherwise it waits, unread, until the first ends. A third connection replaces the waiting one,
//! unless its user has a lower rank. A working connection of zebra must not be closed, because some
//! releases crash when they reconnect. TCP keepalives end a half-open connection after some
//! seconds.
//!
//! The server has no queue. [`Server::next`] reads on demand, and TCP flow control slows zebra
//! down.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::frame::{FrameError, Framer};
use crate::peer::{Rank, Users};
use crate::transaction::{Error, Transaction, decode_frame};

/// The address to which zebra connects by default: loopback, port 2620.
pub const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 2620));
/// Maximum number of bytes of one read: the size of the largest frame.
const READ: usize = 65_535;
/// Idle time before the first TCP keepalive probe. A probe follows each second, and after five
/// without an answer the connection is closed.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Maximum number of connections that wait to be accepted. Connections of other clients should not
/// fill the queue.
const BACKLOG: u32 = 128;
/// Maximum number of users whose refused connections are reported.
const NAMED_STRANGERS: usize = 16;

/// The server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for zebra's FPM on {address}: {source}{}", advice(source))]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// The error of the system call.
    pub source: io::Error,
}

/// Advice for common errors.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            " (another FPM server runs in this network namespace, `ss -ltnp` names it: stop it, or choose another \
             port here and with `fpm address A.B.C.D port P` in zebra)"
        }
        io::ErrorKind::AddrNotAvailable => {
            " (no interface of this network namespace has it; is lo up?)"
        }
        _ => "",
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Disconnect {
    /// The peer closed it between two frames.
    #[error("closed by the peer")]
    Closed,
    /// The peer closed it inside a frame.
    #[error("closed by the peer {pending} bytes into a frame")]
    ClosedInsideFrame {
        /// Bytes of the frame that were received.
        pending: usize,
    },
    /// A newer connection replaced this one, which had not sent a frame.
    #[error("sent nothing before {newcomer} connected")]
    Replaced {
        /// The address of the newer connection.
        newcomer: SocketAddr,
    },
    /// The settings name the user of the newer connection, but not of this one.
    #[error("closed in favour of {newcomer}, whose user is listed in fpm.users")]
    Displaced {
        /// The address of the newer connection.
        newcomer: SocketAddr,
    },
    /// The peer sent an invalid FPM header.
    #[error(transparent)]
    Framing(#[from] FrameError),
    /// The peer sent a frame whose payload is malformed.
    #[error(transparent)]
    Payload(#[from] Error),
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// An event of the server.
#[derive(Debug)]
pub enum Event {
    /// zebra has connected. It will send all of its state.
    Connected {
        /// Its address.
        peer: SocketAddr,
    },
    /// A frame was received.
    Transaction(Transaction),
    /// A connection was closed because its user may not connect. This is reported once for each
    /// user; [`Server::take_refused`] counts all such connections.
    Refused {
        /// Its address.
        peer: SocketAddr,
        /// Its user, if known.
        uid: Option<u32>,
    },
    /// zebra has disconnected. What it announced stays valid until it is replaced.
    Disconnected {
        /// Why.
        reason: Disconnect,
    },
}

/// A connection and its unprocessed bytes.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    framer: Framer,
    has_spoken: bool,
    rank: Rank,
}

impl Connection {
    fn new((stream, peer): (TcpStream, SocketAddr), rank: Rank) -> Self {
        Self { stream, peer, framer: Framer::new(), has_spoken: false, rank }
    }

    /// The next frame that has been received completely.
    fn buffered(&mut self) -> Result<Option<Transaction>, Disconnect> {
        let Some(frame) = self.framer.next_frame()? else { return Ok(None) };
        let transaction = decode_frame(&frame)?;
        self.has_spoken = true;
        Ok(Some(transaction))
    }

    /// Waits for bytes. Cancellation-safe, as `read_buf` is.
    async fn read(&mut self) -> Result<(), Disconnect> {
        let buffer = self.framer.buffer();
        buffer.reserve(READ);
        match self.stream.read_buf(buffer).await? {
            0 if self.framer.pending() == 0 => Err(Disconnect::Closed),
            0 => Err(Disconnect::ClosedInsideFrame { pending: self.framer.pending() }),
            _ => Ok(()),
        }
    }
}

/// Accepts connections.
#[derive(Debug)]
struct Door {
    listener: TcpListener,
    users: Users,
    /// Users whose refusal was reported.
    strangers: BTreeSet<Option<u32>>,
    refused: u64,
}

/// Accepts zebra's connection and reads what it sends.
#[derive(Debug)]
pub struct Server {
    door: Door,
    current: Option<Connection>,
    waiting: Option<Connection>,
}

impl Server {
    /// Listens for connections of these users. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the address is in use or not available.
    pub fn bind(address: SocketAddr, users: Users) -> Result<Self, BindError> {
        let listen = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // After a restart, connections in TIME_WAIT must not prevent the bind.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        };
        let listener = listen().map_err(|source| BindError { address, source })?;
        let door = Door { listener, users, strangers: BTreeSet::new(), refused: 0 };
        Ok(Self { door, current: None, waiting: None })
    }

    /// How many connections were refused since the last call.
    pub fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.door.refused)
    }

    /// The address on which it listens. Port 0 is replaced by the port that the system chose.
    ///
    /// # Errors
    /// As getsockname(2).
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.door.listener.local_addr()
    }

    /// The next event. Cancellation-safe: no event is lost when the future is dropped.
    pub async fn next(&mut self) -> Event {
        loop {
            let Some(connection) = &mut self.current else {
                let connection = match self.waiting.take() {
                    Some(connection) => connection,
                    None => match self.door.accept().await {
                        Ok(connection) => connection,
                        Err((peer, uid)) => return Event::Refused { peer, uid },
                    },
                };
                let peer = connection.peer;
                self.current = Some(connection);
                tracing::info!(%peer, "zebra's FPM is connected");
                return Event::Connected { peer };
            };
            match connection.buffered() {
                Ok(Some(transaction)) => return Event::Transaction(transaction),
                Ok(None) => {}
                Err(reason) => return self.disconnect(reason),
            }
            // Reading comes first: if the peer has left, its successor must not have to wait.
            tokio::select! {
                biased;
                read = connection.read() => if let Err(reason) = read {
                    return self.disconnect(reason);
                },
                newcomer = self.door.accept() => {
                    let newcomer = match newcomer {
                        Ok(newcomer) => newcomer,
                        Err((peer, uid)) => return Event::Refused { peer, uid },
                    };
                    let peer = newcomer.peer;
                    let (current, spoken, rank) = (connection.peer, connection.has_spoken, connection.rank);
                    let displaces = newcomer.rank > rank;
                    let replaces = !spoken && newcomer.rank == rank;
                    if self.waiting.as_ref().is_none_or(|waiting| newcomer.rank >= waiting.rank) {
                        self.waiting = Some(newcomer);
                    }
                    if displaces {
                        return self.disconnect(Disconnect::Displaced { newcomer: peer });
                    }
                    if replaces {
                        return self.disconnect(Disconnect::Replaced { newcomer: peer });
                    }
                    tracing::warn!(%peer, %current, "a second FPM client waits until the first leaves");
                }
            }
        }
    }

    fn disconnect(&mut self, reason: Disconnect) -> Event {
        let peer = self.current.take().map(|connection| connection.peer);
        match reason {
            Disconnect::Framing(_) | Disconnect::Payload(_) => {
                tracing::warn!(?peer, %reason, "an FPM connection is closed: malformed input");
            }
            _ => tracing::info!(?peer, %reason, "an FPM connection ended"),
        }
        Event::Disconnected { reason }
    }
}

impl Door {
    /// The user of the peer's socket, if known.
    fn owner(&self, stream: &TcpStream, peer: SocketAddr) -> Option<u32> {
        let local = stream.local_addr().ok()?;
        match netlink::socket_owner(peer, local) {
            Ok(owner) => owner,
            Err(error) => {
                if self.refused == 0 {
                    tracing::warn!(%peer, "the kernel does not say whose FPM connection this is: {error}");
                }
                None
            }
        }
    }

    /// Waits for a permitted connection. Also returns the address and user of a refused connection
    /// if that user was not reported before. Errors of accept(2) are temporary or concern one peer,
    /// and do not end the server.
    async fn accept(&mut self) -> Result<Connection, (SocketAddr, Option<u32>)> {
        loop {
            let accepted = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "an FPM connection could not be accepted");
                    // Probably no descriptors are available, so accept(2) would fail again
                    // immediately.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let (stream, peer) = &accepted;
            let uid = self.owner(stream, *peer);
            let Some(rank) = self.users.rank(uid) else {
                self.refused += 1;
                if self.strangers.len() < NAMED_STRANGERS && self.strangers.insert(uid) {
                    return Err((*peer, uid));
                }
                continue;
            };
            let keepalive = TcpKeepalive::new()
                .with_time(KEEPALIVE)
                .with_interval(Duration::from_secs(1))
                .with_retries(5);
            if let Err(error) = SockRef::from(stream).set_tcp_keepalive(&keepalive) {
                tracing::debug!(%error, "no keepalive on an FPM connection");
            }
            return Ok(Connection::new(accepted, rank));
        }
    }
}
