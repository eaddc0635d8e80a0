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
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};

use fabric::packet::Interface;
use fabric::rtnl::{Rtnl, RtnlError};

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
/// state. It is not `rtnetlink`'s, because `Wan` polls it together with its packet sockets.
#[derive(Debug)]
pub(super) struct Watch(OwnedFd);

impl Watch {
    pub(super) fn open() -> io::Result<Self> {
        watch(libc::RTMGRP_LINK as u32)
    }

    /// Only tests do without.
    pub(super) fn without_notifications() -> io::Result<Self> {
        watch(0)
    }

    /// Whether there were notifications since the last call, or some may have been lost.
    pub(super) fn has_changes(&self) -> bool {
        let mut buffer = [0; 8192];
        let mut changed = false;
        loop {
            match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(_) => changed = true,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return changed,
                // ENOBUFS: the buffer was full.
                Err(_) => return true,
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
pub(super) fn set(interface: &Interface, up: bool) -> Result<(), RtnlError> {
    Rtnl::open()?.set_up(&interface.name, up)
}

fn watch(groups: u32) -> io::Result<Watch> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(Watch(socket))
}
