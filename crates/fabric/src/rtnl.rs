//! Links, addresses, routes, neighbours and forwarding databases of a network namespace, over
//! rtnetlink(7).
//!
//! [`Namespace::rtnl`](crate::Namespace::rtnl) opens the socket. A request waits for the kernel's
//! answer.

mod message;
mod tunnel;

use std::fs::File;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use futures_util::TryStreamExt;
use netlink::{Dump, Message, Requests};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags};
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute, LinkXdp};
use rtnetlink::packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use rtnetlink::{
    Handle, LinkBridge, LinkBridgePort, LinkDummy, LinkMessageBuilder, LinkUnspec, LinkVeth,
    LinkVxlan, RouteMessageBuilder,
};
use tokio::runtime::{Builder, Runtime};
use wire::MacAddr;

pub use message::{FdbEntry, Link, Route, Vxlan as VxlanSettings};

/// `NUD_NOARP | NUD_REACHABLE`: an entry that does not age, as `bridge fdb add … static` makes it.
const STATIC: NeighbourState = NeighbourState::Other(0x42);

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum RtnlError {
    /// No netlink socket could be opened.
    #[error("cannot open a netlink socket: {0}")]
    Open(io::Error),
    /// There is no interface of that name.
    #[error("no interface '{0}'")]
    NoLink(String),
    /// The text is not an IP address, or its prefix length is not a number.
    #[error("'{0}' is not an IP address with a prefix length")]
    Address(String),
    /// The kernel rejected the request.
    #[error("cannot {action}: {cause}")]
    Rejected {
        /// The request.
        action: String,
        /// The kernel's error.
        cause: io::Error,
    },
}

impl RtnlError {
    /// The kernel's error number, if it rejected the request.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Rejected { cause, .. } => cause.raw_os_error(),
            Self::Open(_) | Self::NoLink(_) | Self::Address(_) => None,
        }
    }
}

type Result<T> = core::result::Result<T, RtnlError>;

/// A netlink socket in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Rtnl {
    runtime: Runtime,
    handle: Handle,
    /// For dumps. It is open in the same namespace.
    requests: Mutex<Requests>,
}

/// One end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub struct VethEnd<'a> {
    /// The name of the interface.
    pub name: &'a str,
    /// The MAC address; `None` for a random one.
    pub mac: Option<MacAddr>,
    /// The MTU in bytes.
    pub mtu: u32,
}

/// A VXLAN netdev without learning (`nolearning`).
#[derive(Debug, Clone, Copy)]
pub struct Vxlan<'a> {
    /// The name of the interface.
    pub name: &'a str,
    /// The VNI.
    pub vni: u32,
    /// The VTEP address.
    pub local: Ipv4Addr,
    /// The UDP destination port.
    pub port: u16,
    /// The MTU in bytes.
    pub mtu: u32,
}

impl Rtnl {
    /// Opens a socket in the calling thread's namespace.
    ///
    /// # Errors
    /// [`RtnlError::Open`].
    pub fn open() -> Result<Self> {
        let open = || {
            let runtime = Builder::new_current_thread().enable_io().build()?;
            let entered = runtime.enter();
            let (connection, handle, _) = rtnetlink::new_connection()?;
            drop(entered);
            // The task runs while a request waits for its answer.
            runtime.spawn(connection);
            Ok(Self { runtime, handle, requests: Mutex::new(Requests::open()?) })
        };
        open().map_err(RtnlError::Open)
    }

    fn wait<T>(
        &self,
        action: impl FnOnce() -> String,
        request: impl Future<Output = core::result::Result<T, rtnetlink::Error>>,
    ) -> Result<T> {
        self.runtime.block_on(request).map_err(|error| {
            let cause = match error {
                rtnetlink::Error::NetlinkError(message) => message.to_io(),
                other => io::Error::other(other),
            };
            RtnlError::Rejected { action: action(), cause }
        })
    }

    fn dump(&self, action: &str, what: Dump) -> Result<Vec<Message>> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let rejected = |cause| RtnlError::Rejected { action: action.to_owned(), cause };
        requests.dump(what).map_err(|error| rejected(error.into()))
    }

    fn change<T>(&self, link: &str, change: LinkMessageBuilder<T>) -> Result<()> {
        let request = self.handle.link().change(change.build());
        self.wait(|| format!("change interface {link}"), request.execute())
    }

    fn add<T>(&self, link: &str, new: LinkMessageBuilder<T>) -> Result<()> {
        let request = self.handle.link().add(new.build());
        self.wait(|| format!("create interface {link}"), request.execute())
    }

    /// Creates a veth pair and sets `end` up. `peer_namespace` is an open `/run/netns/NAME`; with
    /// `None`, the peer is created in the namespace of the socket. The peer stays down, because the
    /// kernel cannot set it up before the pair is complete (`veth_open` in drivers/net/veth.c).
    ///
    /// # Errors
    /// [`RtnlError::Rejected`], for example if a name exists already.
    pub fn add_veth(
        &self,
        end: VethEnd,
        peer: VethEnd,
        peer_namespace: Option<&File>,
    ) -> Result<()> {
        let mut message = with_settings(LinkUnspec::new_with_name(peer.name), peer);
        if let Some(namespace) = peer_namespace {
            message = message.setns_by_fd(namespace.as_raw_fd());
        }
        let peer = InfoData::Veth(InfoVeth::Peer(message.build()));
        let pair = LinkVeth::new(end.name, "").set_info_data(peer);
        self.add(end.name, with_settings(pair, end).up())
    }

    /// Creates a bridge with or without multicast snooping and sets it up.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`].
    pub fn add_bridge(&self, name: &str, multicast_snooping: bool) -> Result<()> {
        let bridge = LinkBridge::new(name);
        self.add(name, if multicast_snooping { bridge } else { bridge.mcast_snooping(false) })
    }

    /// Creates a dummy interface, which drops what is sent, and sets it up.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`]; with `EOPNOTSUPP` if the kernel has no dummy interfaces.
    pub fn add_dummy(&self, end: VethEnd) -> Result<()> {
        self.add(end.name, with_settings(LinkDummy::new(end.name), end).up())
    }

    /// Creates a VXLAN netdev, which is down.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`].
    pub fn add_vxlan(&self, vxlan: Vxlan) -> Result<()> {
        let Vxlan { name, vni, local, port, mtu } = vxlan;
        let new = LinkVxlan::new(name, vni).local(local).port(port).learning(false).mtu(mtu);
        self.add(name, new)
    }

    /// Gives an interface another name beside its own.
    ///
    /// # Errors
    /// [`RtnlError::NoLink`]; [`RtnlError::Rejected`], with `EEXIST` if an interface has the name.
    pub fn add_name(&self, link: &str, name: &str) -> Result<()> {
        let request = self.handle.link().property_add(index(link)?).alt_ifname(&[name]);
        self.wait(|| format!("name interface {link} '{name}', too"), request.execute())
    }

    /// Deletes an interface.
    ///
    /// # Errors
    /// [`RtnlError::NoLink`], or [`RtnlError::Rejected`] if the kind cannot be deleted.
    pub fn delete_link(&self, name: &str) -> Result<()> {
        let request = self.handle.link().del(index(name)?);
        self.wait(|| format!("delete interface {name}"), request.execute())
    }

    /// Sets an interface up or down.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`], with `ENODEV` if there is no such interface.
    pub fn set_up(&self, name: &str, up: bool) -> Result<()> {
        let link = LinkUnspec::new_with_name(name);
        self.change(name, if up { link.up() } else { link.down() })
    }

    /// Makes an interface a port of a bridge; with `None`, of no bridge.
    ///
    /// # Errors
    /// [`RtnlError::NoLink`] if there is no such bridge; [`RtnlError::Rejected`].
    pub fn set_master(&self, name: &str, bridge: Option<&str>) -> Result<()> {
        let master = bridge.map_or(Ok(0), index)?;
        self.change(name, LinkUnspec::new_with_name(name).controller(master))
    }

    /// Switches the learning of MAC addresses at a bridge port.
    ///
    /// # Errors
    /// [`RtnlError::NoLink`] or [`RtnlError::Rejected`].
    pub fn set_port_learning(&self, port: &str, on: bool) -> Result<()> {
        self.change(port, LinkBridgePort::new(index(port)?).learning(on))
    }

    /// Sets the MAC address of an interface.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`].
    pub fn set_mac(&self, name: &str, mac: MacAddr) -> Result<()> {
        self.change(name, LinkUnspec::new_with_name(name).address(mac.0.to_vec()))
    }

    /// Detaches the XDP program of an interface and ends promiscuous mode.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`].
    pub fn reset_receive_path(&self, name: &str) -> Result<()> {
        let none = LinkAttribute::Xdp(vec![LinkXdp::Fd(-1)]);
        let link = LinkUnspec::new_with_name(name).promiscuous(false);
        self.change(name, link.append_extra_attribute(none))
    }

    /// Sets the MTU of an interface, in bytes.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`].
    pub fn set_mtu(&self, name: &str, mtu: u32) -> Result<()> {
        self.change(name, LinkUnspec::new_with_name(name).mtu(mtu))
    }

    /// Renames an interface. Linux before 6.2 refuses this with `EBUSY` if the interface is up.
    ///
    /// # Errors
    /// [`RtnlError::NoLink`] or [`RtnlError::Rejected`].
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.change(from, LinkUnspec::new_with_index(index(from)?).name(to))
    }

    /// Adds an address, for example `10.0.0.1/24`. Without a prefix length, it is a host address.
    ///
    /// # Errors
    /// [`RtnlError::Address`], [`RtnlError::NoLink`] or [`RtnlError::Rejected`].
    pub fn add_address(&self, name: &str, address: &str) -> Result<()> {
        self.address(name, address, true)
    }

    /// Adds an address without the route to its prefix (`noprefixroute`).
    ///
    /// # Errors
    /// As [`Self::add_address`].
    pub fn add_address_without_route(&self, name: &str, address: &str) -> Result<()> {
        self.address(name, address, false)
    }

    fn address(&self, name: &str, text: &str, prefix_route: bool) -> Result<()> {
        let (address, length) = prefix(text)?;
        let mut request = self.handle.address().add(index(name)?, address, length);
        if !prefix_route {
            let flags = AddressFlags::Noprefixroute;
            request.message_mut().attributes.push(AddressAttribute::Flags(flags));
        }
        self.wait(|| format!("add {text} to {name}"), request.execute())
    }

    /// Adds a route to an IPv4 address by a gateway.
    ///
    /// # Errors
    /// [`RtnlError::NoLink`], or [`RtnlError::Rejected`], for example if the gateway is not on the
    /// link.
    pub fn add_route(&self, to: Ipv4Addr, gateway: Ipv4Addr, link: &str) -> Result<()> {
        let route = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(to, 32)
            .gateway(gateway)
            .output_interface(index(link)?)
            .build();
        let request = self.handle.route().add(route);
        self.wait(|| format!("add a route to {to}"), request.execute())
    }

    /// Deletes a route.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`], with `ESRCH` if there is no such route.
    pub fn delete_route(&self, route: &Route) -> Result<()> {
        let request = self.handle.route().del(route.deletion());
        self.wait(|| "delete a route".to_owned(), request.execute())
    }

    /// Adds or replaces a permanent neighbour entry.
    ///
    /// # Errors
    /// [`RtnlError::NoLink`] or [`RtnlError::Rejected`].
    pub fn set_neighbour(&self, link: &str, address: Ipv4Addr, mac: MacAddr) -> Result<()> {
        let request = self.handle.neighbours().add(index(link)?, address.into());
        let request = request.link_layer_address(&mac.0).replace();
        self.wait(|| format!("set the neighbour {address}"), request.execute())
    }

    /// Adds or replaces a static MAC address at a bridge port.
    ///
    /// # Errors
    /// [`RtnlError::NoLink`] or [`RtnlError::Rejected`].
    pub fn set_port_mac(&self, port: &str, mac: MacAddr) -> Result<()> {
        let request = self.handle.neighbours().add_bridge(index(port)?, &mac.0);
        let request = request.state(STATIC).flags(NeighbourFlags::Controller).replace();
        self.wait(|| format!("set {mac} at {port}"), request.execute())
    }

    /// Adds a static MAC address with its remote VTEP to a VXLAN netdev that is a bridge port, and
    /// to the bridge.
    ///
    /// # Errors
    /// [`RtnlError::NoLink`] or [`RtnlError::Rejected`].
    pub fn add_remote_mac(&self, vxlan: &str, mac: MacAddr, remote: Ipv4Addr) -> Result<()> {
        let request = self.handle.neighbours().add_bridge(index(vxlan)?, &mac.0);
        let request = request.destination(remote.into()).state(STATIC).flags(NeighbourFlags::Own);
        self.wait(|| format!("add {mac} to {vxlan}"), request.execute())?;
        self.set_port_mac(vxlan, mac)
    }

    /// Deletes a MAC address from the bridge of a port.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`], with `ENOENT` if there is no such entry.
    pub fn delete_port_mac(&self, port: u32, mac: MacAddr) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = port;
        message.header.flags = NeighbourFlags::Controller;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
        let request = self.handle.neighbours().del(message);
        self.wait(|| format!("delete {mac}"), request.execute())
    }

    /// All interfaces.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`].
    pub fn links(&self) -> Result<Vec<Link>> {
        let links = self.dump("list interfaces", Dump::Links)?;
        Ok(links.into_iter().filter_map(message::link_of).collect())
    }

    /// The forwarding databases of all bridges and VXLAN netdevs.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`].
    pub fn fdb(&self) -> Result<Vec<FdbEntry>> {
        let entries = self.dump("list forwarding databases", Dump::Fdb)?;
        Ok(entries.into_iter().filter_map(message::fdb_entry_of).collect())
    }

    /// The IPv4 and IPv6 routes of the main table.
    ///
    /// # Errors
    /// [`RtnlError::Rejected`].
    pub fn routes(&self) -> Result<Vec<Route>> {
        let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
        let mut all = Vec::new();
        for family in [v4, v6] {
            let routes = self.handle.route().get(family).execute().try_collect::<Vec<_>>();
            all.extend(self.wait(|| "list routes".to_owned(), routes)?);
        }
        Ok(all.into_iter().filter_map(message::main_route_of).collect())
    }
}

fn with_settings<T>(link: LinkMessageBuilder<T>, end: VethEnd) -> LinkMessageBuilder<T> {
    let link = link.mtu(end.mtu);
    match end.mac {
        Some(mac) => link.address(mac.0.to_vec()),
        None => link,
    }
}

/// The index of an interface in the calling thread's namespace.
fn index(name: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(name).map_err(|_| RtnlError::NoLink(name.to_owned()))
}

/// Parses an address with an optional prefix length.
fn prefix(text: &str) -> Result<(IpAddr, u8)> {
    let (address, length) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
    let parse = || {
        let address: IpAddr = address.parse().ok()?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Some(longest), |length| length.parse().ok())?;
        Some((address, length))
    };
    parse().ok_or_else(|| RtnlError::Address(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_have_a_prefix_length() {
        let four = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(prefix("10.0.0.1/24").unwrap(), (four, 24));
        assert_eq!(prefix("10.0.0.1").unwrap(), (four, 32));
        assert_eq!(prefix("::1").unwrap().1, 128);
        for text in ["10.0.0/24", "10.0.0.1/x", "10.0.0.1/", ""] {
            let error = prefix(text).unwrap_err().to_string();
            assert_eq!(error, format!("'{text}' is not an IP address with a prefix length"));
        }
    }
}
