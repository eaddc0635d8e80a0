//! Links with one end in the fabric: dummy interfaces, and tunnels to other machines.

use std::io;

use nix::errno::Errno;

use crate::netns::{self, Namespace, NetnsError};
use crate::rtnl::{Link, Rtnl, RtnlError, VethEnd};
use crate::topology::{FarEnd, HalfLink, LINK_MTU, Tunnel};

/// Bytes of an outer Ethernet header, UDP and VXLAN, without the IP header.
const ENCAPSULATION: u32 = 14 + 8 + 8;

/// Creates a link in the namespace of its node, with the settings of its end. `stitches` names the
/// namespace between nodes and tunnels, and `index` is the link's place in the file.
pub(crate) fn add(
    namespace: &Namespace,
    stitches: &str,
    index: usize,
    link: &HalfLink,
) -> Result<(), HalfLinkError> {
    let HalfLink { end, settings, mtu, to } = link;
    // The topology file has only valid MAC addresses.
    let mac = settings.mac.as_ref().and_then(|mac| mac.parse().ok());
    let new = |mtu| VethEnd { name: &end.interface, mac, mtu };
    match to {
        FarEnd::Dummy => add_dummy(namespace, new(mtu.unwrap_or(LINK_MTU)), index)?,
        FarEnd::Vxlan(tunnel) => {
            let machine = Machine::open(tunnel)?;
            machine.add(new(machine.mtu(*mtu)?), namespace)?;
        }
        FarEnd::Stitched(tunnel) => {
            let machine = Machine::open(tunnel)?;
            let mtu = machine.mtu(*mtu)?;
            let between = between(stitches)?;
            let [inner, outer] = ["ve", "vx"].map(|kind| format!("{kind}{index}"));
            let end = |name| VethEnd { name, mac: None, mtu };
            netns::veth_pair((namespace, new(mtu)), (&between, end(&inner)))?;
            machine.add(end(&outer), &between)?;
            between.rtnl(|rtnl| rtnl.stitch(&inner, &outer))?;
        }
    }
    if let Some(name) = &settings.alternative {
        namespace.rtnl(|rtnl| rtnl.add_name(&end.interface, name))?;
    }
    Ok(())
}

/// Opens the namespace between nodes and tunnels. The first link creates it.
fn between(name: &str) -> Result<Namespace, HalfLinkError> {
    if let Ok(there) = Namespace::open(name) {
        return Ok(there);
    }
    let new = Namespace::create(name)?.keep();
    // The kernel's own packets do not belong into tunnels.
    let has_ipv6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
    new.enter(|| std::fs::write(has_ipv6, "1"))?.map_err(HalfLinkError::Ipv6)?;
    Ok(new)
}

/// Creates a dummy interface. A kernel without them gets a veth pair, whose other end is called
/// `dummyN` and stays in the namespace.
fn add_dummy(namespace: &Namespace, end: VethEnd, index: usize) -> Result<(), NetnsError> {
    let other = format!("dummy{index}");
    namespace.rtnl(|rtnl| match rtnl.add_dummy(end) {
        Err(error) if error.errno() == Some(Errno::EOPNOTSUPP as i32) => {
            rtnl.add_veth(end, VethEnd { name: &other, mac: None, mtu: end.mtu }, None)?;
            rtnl.set_up(&other, true)
        }
        result => result,
    })
}

/// A link could not be made.
#[derive(Debug, thiserror::Error)]
pub enum HalfLinkError {
    /// The kernel refused.
    #[error(transparent)]
    Rtnl(#[from] RtnlError),
    /// The namespace cannot be used.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// IPv6 cannot be switched off between a node and a tunnel.
    #[error("cannot switch IPv6 off: {0}")]
    Ipv6(io::Error),
    /// There is no interface of that name.
    #[error("this machine has no interface '{0}' (parent-interface)")]
    NoParent(String),
    /// Frames would not fit into the packets of the tunnel.
    #[error("an MTU of {mtu} does not fit into that of {parent}: set 'mtu: {most}' or less")]
    Mtu {
        /// The MTU of the link, in bytes.
        mtu: u32,
        /// The interface of this machine.
        parent: String,
        /// The largest MTU that fits, in bytes.
        most: u32,
    },
}

/// This machine, as the end of a tunnel.
struct Machine<'a> {
    rtnl: Rtnl,
    tunnel: &'a Tunnel,
    parent: Link,
}

impl<'a> Machine<'a> {
    fn open(tunnel: &'a Tunnel) -> Result<Self, HalfLinkError> {
        let rtnl = Rtnl::open()?;
        let parent = match &tunnel.parent {
            Some(name) => rtnl
                .links()?
                .into_iter()
                .find(|link| link.name == *name)
                .ok_or_else(|| HalfLinkError::NoParent(name.clone()))?,
            None => rtnl.link_to(tunnel.remote)?,
        };
        Ok(Self { rtnl, tunnel, parent })
    }

    /// The MTU of the link in bytes: the wanted one, or the largest that fits.
    fn mtu(&self, wanted: Option<u32>) -> Result<u32, HalfLinkError> {
        let ip = if self.tunnel.remote.is_ipv4() { 20 } else { 40 };
        let most = self.parent.mtu.saturating_sub(ENCAPSULATION + ip);
        match wanted {
            Some(mtu) if mtu > most => {
                Err(HalfLinkError::Mtu { mtu, parent: self.parent.name.clone(), most })
            }
            _ => Ok(wanted.unwrap_or(most)),
        }
    }

    /// Creates the tunnel's netdev in a namespace.
    fn add(&self, end: VethEnd, namespace: &Namespace) -> Result<(), HalfLinkError> {
        Ok(self.rtnl.add_tunnel(end, self.tunnel, &self.parent, &namespace.file()?)?)
    }
}
