//! The client's end of the socket.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream as StdStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use nix::unistd::geteuid;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::address::Address;
use crate::trusts;
use crate::v1::vtepd_client::VtepdClient;

/// A client of one vtepd.
pub type Client = VtepdClient<Channel>;

/// How long an answer, or the first message of a stream, may take. The slowest request attaches a
/// hook or two.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The client could not connect to vtepd.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nothing listens on the socket.
    #[error("no process listens on {address}{}", hint(address))]
    Nobody {
        /// The address that was tried.
        address: Address,
    },
    /// The listener runs neither as root nor as the caller's user.
    #[error("{address} belongs to user {uid}, neither root nor you: it is not spoken to")]
    Stranger {
        /// The address that was tried.
        address: Address,
        /// The listener's user id.
        uid: u32,
    },
    /// The daemon would refuse this user.
    #[error(
        "vtepd on {address} runs as user {uid}, which you are not: call it as that user, or as root (sudo)"
    )]
    NotYou {
        /// The address that was tried.
        address: Address,
        /// The daemon's user id.
        uid: u32,
    },
    /// A system call failed.
    #[error("{address} cannot be connected to: {source}")]
    System {
        /// The address that was tried.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// The listener is not a gRPC server.
    #[error("what listens on {address} does not speak this API: {source}")]
    Protocol {
        /// The address that was tried.
        address: Address,
        /// Why.
        source: tonic::transport::Error,
    },
}

fn hint(address: &Address) -> &'static str {
    match address {
        Address::Abstract(_) => {
            " in this network namespace: start vtepd here, or call from the leaf's namespace (ip netns exec LEAF vtepctl …); if \
             vtepd has another socket ([api] listen), name it with --socket"
        }
        Address::Path(_) => {
            ": start vtepd with --api-listen and this path, or look for a spelling mistake"
        }
    }
}

/// Connects to the vtepd that listens on this address.
///
/// # Errors
/// When nothing listens there, or the listener's user is not trusted.
pub async fn connect(address: &Address) -> Result<Client, ConnectError> {
    Ok(VtepdClient::new(channel(address).await?))
}

/// As [`connect`], but returns the channel, from which clients for health and reflection can be
/// made.
///
/// # Errors
/// As [`connect`].
pub async fn channel(address: &Address) -> Result<Channel, ConnectError> {
    let stream = open(address).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ConnectError::Nobody { address: address.clone() }
        }
        _ => ConnectError::System { address: address.clone(), source },
    })?;
    if let (Address::Abstract(_), Ok(peer)) = (address, stream.peer_cred()) {
        let (own, uid) = (geteuid().as_raw(), peer.uid());
        if !trusts(own, uid) {
            return Err(ConnectError::Stranger { address: address.clone(), uid });
        }
        if !trusts(uid, own) {
            return Err(ConnectError::NotYou { address: address.clone(), uid });
        }
    }
    // The channel must not reconnect: after a restart, another vtepd would answer.
    let stream = Arc::new(Mutex::new(Some(stream)));
    let connector = service_fn(move |_| {
        let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        std::future::ready(
            stream.map(TokioIo::new).ok_or_else(|| io::Error::other("the connection is gone")),
        )
    });
    let endpoint = Endpoint::from_static("http://vtepd").timeout(ANSWER_TIMEOUT);
    let connected = endpoint.connect_with_connector(connector).await;
    connected.map_err(|source| ConnectError::Protocol { address: address.clone(), source })
}

fn open(address: &Address) -> io::Result<UnixStream> {
    let address = match address {
        Address::Abstract(name) => SocketAddr::from_abstract_name(name)?,
        Address::Path(path) => SocketAddr::from_pathname(path)?,
    };
    let stream = StdStream::connect_addr(&address)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}
