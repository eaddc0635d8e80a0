//! The owner of a TCP socket: `sock_diag(7)` looks up a socket by its addresses.
//!
//! A socket that its owner has closed, but that TCP still keeps, has no inode and therefore no
//! owner. For a connection that is gone, the kernel answers with the socket that *listens* on the
//! address and port (`inet_diag_find_one_icsk()`), so an answer counts only if it has both ends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::libc::ENOENT;

use crate::encode::{REQUEST, Request};
use crate::error::Error;
use crate::request::{ACKNOWLEDGE, Requests};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Offsets in `struct inet_diag_msg`. Both ports follow the state, then both addresses of 16 bytes,
/// as in a request.
const STATE: usize = 1;
const ENDS: usize = 4;
const UID: usize = 64;
const INODE: usize = 68;
/// Offset of the ends in a request (`struct inet_diag_req_v2`), and their length.
const REQUESTED_ENDS: usize = 8;
const ENDS_LENGTH: usize = 36;
/// `TCP_LISTEN`.
const LISTEN: u8 = 10;

/// The user whose TCP socket is connected from `own` to `other`. `None` if the socket is closed or
/// not in the calling thread's network namespace.
///
/// # Errors
/// When the request fails.
pub fn socket_owner(own: SocketAddr, other: SocketAddr) -> Result<Option<u32>, Error> {
    // The kernel answers for IPv4 addresses in IPv6 sockets as for IPv4.
    let [own, other] = [own, other].map(|end| SocketAddr::new(end.ip().to_canonical(), end.port()));
    let request = request(own, other);
    let ends = request.get(REQUESTED_ENDS..REQUESTED_ENDS + ENDS_LENGTH);
    let is_connection = |answer: &Vec<u8>| {
        answer.get(STATE).is_some_and(|state| *state != LISTEN)
            && answer.get(ENDS..ENDS + ENDS_LENGTH) == ends
    };
    Ok(ask(&request)?.filter(is_connection).and_then(|answer| owner(&answer)))
}

/// The user whose TCP socket listens on an address, also on all addresses. `None` if none does in
/// the calling thread's network namespace.
///
/// # Errors
/// When the request fails.
pub fn listener_owner(address: SocketAddr) -> Result<Option<u32>, Error> {
    let nobody = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    Ok(ask(&request(address, nobody))?.and_then(|answer| owner(&answer)))
}

/// What the kernel says of the socket that is asked for; `None` if there is none.
fn ask(request: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let request = Request::new(SOCK_DIAG_BY_FAMILY, REQUEST | ACKNOWLEDGE, request);
    let mut found = None;
    let asked = Requests::open_sock_diag()?.collect("ask for a socket", &request, |envelope| {
        found = Some(envelope.payload.to_vec());
    });
    match asked {
        Err(error) if error.refusal() == Some(ENOENT) => Ok(None),
        asked => asked.map(|_| found),
    }
}

/// A request for the socket with the local address `own` and the peer `other`.
fn request(own: SocketAddr, other: SocketAddr) -> Vec<u8> {
    // AF_INET or AF_INET6, IPPROTO_TCP, no extensions; sockets in any state.
    let mut bytes = vec![if own.is_ipv4() { 2 } else { 10 }, 6, 0, 0];
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(own.port().to_be_bytes());
    bytes.extend(other.port().to_be_bytes());
    for address in [own.ip(), other.ip()] {
        let end = bytes.len() + 16;
        match address {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
        bytes.resize(end, 0);
    }
    // Any interface, and INET_DIAG_NOCOOKIE.
    bytes.extend([0; 4]);
    bytes.extend([0xff; 8]);
    bytes
}

/// The owner, if the socket is open.
fn owner(answer: &[u8]) -> Option<u32> {
    let number = |at: usize| answer.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes);
    number(INODE).filter(|inode| *inode != 0).and_then(|_| number(UID))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn own_user() -> u32 {
        std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap())
    }

    #[test]
    fn the_owner_is_found_while_the_socket_is_open() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let local = server.local_addr().unwrap();
            assert_eq!(listener_owner(local).unwrap(), Some(own_user()), "{address}");
            assert_eq!(socket_owner(peer, local).unwrap(), Some(own_user()), "{address}");
            drop(client);
            assert_eq!(
                socket_owner(peer, local).unwrap(),
                None,
                "{address}: a closed socket has no owner"
            );
        }
    }

    /// An IPv6 listener that also takes IPv4 connections names both ends as mapped addresses.
    #[test]
    fn an_ipv4_connection_to_an_ipv6_listener_has_an_owner() {
        let Ok(listener) = TcpListener::bind("[::]:0") else { return };
        let port = listener.local_addr().unwrap().port();
        let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (server, peer) = listener.accept().unwrap();
        assert_eq!(socket_owner(peer, server.local_addr().unwrap()).unwrap(), Some(own_user()));
    }

    /// A connection from the port of a listener, which the kernel names when the connection is gone.
    #[test]
    fn a_listener_does_not_stand_for_a_connection_that_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let other: SocketAddr = "127.0.0.1:9".parse().unwrap();
        assert_eq!(socket_owner(local, other).unwrap(), None);
        assert_eq!(listener_owner(local).unwrap(), Some(own_user()));
    }
}
