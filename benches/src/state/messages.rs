//! rtnetlink messages as bytes, and a socket that sends them to the kernel.

use std::io;
use std::net::Ipv4Addr;

use netlink_sys::constants::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use wire::MacAddr;

/// `NLM_F_REQUEST | NLM_F_ACK | NLM_F_REPLACE | NLM_F_CREATE`: creates or replaces an object.
pub const PUT: u16 = 0x505;

/// A netlink message with its attributes.
#[must_use]
pub fn message(kind: u16, flags: u16, body: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut content = body.to_vec();
    for (kind, payload) in attributes {
        content.extend((payload.len() as u16 + 4).to_ne_bytes());
        content.extend(kind.to_ne_bytes());
        content.extend(*payload);
        content.resize(content.len().next_multiple_of(4), 0);
    }
    let mut bytes = (content.len() as u32 + 16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(content);
    bytes
}

/// `RTM_NEWNEIGH` of family `AF_BRIDGE`: an entry of the vxlan netdev, as FRR sends it.
#[must_use]
pub fn fdb(vxlan: u32, mac: MacAddr, vtep: Ipv4Addr) -> Vec<u8> {
    let [i0, i1, i2, i3] = vxlan.to_ne_bytes();
    let body = [7, 0, 0, 0, i0, i1, i2, i3, 0xc0, 0, 0x12, 0];
    message(28, PUT, &body, &[(1, &vtep.octets()), (2, &mac.0)])
}

/// `RTM_NEWNEIGH`: a permanent neighbour entry.
#[must_use]
pub fn neighbour(ifindex: u32, address: Ipv4Addr, mac: MacAddr) -> Vec<u8> {
    let [i0, i1, i2, i3] = ifindex.to_ne_bytes();
    let body = [2, 0, 0, 0, i0, i1, i2, i3, 0x80, 0, 0, 0];
    message(28, PUT, &body, &[(1, &address.octets()), (2, &mac.0)])
}

/// The next hops of a route: interface index and gateway.
pub type Hops<'a> = &'a [(u32, Ipv4Addr)];

/// `RTM_NEWROUTE` for a /32 prefix in the main table.
#[must_use]
pub fn route(to: Ipv4Addr, hops: Hops<'_>) -> Vec<u8> {
    let mut next_hops = Vec::new();
    for (ifindex, gateway) in hops {
        next_hops.extend(16u16.to_ne_bytes());
        next_hops.extend([0, 0]);
        next_hops.extend(ifindex.to_ne_bytes());
        next_hops.extend(8u16.to_ne_bytes());
        next_hops.extend(5u16.to_ne_bytes());
        next_hops.extend(gateway.octets());
    }
    let body = [2, 32, 0, 0, 254, 186, 0, 1, 0, 0, 0, 0];
    let attributes: [(u16, &[u8]); 3] =
        [(1, &to.octets()), (6, &20u32.to_ne_bytes()), (9, &next_hops)];
    message(24, PUT, &body, &attributes)
}

/// `RTM_NEWROUTE` for a /32 prefix with a next-hop object.
#[must_use]
pub fn route_by(to: Ipv4Addr, object: u32) -> Vec<u8> {
    let body = [2, 32, 0, 0, 254, 186, 0, 1, 0, 0, 0, 0];
    let attributes: [(u16, &[u8]); 3] =
        [(1, &to.octets()), (6, &20u32.to_ne_bytes()), (30, &object.to_ne_bytes())];
    message(24, PUT, &body, &attributes)
}

/// `RTM_NEWNEXTHOP`: a next-hop object with one interface and gateway.
#[must_use]
pub fn next_hop(object: u32, (ifindex, gateway): (u32, Ipv4Addr)) -> Vec<u8> {
    let body = [2, 0, 186, 0, 0, 0, 0, 0];
    let attributes: [(u16, &[u8]); 3] =
        [(1, &object.to_ne_bytes()), (5, &ifindex.to_ne_bytes()), (6, &gateway.octets())];
    message(104, PUT, &body, &attributes)
}

/// `RTM_NEWLINK`: sets an interface up or down.
#[must_use]
pub fn set_up(ifindex: u32, up: bool) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend(ifindex.to_ne_bytes());
    body.extend(u32::from(up).to_ne_bytes());
    body.extend(1u32.to_ne_bytes());
    message(16, 0x5, &body, &[])
}

/// Adds the FPM header to a message.
#[must_use]
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u16 + 4).to_be_bytes();
    [&[1, 1], &length[..], message].concat()
}

/// A netlink socket in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Kernel(Socket);

impl Kernel {
    /// Opens a socket that joins these multicast groups. With groups, it is non-blocking and only
    /// for [`Kernel::heard`].
    ///
    /// # Errors
    /// The error of the system call.
    pub fn open(groups: &[u32]) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        groups.iter().try_for_each(|group| socket.add_membership(*group))?;
        socket.set_non_blocking(!groups.is_empty())?;
        Ok(Self(socket))
    }

    /// Sends a request and waits for its acknowledgement.
    ///
    /// # Errors
    /// The error of the system call, or that of the kernel's answer.
    pub fn ask(&self, message: &[u8]) -> io::Result<()> {
        self.0.send(message, 0)?;
        let mut answer = Vec::with_capacity(4096);
        self.0.recv(&mut answer, 0)?;
        let error = answer
            .get(16..20)
            .and_then(|error| error.try_into().ok())
            .map_or(0, i32::from_ne_bytes);
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-error)) }
    }

    /// Whether notifications have arrived since the last call.
    #[must_use]
    pub fn heard(&self) -> bool {
        let mut heard = false;
        let mut event = Vec::with_capacity(1 << 16);
        while self.0.recv(&mut event, 0).is_ok() {
            heard = true;
            event.clear();
        }
        heard
    }
}
