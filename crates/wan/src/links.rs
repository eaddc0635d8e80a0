//! The interfaces of the namespace with their carrier state.

use std::collections::BTreeMap;
use std::io;

use nix::ifaddrs::getifaddrs;
use nix::libc;
use nix::net::if_::InterfaceFlags;

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

/// Sets an interface up or down. The carrier of its peer follows.
pub(super) fn set(interface: &Interface, up: bool) -> Result<(), RtnlError> {
    Rtnl::open()?.set_up(&interface.name, up)
}
