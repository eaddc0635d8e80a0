//! The interfaces of the namespace with their carrier state, and notifications of changes
//! (rtnetlink(7)).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::libc;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    socket,
};

use crate::packet::Interface;

/// An interface and its state.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) interface: Interface,
    /// Set up administratively (`IFF_UP`).
    pub(super) up: bool,
    /// Up with a carrier (`IFF_UP` and `IFF_LOWER_UP`).
    pub(super) carrier: bool,
}

/// All interfaces by name.
pub(super) fn all() -> io::Result<BTreeMap<String, Link>> {
    let mut links = BTreeMap::new();
    for entry in getifaddrs()? {
        let Some(link) = entry.address.as_ref().and_then(|address| address.as_link_addr()) else {
            continue;
        };
        let mac = wire::MacAddr(link.addr().unwrap_or_default());
        let name = entry.interface_name;
        let interface = Interface { name: name.clone(), mac, ipv4: None, link: *link };
        let flags = entry.flags;
        let carrier = flags.contains(InterfaceFlags::IFF_UP)
            && flags.bits() & libc::IFF_LOWER_UP == libc::IFF_LOWER_UP;
        links.insert(name, Link { interface, up: flags.contains(InterfaceFlags::IFF_UP), carrier });
    }
    Ok(links)
}

/// A socket that becomes readable when an interface appears, disappears or changes its carrier
/// state.
#[derive(Debug)]
pub(super) struct Watch(OwnedFd);

impl Watch {
    pub(super) fn open() -> io::Result<Self> {
        let group = u32::try_from(libc::RTMGRP_LINK).unwrap_or_default();
        Ok(Self(netlink(SockFlag::SOCK_NONBLOCK, group)?))
    }

    #[cfg(test)]
    pub(super) fn deaf() -> io::Result<Self> {
        Ok(Self(netlink(SockFlag::SOCK_NONBLOCK, 0)?))
    }

    /// Whether there were notifications since the last call.
    pub(super) fn heard(&self) -> bool {
        let mut buffer = [0; 8192];
        let mut heard = false;
        loop {
            match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(_) | Err(Errno::EINTR | Errno::ENOBUFS) => heard = true,
                Err(_) => return heard,
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sets an interface up or down. The carrier of its peer follows.
pub(super) fn set(interface: &Interface, up: bool) -> io::Result<()> {
    let socket = netlink(SockFlag::empty(), 0)?;
    let index = u32::try_from(interface.link.ifindex()).unwrap_or_default();
    let mask = libc::IFF_UP as u32;
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    // `struct nlmsghdr` (length, type, flags, sequence number, port) and `struct ifinfomsg` (family
    // and type, index, flags, mask of flags to change).
    let mut request = 32_u32.to_ne_bytes().to_vec();
    request.extend([libc::RTM_NEWLINK.to_ne_bytes(), flags.to_ne_bytes()].concat());
    request.extend(
        [1_u32, 0, 0, index, if up { mask } else { 0 }, mask].map(u32::to_ne_bytes).concat(),
    );
    send(socket.as_raw_fd(), &request, MsgFlags::empty())?;
    let mut answer = [0; 256];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    // `struct nlmsgerr`: 0 or a negative error number.
    let code = answer
        .get(..length)
        .and_then(|answer| answer.get(16..20))
        .and_then(|code| code.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn netlink(flags: SockFlag, groups: u32) -> io::Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(socket)
}
