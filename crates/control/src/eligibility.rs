//! Which VNIs are taken over, with which configuration, and why the others are not.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use netlink::{Link, LinkKind, Packets, Vxlan};
use path::{Entropy, Policy, SourcePortRange};
use tables::{DontFragment, FlowLabel, Tos, Ttl, Tunnel, VniSource};
use wire::{MacAddr, Vni};

use crate::eligibility::ineligible::{KernelOnlyReason, UnusableRoute};
use crate::settings::{Datapath, FlowLabelSource, Namespace, Settings};
use crate::stores::Stores;
use crate::stores::addresses::{is_group, is_usable};
use crate::stores::links::{Links, holds_back};
use crate::stores::overlay::Overlay;
use crate::stores::vteps::Known;

pub mod ineligible;
mod ipv6_underlay;
pub(crate) mod local_address;
mod port_choice;
pub(crate) mod slug;

/// Bytes that the underlay adds to an inner Ethernet frame: IPv4, UDP and VXLAN headers.
const OVERHEAD: u32 = 20 + 8 + 8;
/// The frame limit of a VNI without a limiting route: the longest frame that a socket sends.
const NO_LIMIT: u32 = 65_535;

/// The configuration with which a VNI is forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VniConfig {
    pub(crate) netdev: String,
    pub(crate) mac: Option<MacAddr>,
    pub(crate) tunnel: Tunnel,
    pub(crate) entropy: Entropy,
    pub(crate) strict_vtep: bool,
    pub(crate) frame_limit: u32,
    /// Whether BPF programs forward the flows whose path is decided.
    pub(crate) offload: bool,
    /// `Some` if the netdev learns, with its ageing time if entries age.
    pub(crate) learning: Option<Option<Duration>>,
}

/// A VNI that is decided about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) source: VniSource,
    /// Its netdev; `None` in standalone mode.
    pub(crate) link: Option<&'a Link>,
    pub(crate) name: &'a str,
    pub(crate) vxlan: &'a Vxlan,
}

impl<'a> Candidate<'a> {
    /// The VNI of this source, if the source is there.
    pub(crate) fn find(stores: &'a Stores, source: VniSource) -> Option<Self> {
        let vxlan = stores.vxlan(source)?;
        let link = source.netdev().and_then(|ifindex| stores.links.get(ifindex));
        let name = match source {
            VniSource::Netdev(_) => &link?.name,
            VniSource::Configured(number) => &stores.configured.get(usize::from(number))?.name,
        };
        Some(Self { source, link, name, vxlan })
    }
}

/// The facts on which the decision about a VNI depends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EligibilityCheck<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) namespace: &'a Namespace,
    pub(crate) stores: &'a Stores,
    /// Whether this host has the netdev's local address.
    pub(crate) local_is_present: bool,
    /// The uplinks to all remote VTEPs; empty without packet filters and routing rules.
    pub(crate) uplinks: &'a BTreeMap<u32, String>,
}

impl EligibilityCheck<'_> {
    /// Decides about a VNI: the configuration with which it is taken over, or why it is not.
    ///
    /// The checks start with the user's settings, followed by the netdev's attributes and then by
    /// the current state. So the first reason is the one to look at first.
    pub(crate) fn decide(
        &self,
        candidate: Candidate<'_>,
        overlay: &Overlay,
    ) -> Result<VniConfig, KernelOnlyReason> {
        let Candidate { link, name, vxlan, .. } = candidate;
        if vxlan.external {
            return Err(KernelOnlyReason::External);
        }
        if vxlan.vni_filter {
            return Err(KernelOnlyReason::VniFilter);
        }
        if link.is_some() && !self.settings.standalone.is_empty() {
            return Err(KernelOnlyReason::Standalone);
        }
        let vni = Vni::try_from(vxlan.id).map_err(|_| KernelOnlyReason::VniZero)?;
        self.wanted(vni)?;
        if link.is_some_and(|link| link.link_namespace.is_some()) {
            return Err(KernelOnlyReason::ForeignNamespace);
        }
        let local = supported(vxlan, &self.stores.links)?;
        if let Some(link) = link {
            self.netdev(link, vni, local)?;
        }
        if let Some(other) = self.twin(candidate) {
            return Err(KernelOnlyReason::Duplicate { other });
        }
        if let Some((mac, oddity)) = overlay.unsupported() {
            return Err(KernelOnlyReason::FdbEntry { mac, oddity });
        }
        let settings = self.settings.of(vni);
        // Without learning of VTEPs, only those in the configuration exist.
        let strict_vtep = settings.strict_vtep || link.is_none();
        self.policies(candidate, local, overlay, strict_vtep)?;
        let (frame_limit, default_ttl) = self.underlay(vxlan, local, settings.ttl, overlay)?;
        let entropy = Entropy::new(path::Settings {
            policy: settings.policy,
            seed: self.settings.seed,
            range: settings.source_ports,
            bins: settings.bins,
            netdev_range: Some(SourcePortRange::of_netdev(
                vxlan.source_ports.0,
                vxlan.source_ports.1,
                self.namespace.defaults.local_ports,
            )),
        })?;
        let tunnel = self.tunnel(vni, vxlan, local, default_ttl)?;
        let ageing =
            Some(Duration::from_secs(vxlan.ageing.into())).filter(|ageing| !ageing.is_zero());
        let learning = vxlan.learning.then_some(ageing);
        let (netdev, mac) = (name.to_owned(), link.and_then(|link| link.mac));
        // Standalone VNIs have no bridge, whose ports the programs could forward for.
        let offload = match settings.datapath {
            // A program can neither choose a path for each packet nor hold one back.
            Datapath::Auto | Datapath::Offload => {
                link.is_some() && settings.policy != Policy::Spray
            }
            Datapath::Userspace | Datapath::Kernel => false,
        };
        Ok(VniConfig { netdev, mac, tunnel, entropy, strict_vtep, frame_limit, offload, learning })
    }

    /// The settings of the outer header.
    fn tunnel(
        &self,
        vni: Vni,
        vxlan: &Vxlan,
        local: IpAddr,
        default_ttl: u8,
    ) -> Result<Tunnel, KernelOnlyReason> {
        let udp_checksum = match local {
            IpAddr::V4(_) => vxlan.udp_checksum,
            IpAddr::V6(_) => !vxlan.udp6_zero_checksum_tx,
        };
        Ok(Tunnel {
            vni,
            local,
            destination_port: vxlan.destination_port,
            ttl: ttl(vxlan, self.settings.of(vni).ttl, default_ttl),
            tos: match vxlan.tos {
                1 => Tos::Inherit,
                tos => Tos::Fixed(tos),
            },
            df: match vxlan.df {
                0 => DontFragment::Unset,
                1 => DontFragment::Set,
                2 => DontFragment::Inherit,
                other => return Err(KernelOnlyReason::UnknownDf(other)),
            },
            udp_checksum,
            flow_label: flow_label(vxlan, self.settings.of(vni).flow_label),
            accepts_no_checksum: vxlan.udp6_zero_checksum_rx,
        })
    }

    /// Whether the user wants a VNI to be taken over.
    fn wanted(&self, vni: Vni) -> Result<(), KernelOnlyReason> {
        if self.settings.detached.contains(&vni) {
            return Err(KernelOnlyReason::Detached);
        }
        if self.settings.exclude.contains(&vni) {
            return Err(KernelOnlyReason::Excluded);
        }
        match &self.settings.include {
            Some(included) if !included.contains(&vni) => Err(KernelOnlyReason::NotIncluded),
            _ => Ok(()),
        }
    }

    /// Whether the state of a netdev permits that its VNI is taken over.
    fn netdev(&self, link: &Link, vni: Vni, local: IpAddr) -> Result<(), KernelOnlyReason> {
        if !link.is_operational() {
            return Err(KernelOnlyReason::Down);
        }
        self.bridged(link)?;
        if !self.local_is_present {
            return Err(KernelOnlyReason::LocalAddressMissing(local));
        }
        if self.settings.of(vni).datapath == Datapath::Kernel {
            return Err(KernelOnlyReason::KernelDatapath);
        }
        if let Some(kind) = holds_back(link) {
            return Err(KernelOnlyReason::NetdevQdisc { kind: kind.to_owned() });
        }
        if self.stores.multicast.contains(&link.ifindex) {
            return Err(KernelOnlyReason::VxlanMdb);
        }
        Ok(())
    }

    fn bridged(&self, link: &Link) -> Result<(), KernelOnlyReason> {
        let bridge = link
            .master
            .and_then(|master| self.stores.links.get(master))
            .ok_or(KernelOnlyReason::NotInBridge)?;
        match bridge.kind {
            LinkKind::Bridge(netlink::Bridge { vlan_filtering: false, .. }) => Ok(()),
            LinkKind::Bridge(_) => {
                Err(KernelOnlyReason::VlanAwareBridge { bridge: bridge.name.clone() })
            }
            _ => Err(KernelOnlyReason::NotInBridge),
        }
    }

    /// The name of another netdev that is up and receives the same packets, or of another
    /// configured VNI.
    fn twin(&self, Candidate { source, vxlan, .. }: Candidate<'_>) -> Option<String> {
        let mut others = self.stores.sources_of(vxlan.id).filter(|other| *other != source);
        others.find_map(|other| {
            let other = Candidate::find(self.stores, other)?;
            let theirs = (other.vxlan.local, other.vxlan.destination_port);
            let same = theirs == (vxlan.local, vxlan.destination_port);
            let works = other.link.is_none_or(Link::is_operational);
            (same && works).then(|| other.name.to_owned())
        })
    }

    /// Whether policy routing, IPsec or packet filters may apply to the VNI's packets. Only IPsec
    /// policies concern standalone VNIs, because the kernel has no tunnel for them.
    fn policies(
        &self,
        Candidate { link, vxlan, .. }: Candidate<'_>,
        local: IpAddr,
        overlay: &Overlay,
        only_remotes: bool,
    ) -> Result<(), KernelOnlyReason> {
        let ipv6_filters = local.is_ipv6() && self.namespace.filters.ipv6;
        if !self.stores.policies.any() && self.stores.packet_filters.is_empty() && !ipv6_filters {
            return Ok(());
        }
        let remotes =
            overlay.remotes().filter_map(|index| Some(self.stores.vteps.get(index)?.address));
        let remotes: Vec<IpAddr> = remotes.collect();
        let vrf = self.uplinks.keys().any(|uplink| self.stores.links.is_in_vrf(*uplink));
        let packets = Packets {
            local,
            port: vxlan.destination_port,
            remotes: &remotes,
            only_remotes,
            uplinks: self.uplinks,
            vrf,
        };
        if let Some(policy) = self.stores.policies.ipsec(&packets) {
            return Err(KernelOnlyReason::IpsecPolicy(policy));
        }
        if link.is_none() {
            return Ok(());
        }
        if ipv6_filters {
            let filter = "there are packet filters for IPv6, whose rules vtepd does not read";
            return Err(KernelOnlyReason::PacketFilter(filter.to_owned()));
        }
        if let Some(rule) = self.stores.policies.routing(&packets) {
            return Err(KernelOnlyReason::PolicyRouting(rule));
        }
        if local.is_ipv6() {
            return Ok(());
        }
        self.stores
            .packet_filters
            .affects(&packets)
            .map_or(Ok(()), |filter| Err(KernelOnlyReason::PacketFilter(filter)))
    }

    /// The longest inner frame that fits the routes to all remote VTEPs, and the TTL of packets for
    /// which the netdev has none; or why a VTEP's route is not supported.
    fn underlay(
        &self,
        vxlan: &Vxlan,
        local: IpAddr,
        ttl: Option<u8>,
        overlay: &Overlay,
    ) -> Result<(u32, u8), KernelOnlyReason> {
        if local.is_ipv6() {
            return self.ipv6_underlay(vxlan, ttl, overlay);
        }
        // The bits that routes match on, without those of ECN; 1 is 'inherit'.
        let by_tos = vxlan.tos == 1 || vxlan.tos & 0xfc != 0;
        // Frames that are not IP have no TTL to inherit.
        let default_ttl = ttl.is_none() && (vxlan.ttl_inherit || vxlan.ttl == 0);
        let mut limit = NO_LIMIT;
        let mut left: Option<KernelOnlyReason> = None;
        for known in overlay.remotes().filter_map(|index| self.stores.vteps.get(index)) {
            same_family(known, local)?;
            let Some(route) = &known.route else { continue };
            let hop_limit = route
                .hop_limit
                .filter(|limit| default_ttl && *limit != u32::from(self.namespace.defaults.ttl));
            let obstacle = route
                .obstacle
                .clone()
                .or_else(|| (by_tos && route.selective).then_some(UnusableRoute::TosRoute))
                .or_else(|| hop_limit.map(UnusableRoute::HopLimit))
                .or_else(|| {
                    (vxlan.df != 0 && route.mtu_locked).then_some(UnusableRoute::LockedMtu)
                });
            if let Some(obstacle) = obstacle {
                let reason = KernelOnlyReason::Underlay { vtep: known.address, obstacle };
                // Of several, always report the same one.
                match &left {
                    Some(KernelOnlyReason::Underlay { vtep, .. }) if *vtep < known.address => {}
                    _ => left = Some(reason),
                }
            }
            for mtu in [route.mtu(), known.path_mtu].into_iter().flatten() {
                limit = limit.min(mtu.saturating_sub(OVERHEAD));
            }
        }
        left.map_or(Ok((limit, self.namespace.defaults.ttl)), Err)
    }
}

/// The outer TTL. `set`: by vtepd's configuration. `default`: of packets for which the netdev has
/// none.
const fn ttl(vxlan: &Vxlan, set: Option<u8>, default: u8) -> Ttl {
    match (set, vxlan.ttl_inherit, vxlan.ttl) {
        (Some(ttl), _, _) => Ttl::Fixed(ttl),
        (None, true, _) => Ttl::Inherit { default },
        (None, false, 0) => Ttl::Fixed(default),
        (None, false, ttl) => Ttl::Fixed(ttl),
    }
}

/// The outer flow label. A label of the netdev is one that the user wants, so it stays in any case.
const fn flow_label(vxlan: &Vxlan, source: FlowLabelSource) -> FlowLabel {
    match (source, vxlan.label) {
        (FlowLabelSource::SourcePort, 0) => FlowLabel::SourcePort,
        (_, label) => FlowLabel::Fixed(label),
    }
}

/// Refuses a VTEP whose address is of another family than the local one.
fn same_family(known: &Known, local: IpAddr) -> Result<(), KernelOnlyReason> {
    if known.address.is_ipv4() == local.is_ipv4() {
        return Ok(());
    }
    Err(KernelOnlyReason::Ipv6Underlay { address: known.address })
}

/// The local address of a netdev, if all its attributes are supported.
fn supported(vxlan: &Vxlan, links: &Links) -> Result<IpAddr, KernelOnlyReason> {
    match vxlan.remote {
        Some(group) if is_group(group) => {
            return Err(KernelOnlyReason::MulticastGroup { group });
        }
        Some(address) if !is_usable(address) => {
            return Err(KernelOnlyReason::Ipv6Underlay { address });
        }
        _ => {}
    }
    let local = match vxlan.local {
        None => return Err(KernelOnlyReason::NoLocalAddress),
        Some(local) if local.is_unspecified() || local.is_loopback() => {
            return Err(KernelOnlyReason::NoLocalAddress);
        }
        Some(address) if !is_usable(address) => {
            return Err(KernelOnlyReason::Ipv6Underlay { address });
        }
        Some(local) => local,
    };
    if let Some(lower) = vxlan.link.filter(|lower| *lower != 0) {
        return Err(KernelOnlyReason::LowerDevice { device: links.name(lower) });
    }
    if let Some(unknown) = vxlan.unknown.first() {
        return Err(KernelOnlyReason::UnknownOption(*unknown));
    }
    if !vxlan.options.is_empty() {
        return Err(KernelOnlyReason::Options(vxlan.options.clone()));
    }
    Ok(local)
}
