//! The daemon's end of the socket.

use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::Stream;

use crate::address::Address;
use crate::trusts;

/// The socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "the API's socket {address} cannot be opened: {source}; choose another with --api-listen, or do without: --no-api"
)]
pub struct ListenError {
    address: Address,
    source: io::Error,
}

/// Accepts connections of clients that may connect, and closes others. For a file its permissions
/// decide: mode 0600, unless it is changed. To an abstract name, root and the daemon's own user may
/// connect.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    /// Whether the peer's credentials are checked.
    asks_for_credentials: bool,
    own_uid: u32,
    /// The socket's file, which is removed on drop.
    file: Option<PathBuf>,
}

impl Listener {
    /// Opens the socket; an abstract one in the calling thread's network namespace. The file of a
    /// killed process is replaced. A file on which another process listens is not.
    ///
    /// # Errors
    /// When the address is in use or the file's directory is not writable.
    pub fn open(address: &Address) -> Result<Self, ListenError> {
        let opened = match address {
            Address::Abstract(name) => {
                SocketAddr::from_abstract_name(name).and_then(|name| StdListener::bind_addr(&name))
            }
            Address::Path(path) => open_file(path),
        };
        let listener = opened.and_then(|listener| {
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        });
        let file = match address {
            Address::Abstract(_) => None,
            Address::Path(path) => Some(path.clone()),
        };
        match listener {
            Ok(listener) => Ok(Self {
                listener,
                asks_for_credentials: file.is_none(),
                own_uid: geteuid().as_raw(),
                file,
            }),
            Err(source) => Err(ListenError { address: address.clone(), source }),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // The file may have been removed already.
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Stream for Listener {
    type Item = io::Result<UnixStream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let (stream, _) = match ready!(self.listener.poll_accept(context)) {
                Ok(accepted) => accepted,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
            let may = !self.asks_for_credentials
                || stream.peer_cred().is_ok_and(|peer| trusts(self.own_uid, peer.uid()));
            if may {
                return Poll::Ready(Some(Ok(stream)));
            }
        }
    }
}

/// Binds a socket at a path, with mode 0600 from the start: the file gets the mode that the socket
/// itself has (`unix_bind_bsd()`).
fn open_file(path: &Path) -> io::Result<StdListener> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    let address = UnixAddr::new(path)?;
    if bind(socket.as_raw_fd(), &address).is_err() {
        if is_left_over(path) {
            std::fs::remove_file(path)?;
        }
        bind(socket.as_raw_fd(), &address)?;
    }
    listen(&socket, Backlog::MAXCONN)?;
    Ok(socket.into())
}

/// Whether the file is a socket on which nothing listens.
fn is_left_over(path: &Path) -> bool {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let refused = || {
        StdStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    is_socket && refused()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn a_file_is_its_owners_alone_and_goes_with_the_listener() {
        let path = std::env::temp_dir().join(format!("vtepd-api-{}.sock", std::process::id()));
        let address = Address::Path(path.clone());
        let listener = Listener::open(&address).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let taken = Listener::open(&address).unwrap_err().to_string();
        assert!(
            taken.contains("Address already in use") && taken.contains("--api-listen"),
            "{taken}"
        );
        drop(listener);
        assert!(!path.exists());

        // The socket of a killed process is replaced; a regular file is not.
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(Listener::open(&address).unwrap());
        std::fs::write(&path, "a file of somebody").unwrap();
        assert!(Listener::open(&address).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file of somebody");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn root_and_the_daemons_own_user_may_connect() {
        let may = [(0, 0), (1000, 0), (1000, 1000), (0, 1000), (1000, 1001), (1000, 65534)]
            .map(|(own, peer)| trusts(own, peer));
        assert_eq!(may, [true, true, true, false, false, false]);
    }
}
