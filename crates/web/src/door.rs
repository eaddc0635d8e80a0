//! Accepts connections to the page. Any local user can connect, so whoever has not shown the secret
//! has few connections, for a short time, and makes room for others. A connection that has shown it
//! stays: it may be the live stream of a page.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Timeout, sleep, timeout};

/// The most connections at once.
const CONNECTIONS: usize = 64;
/// The most connections of a user that have not shown the secret.
const OF_USER: usize = 8;
/// How long a connection may take to show the secret.
const SECRET: Duration = Duration::from_secs(5);
/// How long nothing is accepted after an error.
const PAUSE: Duration = Duration::from_millis(100);

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller(Arc<AtomicBool>);

impl Caller {
    /// A request of it had the secret.
    pub(crate) fn has_shown_secret(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Connected<IncomingStream<'_, Door>> for Caller {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        stream.io().caller.clone()
    }
}

/// A connection that is open.
#[derive(Debug)]
struct Open {
    /// `None` if it was closed before the kernel told.
    user: Option<u32>,
    caller: Caller,
    /// Dropping it closes the connection, unless that has shown the secret.
    keep: oneshot::Sender<()>,
}

/// A listener with bounds.
#[derive(Debug)]
pub(crate) struct Door {
    listener: TcpListener,
    /// The oldest first.
    open: Vec<Open>,
}

impl Door {
    pub(crate) const fn new(listener: TcpListener) -> Self {
        Self { listener, open: Vec::new() }
    }

    /// Makes room for a connection of a user. `None` if there is none.
    fn admit(&mut self, stream: TcpStream, user: Option<u32>) -> Option<Connection> {
        self.open.retain(|open| !open.keep.is_closed());
        let clients: Vec<Client> = self.open.iter().map(Client::of).collect();
        match excess(&clients, user) {
            Room::Free => {}
            Room::Of(at) => drop(self.open.remove(at)),
            Room::None => return None,
        }
        let (keep, kept) = oneshot::channel();
        let caller = Caller::default();
        self.open.push(Open { user, caller: caller.clone(), keep });
        Some(Connection { stream, caller, end: Some(Box::pin(timeout(SECRET, kept))) })
    }
}

impl Listener for Door {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let Ok((stream, from)) = self.listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            let own = stream.local_addr().ok();
            let user = own.and_then(|own| netlink::socket_owner(from, own).ok().flatten());
            if let Some(connection) = self.admit(stream, user) {
                return (connection, from);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Whose a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// It has shown the secret.
    Known,
    /// It is one of this user.
    Stranger(Option<u32>),
}

impl Client {
    fn of(open: &Open) -> Self {
        if open.caller.is_known() { Self::Known } else { Self::Stranger(open.user) }
    }
}

/// Where there is room for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Free,
    /// In the place of this connection.
    Of(usize),
    None,
}

/// The room for a new connection of a user. `open`: the connections, the oldest first.
fn excess(open: &[Client], user: Option<u32>) -> Room {
    let number = |client: Client| open.iter().filter(|other| **other == client).count();
    let first = |client: Client| open.iter().position(|other| *other == client);
    let new = Client::Stranger(user);
    if number(new) >= OF_USER {
        return first(new).map_or(Room::None, Room::Of);
    }
    if open.len() < CONNECTIONS {
        return Room::Free;
    }
    let strangers = open.iter().copied().filter(|client| *client != Client::Known);
    strangers.max_by_key(|client| number(*client)).and_then(first).map_or(Room::None, Room::Of)
}

/// A connection that ends if it does not show the secret in time, or must make room before.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    caller: Caller,
    /// `None` if it has ended.
    end: Option<End>,
}

type End = Pin<Box<Timeout<oneshot::Receiver<()>>>>;

impl Connection {
    /// The stream, unless the connection ends.
    fn stream(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut TcpStream>> {
        let is_over = |end: &mut End| end.as_mut().poll(context).is_ready();
        if !self.caller.is_known() && self.end.as_mut().is_none_or(is_over) {
            self.end = None;
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Pin::new(&mut self.stream))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream(context)?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream(context)?.poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_make_room_and_pages_stay() {
        let of = |user: u32| Client::Stranger(Some(user));
        let open = [vec![Client::Known, of(1)], vec![of(2); OF_USER]].concat();
        assert_eq!(excess(&open, Some(2)), Room::Of(2), "its own oldest");
        assert_eq!(excess(&open, Some(1)), Room::Free);
        // All places are taken: the user with most loses one.
        let others = (3..).map(of).take(CONNECTIONS - open.len());
        let full: Vec<Client> = open.into_iter().chain(others).collect();
        assert_eq!(excess(&full, Some(1)), Room::Of(2));
        assert_eq!(excess(&full, Some(1000)), Room::Of(2));
        // Most are those of pages.
        let pages = [vec![Client::Known; CONNECTIONS - 1], vec![of(1)]].concat();
        assert_eq!(excess(&pages, Some(2)), Room::Of(CONNECTIONS - 1));
        assert_eq!(excess(&[Client::Known; CONNECTIONS], Some(0)), Room::None);
    }
}
