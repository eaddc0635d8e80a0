//! Links with one end in the fabric: dummy interfaces, and tunnels to other machines.

use nix::errno::Errno;

use crate::lifecycle::{Fabric, FabricError};
use crate::netns::{self, Namespace, NetnsError};
use crate::rtnl::{Link, Rtnl, RtnlError, VethEnd};
use crate::topology::{FarEnd, HalfLink, LINK_MTU, Tunnel};

/// Bytes of an outer Ethernet header, UDP and VXLAN, without the IP header.
const ENCAPSULATION: u32 = 14 + 8 + 8;

/// Creates a link, with the settings of its end. `index` is its place in the file.
pub(crate) fn add(fabric: &Fabric, index: usize, link: &HalfLink) -> Result<(), FabricError> {
    let HalfLink { end, settings, mtu, to } = link;
    let namespace = fabric.node(&end.node)?.namespace()?;
    // The topology file has only valid MAC addresses.
    let mac = settings.mac.as_ref().and_then(|mac| mac.parse().ok());
    let new = |mtu| VethEnd { name: &end.interface, mac, mtu };
    let failed = |error| FabricError::Tunnel { end: end.to_string(), error };
    match to {
        FarEnd::Dummy => add_dummy(&namespace, new(mtu.unwrap_or(LINK_MTU)), index)?,
        FarEnd::Vxlan(tunnel) => {
            let machine = Machine::open(tunnel).map_err(failed)?;
            let mtu = machine.mtu(*mtu).map_err(failed)?;
            machine.add(new(mtu), &namespace).map_err(failed)?;
        }
        FarEnd::Stitched(tunnel) => {
            let machine = Machine::open(tunnel).map_err(failed)?;
            let mtu = machine.mtu(*mtu).map_err(failed)?;
            let between = fabric.stitches()?;
            let [inner, outer] = ["ve", "vx"].map(|kind| format!("{kind}{index}"));
            let end = |name| VethEnd { name, mac: None, mtu };
            netns::veth_pair((&namespace, new(mtu)), (&between, end(&inner)))?;
            machine.add(end(&outer), &between).map_err(failed)?;
            between.rtnl(|rtnl| rtnl.stitch(&inner, &outer))?;
        }
    }
    let mut addresses = settings.addresses.iter();
    namespace
        .rtnl(|rtnl| addresses.try_for_each(|address| rtnl.add_address(&end.interface, address)))?;
    Ok(())
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

/// Why there is no tunnel to another machine.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The kernel refused.
    #[error(transparent)]
    Rtnl(#[from] RtnlError),
    /// The namespace cannot be used.
    #[error(transparent)]
    Netns(#[from] NetnsError),
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
    fn open(tunnel: &'a Tunnel) -> Result<Self, TunnelError> {
        let rtnl = Rtnl::open()?;
        let parent = match &tunnel.parent {
            Some(name) => rtnl
                .links()?
                .into_iter()
                .find(|link| link.name == *name)
                .ok_or_else(|| TunnelError::NoParent(name.clone()))?,
            None => rtnl.link_to(tunnel.remote)?,
        };
        Ok(Self { rtnl, tunnel, parent })
    }

    /// The MTU of the link in bytes: the wanted one, or the largest that fits.
    fn mtu(&self, wanted: Option<u32>) -> Result<u32, TunnelError> {
        let ip = if self.tunnel.remote.is_ipv4() { 20 } else { 40 };
        let most = self.parent.mtu.saturating_sub(ENCAPSULATION + ip);
        match wanted {
            Some(mtu) if mtu > most => {
                Err(TunnelError::Mtu { mtu, parent: self.parent.name.clone(), most })
            }
            _ => Ok(wanted.unwrap_or(most)),
        }
    }

    /// Creates the tunnel's netdev in a namespace.
    fn add(&self, end: VethEnd, namespace: &Namespace) -> Result<(), TunnelError> {
        Ok(self.rtnl.add_tunnel(end, self.tunnel, &self.parent, &namespace.file()?)?)
    }
}
