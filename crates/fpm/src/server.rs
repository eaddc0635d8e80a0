//! The server that zebra connects to.
//!
//! zebra is one client. It connects again only after its own end is closed, so two connections at once mean either a
//! half-open one or a stranger. The rule: **who has sent a frame stays**. A newcomer takes the place of a connection
//! that has not yet spoken (a port scan, a health check), otherwise it waits, unread, until the other one leaves. A
//! stranger can so never throw zebra out (some releases crash when they reconnect), and TCP keepalives end a half-open
//! connection after some seconds.
//!
//! There is no queue: [`Server::next`] reads when it is asked to, and a zebra that is faster waits in TCP.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::frame::{FrameError, Framer};
use crate::transaction::{Error, Transaction, decode_frame};

/// Where zebra looks for an FPM server: loopback, port 2620.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 2620));
/// Bytes that one read may take: the largest frame.
const READ: usize = 65_535;
/// A silent peer is asked after this time, and then each second, and given up after five.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for zebra's FPM on {address}: {source}{}", advice(source))]
pub struct BindError {
    /// The address asked for.
    pub address: SocketAddr,
    /// The system's reason.
    pub source: io::Error,
}

/// What to do about the common reasons.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            " (another FPM server runs in this network namespace, `ss -ltnp` names it: stop it, or choose another \
             port here and with `fpm address A.B.C.D port P` in zebra)"
        }
        io::ErrorKind::AddrNotAvailable => " (no interface of this network namespace has it; is lo up?)",
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
        /// Bytes of the frame that came.
        pending: usize,
    },
    /// A newer connection took the place of one that had not sent a frame.
    #[error("said nothing before {newcomer} came")]
    Replaced {
        /// The newer one.
        newcomer: SocketAddr,
    },
    /// The peer sent what is no FPM.
    #[error(transparent)]
    Framing(#[from] FrameError),
    /// The peer sent a frame whose payload is malformed.
    #[error(transparent)]
    Payload(#[from] Error),
    /// The connection failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Something new from zebra.
#[derive(Debug)]
pub enum Event {
    /// zebra is there; its replay follows.
    Connected {
        /// Its address.
        peer: SocketAddr,
    },
    /// A frame.
    Transaction(Transaction),
    /// zebra is gone. What it said before still holds until something newer says otherwise.
    Disconnected {
        /// Why.
        reason: Disconnect,
    },
}

/// A connection and what has been read from it.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    framer: Framer,
    has_spoken: bool,
}

impl Connection {
    fn new((stream, peer): (TcpStream, SocketAddr)) -> Self {
        Self { stream, peer, framer: Framer::new(), has_spoken: false }
    }

    /// A frame that is already here.
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

/// Listens for zebra and reads what it sends.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    current: Option<Connection>,
    waiting: Option<Connection>,
}

impl Server {
    /// Listens. Call it within a tokio runtime.
    ///
    /// # Errors
    /// When the address is taken or not there.
    pub fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let listen = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // Only so that a restart need not wait for the last connection's TIME_WAIT.
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(8)
        };
        let listener = listen().map_err(|source| BindError { address, source })?;
        Ok(Self { listener, current: None, waiting: None })
    }

    /// The address it listens on, with the port that the system chose where 0 was asked for.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next event. Cancellation-safe: nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Event {
        loop {
            let Some(connection) = &mut self.current else {
                let connection = match self.waiting.take() {
                    Some(connection) => connection,
                    None => accept(&self.listener).await,
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
            // Reading first: a peer that has left must not keep its successor waiting.
            tokio::select! {
                biased;
                read = connection.read() => if let Err(reason) = read {
                    return self.disconnect(reason);
                },
                newcomer = accept(&self.listener), if self.waiting.is_none() => {
                    let (peer, spoken) = (newcomer.peer, connection.has_spoken);
                    self.waiting = Some(newcomer);
                    if !spoken {
                        return self.disconnect(Disconnect::Replaced { newcomer: peer });
                    }
                    tracing::warn!(%peer, current = %connection.peer, "a second FPM client waits until the first leaves");
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

/// Waits for a connection. Failures to accept one are the peer's or pass, and do not end the server.
async fn accept(listener: &TcpListener) -> Connection {
    loop {
        match listener.accept().await {
            Ok(accepted) => {
                let keepalive = TcpKeepalive::new()
                    .with_time(KEEPALIVE)
                    .with_interval(Duration::from_secs(1))
                    .with_retries(5);
                if let Err(error) = SockRef::from(&accepted.0).set_tcp_keepalive(&keepalive) {
                    tracing::debug!(%error, "no keepalive on an FPM connection");
                }
                return Connection::new(accepted);
            }
            Err(error) => {
                tracing::warn!(%error, "an FPM connection could not be accepted");
                // Out of descriptors, most likely: accepting would fail again at once.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
