//! The interfaces, and which of them can be an uplink.

use std::collections::{BTreeMap, BTreeSet};

use netlink::{Bridge, BridgePort, Link, LinkKind, Vxlan};

use crate::eligibility::ineligible::UnusableRoute;
use crate::stores::epoch_map::{Epoch, EpochMap};

/// `IFF_UP` (`include/uapi/linux/if.h`).
const IFF_UP: u32 = 0x1;
/// `IFF_NOARP`.
const IFF_NOARP: u32 = 0x80;
/// `ARPHRD_ETHER` (`include/uapi/linux/if_arp.h`).
const ARPHRD_ETHER: u16 = 1;
/// How many devices may be stacked on one another. The kernel allows 8 (`MAX_NEST_DEV`,
/// `net/core/dev.h`).
const NESTING: usize = 8;

/// All interfaces of the namespace, with indexes by bridge, master and VNI.
#[derive(Debug, Default)]
pub(crate) struct Links {
    links: EpochMap<u32, Link>,
    /// The vxlan netdevs of each bridge.
    by_bridge: BTreeMap<u32, BTreeSet<u32>>,
    /// The ports of each bridge, vxlan netdevs included, and the slaves of other masters.
    by_master: BTreeMap<u32, BTreeSet<u32>>,
    /// The vxlan netdevs of each VNI.
    by_vni: BTreeMap<u32, BTreeSet<u32>>,
}

/// What a link message changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LinkChange {
    /// Whether anything changed that forwarding depends on.
    pub(crate) relevant: bool,
    /// Whether it was administratively up and is not any more.
    pub(crate) went_down: bool,
    /// Whether the kernel may have changed routes without a notification.
    pub(crate) state: bool,
}

impl Links {
    pub(crate) fn get(&self, ifindex: u32) -> Option<&Link> {
        self.links.get(&ifindex)
    }

    /// The interface's name, or a text with its index.
    pub(crate) fn name(&self, ifindex: u32) -> String {
        self.get(ifindex).map_or_else(|| format!("interface {ifindex}"), |link| link.name.clone())
    }

    pub(crate) fn vxlan(&self, ifindex: u32) -> Option<&Vxlan> {
        match &self.get(ifindex)?.kind {
            LinkKind::Vxlan(vxlan) => Some(vxlan),
            _ => None,
        }
    }

    /// Whether frames to this port of a bridge may leave by a vxlan netdev: it is one, or has a port
    /// for the time without carrier (`backup_port`).
    pub(crate) fn leads_to_netdev(&self, ifindex: u32) -> bool {
        let port = self.get(ifindex).and_then(|link| link.bridge_port);
        self.vxlan(ifindex).is_some() || port.is_some_and(|port| port.backup)
    }

    pub(crate) fn is_bridge(&self, ifindex: u32) -> bool {
        self.get(ifindex).is_some_and(|link| matches!(link.kind, LinkKind::Bridge(_)))
    }

    /// Whether an interface is in a VRF.
    pub(crate) fn is_in_vrf(&self, ifindex: u32) -> bool {
        let master = self.get(ifindex).and_then(|link| self.get(link.master?));
        master.is_some_and(|master| master.kind == LinkKind::Other("vrf".into()))
    }

    /// The vxlan netdevs in a bridge.
    pub(crate) fn vxlans_in(&self, bridge: u32) -> impl Iterator<Item = u32> {
        self.by_bridge.get(&bridge).into_iter().flatten().copied()
    }

    /// The attributes of a bridge; `None` for other interfaces.
    pub(crate) fn bridge(&self, ifindex: u32) -> Option<&Bridge> {
        match &self.get(ifindex)?.kind {
            LinkKind::Bridge(bridge) => Some(bridge),
            _ => None,
        }
    }

    /// The bridges that have vxlan netdevs.
    pub(crate) fn bridges_with_vxlan(&self) -> impl Iterator<Item = u32> {
        self.by_bridge.keys().copied()
    }

    /// The ports of a bridge, vxlan netdevs included.
    pub(crate) fn ports_of(&self, bridge: u32) -> impl Iterator<Item = &Link> {
        self.by_master.get(&bridge).into_iter().flatten().filter_map(|ifindex| self.get(*ifindex))
    }

    /// Sets the options of a bridge port. Returns the bridge if they changed.
    pub(crate) fn set_port(&mut self, ifindex: u32, port: BridgePort, epoch: Epoch) -> Option<u32> {
        let link = self.get(ifindex).filter(|link| link.bridge_port != Some(port))?;
        let (link, master) = (Link { bridge_port: Some(port), ..link.clone() }, link.master);
        self.links.insert(ifindex, link, epoch);
        master
    }

    /// Sets the root queueing discipline of an interface. Returns whether anything changed that
    /// forwarding depends on.
    pub(crate) fn set_qdisc(&mut self, ifindex: u32, kind: String, epoch: Epoch) -> bool {
        let Some(link) = self.get(ifindex).filter(|link| link.qdisc != kind) else { return false };
        let link = Link { qdisc: kind, ..link.clone() };
        self.insert(link, epoch).relevant
    }

    /// The vxlan netdevs with this VNI.
    pub(crate) fn vxlans_of(&self, vni: u32) -> impl Iterator<Item = u32> {
        self.by_vni.get(&vni).into_iter().flatten().copied()
    }

    /// All vxlan netdevs.
    pub(crate) fn vxlans(&self) -> impl Iterator<Item = u32> {
        self.by_vni.values().flatten().copied()
    }

    pub(crate) fn insert(&mut self, link: Link, epoch: Epoch) -> LinkChange {
        let ifindex = link.ifindex;
        let change = self.get(ifindex).map_or(
            LinkChange { relevant: true, went_down: false, state: false },
            |old| LinkChange {
                relevant: forwarding(old) != forwarding(&link),
                went_down: old.flags & IFF_UP != 0 && link.flags & IFF_UP == 0,
                state: old.is_operational() != link.is_operational()
                    || (old.flags ^ link.flags) & IFF_UP != 0
                    || old.master != link.master,
            },
        );
        if change.relevant {
            self.unfile(ifindex);
            if let Some(master) = link.master {
                self.by_master.entry(master).or_default().insert(ifindex);
            }
            if let LinkKind::Vxlan(vxlan) = &link.kind {
                self.by_vni.entry(vxlan.id).or_default().insert(ifindex);
                if let Some(bridge) = link.master {
                    self.by_bridge.entry(bridge).or_default().insert(ifindex);
                }
            }
        }
        self.links.insert(ifindex, link, epoch);
        change
    }

    pub(crate) fn remove(&mut self, ifindex: u32) -> Option<Link> {
        self.unfile(ifindex);
        self.links.remove(&ifindex)
    }

    /// The links that the last dump did not have. They are not removed: the caller removes them one
    /// by one.
    pub(crate) fn unconfirmed(&self, epoch: Epoch) -> Vec<u32> {
        self.links.unconfirmed(epoch)
    }

    fn unfile(&mut self, ifindex: u32) {
        let Some(Link { kind, master, .. }) = self.links.get(&ifindex) else { return };
        let (vni, bridge) = match kind {
            LinkKind::Vxlan(vxlan) => (Some(vxlan.id), *master),
            _ => (None, None),
        };
        let indexes = [
            (&mut self.by_vni, vni),
            (&mut self.by_bridge, bridge),
            (&mut self.by_master, *master),
        ];
        for (index, key) in indexes {
            if let Some(key) = key
                && let Some(vxlans) = index.get_mut(&key)
            {
                vxlans.remove(&ifindex);
                if vxlans.is_empty() {
                    index.remove(&key);
                }
            }
        }
    }

    /// Why vtepd cannot send VXLAN packets through this interface; `None` if it can.
    pub(crate) fn obstacle(&self, link: &Link) -> Option<UnusableRoute> {
        let device = || link.name.clone();
        if let Some(master) = link.master
            && self.is_bridge(master)
        {
            return Some(UnusableRoute::BridgePort { device: device(), bridge: self.name(master) });
        }
        let mut lower = link;
        for _ in 0..NESTING {
            match &lower.kind {
                LinkKind::Bridge(_) => {
                    return Some(UnusableRoute::Bridge {
                        device: device(),
                        bridge: lower.name.clone(),
                    });
                }
                LinkKind::Vxlan(_) => return Some(UnusableRoute::Tunnel { device: device() }),
                // The lower device is in another namespace, so its index means another interface
                // here.
                _ if lower.link_namespace.is_some() => break,
                // Only these kinds are stacked on another device. A veth's lower device is its
                // peer.
                LinkKind::Other(kind) if matches!(kind.as_str(), "vlan" | "macvlan" | "ipvlan") => {
                    match lower.link.and_then(|below| self.get(below)) {
                        Some(below) => lower = below,
                        None => break,
                    }
                }
                _ => break,
            }
        }
        if link.hardware_type != ARPHRD_ETHER || link.mac.is_none() {
            return Some(UnusableRoute::NotEthernet { device: device() });
        }
        let is_dummy = matches!(&link.kind, LinkKind::Other(kind) if kind == "dummy");
        if link.flags & IFF_NOARP != 0 && !is_dummy {
            return Some(UnusableRoute::NoArp { device: device() });
        }
        None
    }
}

/// Whether the interface is administratively up.
pub(crate) const fn is_up(link: &Link) -> bool {
    link.flags & IFF_UP != 0
}

/// Whether the queueing discipline of the interface shapes or impairs packets (netem, tbf, htb and
/// so on). Those that are there by default do not.
pub(crate) fn impairs(link: &Link) -> bool {
    !["", "noqueue", "noop", "mq", "pfifo_fast", "fq_codel", "fq", "cake"]
        .contains(&link.qdisc.as_str())
}

/// The queueing discipline of a vxlan netdev if it may delay, drop or reorder frames. Redirected
/// frames would not pass it. The listed ones forward each frame immediately, because a vxlan netdev
/// always accepts it.
pub(crate) fn holds_back(link: &Link) -> Option<&str> {
    let at_once = ["", "noqueue", "noop", "pfifo_fast", "pfifo", "bfifo", "fq_codel"];
    let vxlan = matches!(link.kind, LinkKind::Vxlan(_));
    Some(link.qdisc.as_str()).filter(|qdisc| vxlan && !at_once.contains(qdisc))
}

/// The properties of a link that forwarding depends on.
fn forwarding(link: &Link) -> impl PartialEq + '_ {
    (
        (link.name.as_str(), link.hardware_type, is_up(link), link.is_operational(), link.mtu),
        (link.mac, link.master, link.link, &link.kind, link.bridge_port, impairs(link)),
        (link.link_namespace, holds_back(link), link.flags & IFF_NOARP),
    )
}
