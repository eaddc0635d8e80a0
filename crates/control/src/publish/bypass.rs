//! Which host ports have the bridge bypass, and which MAC addresses it is used for.
//!
//! The bypass has two directions. A host's frames to a known remote address are redirected from its
//! port to the worker. Decapsulated frames for a host go from the worker to its port, unless the
//! bridge learns from the vxlan netdev.
//!
//! A port has the bypass if the bridge would only forward its hosts' known unicast to the vxlan
//! netdev. On the other ports of such a bridge, programs only watch source addresses. A port that
//! is not forwarding yet needs such a program before it starts to forward.
//!
//! Each address has at most one location: where the bridge has it, on a port with the bypass or
//! behind the vxlan netdev. [`Bypass::take_mac_locations`] returns each change once.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::time::Duration;

use netlink::{Bridge, BridgePort, Link, LinkKind};
use tables::hash::{TableHasher, TableMap};
use tables::{BypassPort, Fdb, MacLocation, MacLocationChange, VniIndex, VniSource};
use wire::{MacAddr, Vni};

use crate::eligibility::VniConfig;
use crate::publish::decisions::{Configuration, Decisions};
use crate::settings::Filters;
use crate::stores::Stores;
use crate::stores::changes::BypassChanges;
use crate::stores::links::{impairs, is_up};

/// `BR_STATE_FORWARDING` (`include/uapi/linux/if_bridge.h`).
const FORWARDING: u8 = 3;
/// The longest time in which the bridge receives no frame of an active host.
const REFRESH: Duration = Duration::from_secs(1);
/// The same as a fraction of the bridge's ageing time.
const AGEING_SHARE: u32 = 4;
/// Header of an Ethernet frame in bytes.
const HEADER: u32 = 14;

/// A host port of a bridge whose VNI is taken over, and whether it has the bypass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortDecision {
    /// Its interface index.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// The name of its bridge.
    pub bridge: String,
    /// The VNI of its bridge.
    pub vni: Vni,
    /// Why all of its frames pass the bridge; `None` if it has the bypass.
    pub reason: Option<NoBypass>,
}

/// Why all frames of a port pass the bridge. Each reads as the end of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoBypass {
    /// `bridge-bypass = false`.
    #[error("the configuration turns it off")]
    Off,
    /// Not administratively up.
    #[error("it is down")]
    Down,
    /// `IFLA_BRPORT_STATE` of the port is not forwarding.
    #[error("the bridge does not forward what it receives (STP state {0})")]
    NotForwarding(u8),
    /// `IFLA_BRPORT_STATE` of the vxlan netdev is not forwarding.
    #[error("the bridge does not forward to the vxlan netdev (STP state {0})")]
    NetdevNotForwarding(u8),
    /// The port is isolated.
    #[error("it is isolated")]
    Isolated,
    /// The port is locked.
    #[error("it is locked")]
    Locked,
    /// The vxlan netdev's port is locked.
    #[error("the vxlan netdev's port is locked")]
    NetdevLocked,
    /// `backup_port`.
    #[error("it has a backup port")]
    BackupPort,
    /// A VLAN interface.
    #[error("it is a VLAN interface")]
    VlanInterface,
    /// Several vxlan netdevs in one bridge.
    #[error("its bridge has several vxlan netdevs")]
    SeveralNetdevs,
    /// The bridge keeps no entries.
    #[error("its bridge remembers no addresses (its ageing time is 0)")]
    NoAgeing,
    /// The bridge interface receives a copy of every frame.
    #[error(
        "the bridge interface listens to all that is forwarded (promiscuous: a capture, or an interface on it)"
    )]
    Promiscuous,
    /// nftables rules in the families bridge or netdev.
    #[error("nftables has rules that may see its frames (families bridge and netdev)")]
    FrameFilter,
    /// Legacy ebtables.
    #[error("legacy ebtables is loaded, and its rules cannot be seen")]
    Ebtables,
    /// Packet filter rules for IP, and the bridge passes its frames to them.
    #[error("a packet filter may see what the bridge forwards (bridge-nf-call-iptables)")]
    PacketFilter,
}

/// The ports and addresses of the bridge bypass.
#[derive(Debug, Default)]
pub(crate) struct Bypass {
    /// The ports of each bridge.
    ports: BTreeMap<u32, Vec<(PortDecision, Option<BypassPort>)>>,
    /// The locations of MAC addresses in each bridge.
    locations: HashMap<u32, TableMap<MacAddr, MacLocation>, BuildHasherDefault<TableHasher>>,
    /// The MAC addresses of each bridge whose frames workers may send to their port.
    hosts: BTreeMap<u32, Fdb<u32>>,
    /// Changes since [`Bypass::take_mac_locations`]: whether the address is at the location now.
    changes: BTreeMap<MacLocation, bool>,
}

/// Properties that all ports of a bridge share.
#[derive(Debug, Clone, Copy)]
struct Common<'a> {
    name: &'a str,
    netdev: u32,
    index: VniIndex,
    config: &'a VniConfig,
    mtu: u32,
    bridge: &'a Bridge,
    /// Whether the bridge learns nothing from the vxlan netdev. If it did, its learned entries
    /// would age out, because frames that bypass the bridge do not refresh them.
    delivers: bool,
    /// Why no port of the bridge has the bypass.
    reason: Option<NoBypass>,
}

/// The inputs of the decisions about host ports.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    stores: &'a Stores,
    configuration: Configuration<'a>,
    decisions: &'a Decisions,
}

/// The ports of the bypass by interface index, and the decisions about all host ports.
pub(crate) type Ports = (BTreeMap<u32, BypassPort>, Arc<[PortDecision]>);

impl Bypass {
    /// The addresses that appeared at a location or left one since the last call.
    pub(crate) fn take_mac_locations(&mut self) -> Arc<[MacLocationChange]> {
        let changes = std::mem::take(&mut self.changes);
        changes.into_iter().map(|(location, there)| MacLocationChange { location, there }).collect()
    }

    /// Applies changes of bridges, their ports and addresses. The addresses that use the bypass are
    /// handed to `decisions`. Returns the ports if they changed.
    pub(crate) fn build(
        &mut self,
        stores: &Stores,
        configuration: Configuration<'_>,
        decisions: &mut Decisions,
        changes: BypassChanges,
    ) -> Option<Ports> {
        let inputs = Inputs { stores, configuration, decisions: &*decisions };
        let mut addresses = changes.addresses;
        let mut changed = false;
        let mut delivering = changes.bridges.clone();
        for bridge in changes.bridges {
            let ports = decide_ports(inputs, bridge);
            if ports == self.ports.get(&bridge).map_or(&[][..], Vec::as_slice) {
                continue;
            }
            changed = true;
            if ports.is_empty() {
                self.ports.remove(&bridge);
            } else {
                self.ports.insert(bridge, ports);
            }
            addresses.extend(stores.bridges.macs(bridge).map(|mac| (bridge, mac)));
            let placed =
                self.locations.get(&bridge).into_iter().flat_map(|locations| locations.keys());
            addresses.extend(placed.map(|mac| (bridge, *mac)));
        }
        for (bridge, mac) in addresses {
            let new = self.location(inputs, bridge, mac);
            if self.deliver(bridge, mac, new) {
                delivering.insert(bridge);
            }
            self.put(bridge, mac, new);
        }
        for bridge in delivering {
            let hosts = self.hosts.get(&bridge).cloned().unwrap_or_default();
            for netdev in stores.links.vxlans_in(bridge) {
                decisions.set_hosts(VniSource::Netdev(netdev), hosts.clone());
            }
        }
        changed.then(|| self.all_ports())
    }

    fn all_ports(&self) -> Ports {
        let all = || self.ports.values().flatten();
        let ports = all().filter_map(|(_, port)| port.as_ref());
        let ports = ports.map(|port| (port.ifindex, port.clone())).collect();
        (ports, all().map(|(decision, _)| decision.clone()).collect())
    }

    /// The location of an address, if the bypass may be used for it.
    fn location(&self, inputs: Inputs<'_>, bridge: u32, mac: MacAddr) -> Option<MacLocation> {
        let Inputs { stores, decisions, .. } = inputs;
        let mut ports = self.sending(bridge);
        let known = stores.bridges.get(bridge, mac);
        let known = known.filter(|known| !known.permanent && !known.locked)?;
        if stores.links.vxlan(known.ifindex).is_none() {
            let port = ports.find(|port| port.ifindex == known.ifindex)?;
            return Some(MacLocation::Port { port: port.ifindex, index: port.index, mac });
        }
        let source = VniSource::Netdev(known.ifindex);
        let (index, _) = decisions.taken(source)?;
        // The kernel's bridge may have it there while the VNI has it at no or another VTEP.
        let vtep = *stores.overlays.get(&source)?.fdb.get(&mac)?;
        ports.next().map(|_| MacLocation::Remote { index, vtep, mac })
    }

    /// The ports of a bridge that have the bypass.
    fn sending(&self, bridge: u32) -> impl Iterator<Item = &BypassPort> {
        let ports =
            self.ports.get(&bridge).into_iter().flatten().filter_map(|(_, port)| port.as_ref());
        ports.filter(|port| port.sends)
    }

    fn put(&mut self, bridge: u32, mac: MacAddr, new: Option<MacLocation>) {
        let locations = self.locations.entry(bridge).or_default();
        let old = match new {
            Some(new) => locations.insert(mac, new),
            None => locations.remove(&mac),
        };
        if locations.is_empty() {
            self.locations.remove(&bridge);
        }
        if old != new {
            self.changes.extend(old.map(|old| (old, false)));
            self.changes.extend(new.map(|new| (new, true)));
        }
    }

    /// Updates whether workers may send frames for this address to its port. Returns whether that
    /// changed.
    fn deliver(&mut self, bridge: u32, mac: MacAddr, location: Option<MacLocation>) -> bool {
        let port = match location {
            Some(MacLocation::Port { port, .. }) => {
                self.sending(bridge).find(|known| known.ifindex == port && known.delivers)
            }
            _ => None,
        };
        if let Some(port) = port.map(|port| port.ifindex) {
            return self.hosts.entry(bridge).or_default().insert(mac, port) != Some(port);
        }
        let Some(hosts) = self.hosts.get_mut(&bridge) else { return false };
        let delivered = hosts.remove(&mac).is_some();
        if hosts.is_empty() {
            self.hosts.remove(&bridge);
        }
        delivered
    }
}

/// The decisions about the host ports of a bridge, and the ports of its bypass.
fn decide_ports(inputs: Inputs<'_>, bridge: u32) -> Vec<(PortDecision, Option<BypassPort>)> {
    let Some(common) = common(inputs, bridge) else { return Vec::new() };
    let ports = inputs.stores.links.ports_of(bridge);
    let hosts = ports.filter(|link| !matches!(link.kind, LinkKind::Vxlan(_)));
    let decide = |link: &Link| {
        let reason = common.reason.or_else(|| obstacle(link));
        let (ifindex, name) = (link.ifindex, link.name.clone());
        let ageing = Duration::from_millis(u64::from(common.bridge.ageing) * 10);
        let port = common.reason.is_none().then(|| BypassPort {
            sends: reason.is_none(),
            delivers: reason.is_none() && common.delivers && !impairs(link),
            ifindex,
            name: name.clone(),
            netdev: common.netdev,
            index: common.index,
            frame_limit: common.config.frame_limit.min(common.mtu.saturating_add(HEADER)),
            mtu: link.mtu,
            refresh: REFRESH.min(ageing / AGEING_SHARE),
        });
        let (vni, bridge) = (common.config.tunnel.vni, common.name.to_owned());
        (PortDecision { ifindex, name, bridge, vni, reason }, port)
    };
    hosts.map(decide).collect()
}

/// `None` if no VNI of the bridge is taken over.
fn common(inputs: Inputs<'_>, bridge: u32) -> Option<Common<'_>> {
    let Inputs { stores, configuration, decisions } = inputs;
    let mut netdevs = stores.links.vxlans_in(bridge);
    let (netdev, several) = (netdevs.next()?, netdevs.next().is_some());
    let (index, config) = decisions.taken(VniSource::Netdev(netdev))?;
    let attributes = stores.links.bridge(bridge)?;
    let link = stores.links.get(netdev)?;
    let BridgePort { state, learning, locked, .. } = link.bridge_port.unwrap_or_default();
    let Filters { bridge: frames, ebtables, ip, call_ip, .. } = configuration.namespace.filters;
    let reasons = [
        (!configuration.settings.bypass, NoBypass::Off),
        (several, NoBypass::SeveralNetdevs),
        (state != FORWARDING, NoBypass::NetdevNotForwarding(state)),
        (locked, NoBypass::NetdevLocked),
        (attributes.ageing == 0, NoBypass::NoAgeing),
        (attributes.promiscuous, NoBypass::Promiscuous),
        (frames, NoBypass::FrameFilter),
        (ebtables, NoBypass::Ebtables),
        (ip && (call_ip || attributes.calls_netfilter), NoBypass::PacketFilter),
    ];
    let reason = reasons.into_iter().find_map(|(applies, reason)| applies.then_some(reason));
    let name = stores.links.get(bridge)?.name.as_str();
    let delivers = !learning;
    Some(Common {
        name,
        netdev,
        index,
        config,
        mtu: link.mtu,
        bridge: attributes,
        delivers,
        reason,
    })
}

/// Why frames of this port have to pass the bridge.
fn obstacle(link: &Link) -> Option<NoBypass> {
    let port = link.bridge_port.unwrap_or_default();
    let vlan = matches!(&link.kind, LinkKind::Other(kind) if kind == "vlan");
    [
        (!is_up(link), NoBypass::Down),
        (vlan, NoBypass::VlanInterface),
        (port.state != FORWARDING, NoBypass::NotForwarding(port.state)),
        (port.isolated, NoBypass::Isolated),
        (port.locked, NoBypass::Locked),
        (port.backup, NoBypass::BackupPort),
    ]
    .into_iter()
    .find_map(|(applies, reason)| applies.then_some(reason))
}
