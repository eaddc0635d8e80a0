//! `GET /metrics`, on a thread of its own, so that scrapes do not delay forwarding.
//!
//! The number of connections is limited, also that of each client, and each connection has a time
//! limit. If there are too many, the oldest of the client that has most is closed. A client whose
//! connections send nothing therefore blocks no other. A connection serves one request. A local
//! user has all addresses of 127.0.0.0/8, so on this host a client is a user.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::classic;

/// Maximum number of connections at a time.
const CONNECTIONS: usize = 64;
/// Maximum number of connections of one client.
const OF_CLIENT: usize = 8;
/// Maximum length of a request's head, in bytes.
const HEAD: usize = 8192;
/// How long a client may take to send its request.
const REQUEST: Duration = Duration::from_secs(5);
/// How long a client may take to read the answer.
const ANSWER: Duration = Duration::from_secs(30);
/// Time between two attempts to bind an address that is in use.
const AGAIN: Duration = Duration::from_secs(5);
/// How long nothing is accepted after an error.
const PAUSE: Duration = Duration::from_millis(100);

/// The metrics endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "metrics cannot be served on {address}: {source}; choose another address with --metrics-listen"
)]
pub struct ServeError {
    address: SocketAddr,
    source: io::Error,
}

impl ServeError {
    /// Whether another socket uses the address.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }
}

/// Opens the endpoint, in the calling thread's network namespace.
///
/// # Errors
/// When the address is in use, or is not an address of the namespace.
pub fn bind(address: SocketAddr) -> Result<StdListener, ServeError> {
    // The standard library sets SO_REUSEADDR.
    let bound = StdListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|source| ServeError { address, source })
}

/// The thread that serves metrics. Dropping this ends the thread and closes the listener.
#[derive(Debug)]
pub struct Metrics {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Starts the thread, in the calling thread's network namespace. `text` creates the answer.
    /// Without a listener, the thread tries to bind the address until it succeeds, and then calls
    /// `served`. `owner` tells the user of a local socket by its own address and its peer's.
    ///
    /// # Errors
    /// When the thread cannot be created.
    pub fn serve(
        address: SocketAddr,
        listener: Option<StdListener>,
        served: impl FnOnce() + Send + 'static,
        owner: Owner,
        text: impl Fn() -> Result<String, fmt::Error> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let serve = async move {
            let listener = match listener {
                Some(listener) => listener,
                None => {
                    let listener = bind_later(address).await;
                    served();
                    listener
                }
            };
            accept(listener, owner, Arc::new(text)).await;
        };
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    // Open connections are dropped without an answer.
                    _ = stopped => {}
                    () = serve => {}
                }
            });
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended as well.
            let _ = thread.join();
        }
    }
}

async fn bind_later(address: SocketAddr) -> StdListener {
    loop {
        sleep(AGAIN).await;
        if let Ok(listener) = bind(address) {
            return listener;
        }
    }
}

/// Accepts connections forever.
async fn accept<T>(listener: StdListener, owner: Owner, text: Arc<T>)
where
    T: Fn() -> Result<String, fmt::Error> + Send + Sync + 'static,
{
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut open: VecDeque<(Client, AbortHandle)> = VecDeque::new();
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        open.retain(|(_, connection)| !connection.is_finished());
        let from = Client::of(from, || owner(from, stream.local_addr().ok()?));
        let clients: Vec<Client> = open.iter().map(|(client, _)| *client).collect();
        if let Some((_, excess)) = excess(&clients, from).and_then(|at| open.remove(at)) {
            excess.abort();
        }
        let text = Arc::clone(&text);
        open.push_back((from, tokio::spawn(answer(stream, text)).abort_handle()));
    }
}

/// Tells the user of a local socket by its own address and its peer's; `None` if it is closed.
pub type Owner = fn(SocketAddr, SocketAddr) -> Option<u32>;

/// What counts as one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// A user of this host; `None` for connections that were closed at once.
    User(Option<u32>),
    /// An IPv4 address, or the /64 of an IPv6 address.
    Address(IpAddr),
}

impl Client {
    fn of(from: SocketAddr, user: impl FnOnce() -> Option<u32>) -> Self {
        match from.ip().to_canonical() {
            address if address.is_loopback() => Self::User(user()),
            IpAddr::V6(address) => {
                Self::Address(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into())
            }
            address => Self::Address(address),
        }
    }
}

/// The index of the connection to close for a new one of a client. `open`: the clients of the
/// connections, the oldest first.
fn excess(open: &[Client], new: Client) -> Option<usize> {
    let number = |client: &Client| open.iter().filter(|other| *other == client).count();
    if number(&new) >= OF_CLIENT {
        return open.iter().position(|client| *client == new);
    }
    let most = open.iter().map(number).max().filter(|_| open.len() >= CONNECTIONS)?;
    open.iter().position(|client| number(client) == most)
}

/// Reads one request and answers it. Errors concern only this client and are ignored.
async fn answer<T: Fn() -> Result<String, fmt::Error>>(mut stream: TcpStream, text: Arc<T>) {
    let Ok(Some(head)) = timeout(REQUEST, head(&mut stream)).await else { return };
    let reply = reply(&head, &*text);
    let written = async {
        stream.write_all(&reply).await?;
        stream.shutdown().await?;
        // Reads until the client closes. If unread data were left, the close would send a reset,
        // and the client could lose the answer.
        while stream.read(&mut [0; 512]).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(ANSWER, written).await;
}

/// The head of a request, up to the empty line; `None` if it is incomplete or too long.
async fn head(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        let mut part = [0; 1024];
        let length = stream.read(&mut part).await.ok().filter(|length| *length > 0)?;
        head.extend_from_slice(part.get(..length)?);
        if head.windows(4).any(|end| end == b"\r\n\r\n") {
            return Some(head);
        }
        if head.len() > HEAD {
            return None;
        }
    }
}

/// Whether a request accepts OpenMetrics by name (RFC 9110, section 12.5.1).
fn asks_for_openmetrics(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    head.lines()
        .filter_map(|line| line.strip_prefix("accept:"))
        .any(|types| types.contains("application/openmetrics-text"))
}

fn reply(head: &[u8], text: impl Fn() -> Result<String, fmt::Error>) -> Vec<u8> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let openmetrics = asks_for_openmetrics(head);
    let (status, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => match text() {
            Ok(text) if openmetrics => ("200 OK", text),
            Ok(text) => ("200 OK", classic::classic(&text)),
            Err(_) => ("500 Internal Server Error", String::new()),
        },
        ("GET" | "HEAD", _) => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", String::new()),
    };
    let kind = match status {
        "200 OK" if openmetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        "200 OK" => classic::FORMAT,
        _ => "text/plain; charset=utf-8",
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let body = if method == "HEAD" { String::new() } else { body };
    (head + &body).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_takes_connections_of_no_other() {
        let address = |number: usize| {
            Client::Address(IpAddr::from([10, 0, 0, u8::try_from(number).unwrap()]))
        };
        let prometheus = address(200);
        let idle = [vec![prometheus], vec![address(1); OF_CLIENT]].concat();
        assert_eq!(excess(&idle, address(1)), Some(1), "its own oldest");
        assert_eq!(excess(&idle, address(2)), None);
        // Many clients: that with most loses one.
        let others = (2..).map(address).take(CONNECTIONS - idle.len());
        let full: Vec<Client> = idle.iter().copied().chain(others).collect();
        assert_eq!(excess(&full, prometheus), Some(1));
        assert_eq!(excess(&full, address(250)), Some(1));

        let v6 = |text: &str| Client::of((text.parse::<IpAddr>().unwrap(), 1).into(), || None);
        assert_eq!(v6("2001:db8::1"), v6("2001:db8::ffff:0:0:2"));
        assert_ne!(v6("2001:db8::1"), v6("2001:db8:0:1::1"));
        assert_eq!(v6("::ffff:10.0.0.1"), address(1));
        // A user with many addresses of this host is one client.
        let local = |last: u8, user: u32| Client::of(([127, 0, 0, last], 1).into(), || Some(user));
        let scanner: Vec<Client> = (2..2 + OF_CLIENT as u8).map(|last| local(last, 1000)).collect();
        let open = [&[local(1, 0)][..], &scanner].concat();
        assert_eq!(excess(&open, local(99, 1000)), Some(1));
        assert_eq!(excess(&open, local(99, 1001)), None);
    }
}
