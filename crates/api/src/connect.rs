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

/// How long an answer, or a stream's first sign, may take. The longest request is the attaching of
/// a hook or two.
const PATIENCE: Duration = Duration::from_secs(30);

/// There is no vtepd to speak with.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens.
    #[error("nobody listens on {address}{}", hint(address))]
    Nobody {
        /// The socket that was tried.
        address: Address,
    },
    /// Somebody listens who is neither root nor the caller.
    #[error("{address} belongs to user {uid}, neither root nor you: it is not spoken to")]
    Stranger {
        /// The socket that was tried.
        address: Address,
        /// Whose it is.
        uid: u32,
    },
    /// The daemon would hang up.
    #[error(
        "vtepd on {address} runs as user {uid}, which you are not: call it as that user, or as root (sudo)"
    )]
    NotYou {
        /// The socket that was tried.
        address: Address,
        /// Who the daemon runs as.
        uid: u32,
    },
    /// The system refused.
    #[error("{address} cannot be connected to: {source}")]
    System {
        /// The socket that was tried.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// It is no gRPC server.
    #[error("what listens on {address} does not speak this API: {source}")]
    Protocol {
        /// The socket that was tried.
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

/// Connects to the vtepd that listens there.
///
/// # Errors
/// When nobody does, or nobody whom to trust.
pub async fn connect(address: &Address) -> Result<Client, ConnectError> {
    Ok(VtepdClient::new(channel(address).await?))
}

/// The same without a client: health and reflection have theirs.
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
    // One connection, and when it is gone it is gone: a vtepd that was started anew is another one.
    let stream = Arc::new(Mutex::new(Some(stream)));
    let connector = service_fn(move |_| {
        let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        std::future::ready(
            stream.map(TokioIo::new).ok_or_else(|| io::Error::other("the connection is gone")),
        )
    });
    let endpoint = Endpoint::from_static("http://vtepd").timeout(PATIENCE);
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
