//! The owner of a TCP socket: `sock_diag(7)` looks up a socket by its addresses.
//!
//! A socket that its owner has closed, but that TCP still keeps, has no inode and therefore no
//! owner. For a connection that is gone, the kernel answers with the socket that *listens* on the
//! address and port (`inet_diag_find_one_icsk()`), so an answer counts only if it has both ends.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::error::Error;
use crate::socket::{Socket, failed};

/// `SOCK_DIAG_BY_FAMILY` and `NLM_F_REQUEST`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// Bytes of `struct nlmsghdr` with `struct inet_diag_req_v2`.
const REQUEST: u32 = 72;
/// Offsets in `struct inet_diag_msg`, after `struct nlmsghdr`. Both ports follow the state, then
/// both addresses of 16 bytes, as in a request.
const STATE: usize = 16 + 1;
const ENDS: usize = 16 + 4;
const UID: usize = 16 + 64;
const INODE: usize = 16 + 68;
/// Offset of the ends in a request, and their length.
const REQUESTED_ENDS: usize = 16 + 8;
const ENDS_LENGTH: usize = 36;
/// `TCP_LISTEN`.
const LISTEN: u8 = 10;
/// `NLMSG_ERROR`, and the offset of its error number.
const ERROR: u16 = 2;
const ERRNO: usize = 16;
/// `-ENOENT`.
const NO_SOCKET: u32 = 2u32.wrapping_neg();

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
    let answer = ask(&request)?;
    let is_connection = answer.get(STATE).is_some_and(|state| *state != LISTEN)
        && answer.get(ENDS..ENDS + ENDS_LENGTH) == ends;
    let owner = parse(&answer).map_err(failed("ask for a socket"))?;
    Ok(owner.filter(|_| is_connection))
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
    parse(&ask(&request(address, nobody))?).map_err(failed("ask for a socket"))
}

fn ask(request: &[u8]) -> Result<Vec<u8>, Error> {
    let socket = Socket::open_sock_diag()?;
    socket.send(request).map_err(failed("ask for a socket"))?;
    let mut answer = Vec::with_capacity(4096);
    socket.receive(&mut answer).map_err(failed("read whose socket it is"))?;
    Ok(answer)
}

/// A request for the socket with the local address `own` and the peer `other`.
fn request(own: SocketAddr, other: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(REQUEST as usize);
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    // AF_INET or AF_INET6, IPPROTO_TCP, no extensions; sockets in any state.
    bytes.extend([if own.is_ipv4() { 2 } else { 10 }, 6, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(own.port().to_be_bytes());
    bytes.extend(other.port().to_be_bytes());
    for address in [own.ip(), other.ip()] {
        let mut field = [0; 16];
        match address {
            IpAddr::V4(address) => {
                field.iter_mut().zip(address.octets()).for_each(|(to, from)| *to = from);
            }
            IpAddr::V6(address) => field = address.octets(),
        }
        bytes.extend(field);
    }
    // Any interface, and INET_DIAG_NOCOOKIE.
    bytes.extend([0; 4]);
    bytes.extend([0xff; 8]);
    bytes
}

/// The owner, if the answer describes an open socket.
fn parse(answer: &[u8]) -> io::Result<Option<u32>> {
    let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let kind = answer.get(4..6).and_then(|kind| Some(u16::from_ne_bytes(kind.try_into().ok()?)));
    match kind {
        Some(SOCK_DIAG_BY_FAMILY) => {
            Ok(number(INODE).filter(|inode| *inode != 0).and_then(|_| number(UID)))
        }
        Some(ERROR) if number(ERRNO) == Some(NO_SOCKET) => Ok(None),
        Some(ERROR) => {
            let errno = number(ERRNO).map_or(0, u32::wrapping_neg);
            Err(io::Error::from_raw_os_error(i32::try_from(errno).unwrap_or_default()))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
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
