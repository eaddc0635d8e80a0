//! One remote VTEP that is probed, and which ones are.

use std::collections::{BTreeMap, BTreeSet};

use bpf::ROUTE_PER_FRAME_MARK;
use path::{NextHop, PathId, SourcePortRange, Version};
use pathmap::load::Link;
use pathmap::placer::{Found, Target};
use pathmap::prober::{Ids, Known};
use pathmap::{Prober, Tracer, Way};
use tables::{FlowLabel, PinnedTunnel, Snapshot, Tunnel, Vtep};

use super::choices::{Choices, Gateways, Sender};
use super::traced::Traced;
use crate::pinning::Shared;

/// A remote VTEP that is probed.
pub(super) struct Entry {
    pub(super) prober: Prober,
    pub(super) ids: Ids,
    pub(super) traced: Traced,
    /// The flow label of data over IPv6.
    pub(super) label: FlowLabel,
    pub(super) weights: BTreeMap<u64, u16>,
    /// The interfaces of the next hops.
    pub(super) uplinks: BTreeMap<u64, u32>,
    /// The next hops by which kernel VXLAN sends, if it does.
    pub(super) choices: Option<Choices>,
    /// The versions of what is known that the placement has.
    pub(super) applied: Versions,
}

/// The versions of what is known of the paths to a VTEP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Versions {
    pub(super) probed: Version<Prober>,
    traced: (Version<Traced>, Version<Tracer>),
    choices: Version<Choices>,
}

impl Entry {
    /// The paths of which the routers are known: by probes or, without any answer to these, by traces.
    pub(super) fn known(&self) -> impl Iterator<Item = (PathId, &Known)> {
        self.prober.known().chain(self.traced.known())
    }

    /// The paths that probes have found.
    pub(super) fn probed(&self) -> impl Iterator<Item = (PathId, &Known)> {
        self.prober.known()
    }

    /// Whether the paths were probed at the start.
    pub(super) const fn is_ready(&self) -> bool {
        self.prober.is_ready()
    }

    /// Sets by which next hops kernel VXLAN may send, if it does.
    pub(super) fn set_sender(&mut self, sender: Option<Sender>, gateways: Gateways) {
        match (&mut self.choices, sender) {
            (choices, None) => *choices = None,
            (Some(choices), Some(sender)) if choices.are_for(sender, &gateways) => {}
            (Some(choices), Some(sender)) if choices.is_of(sender) => {
                choices.set_gateways(gateways)
            }
            (choices, Some(sender)) => {
                *choices = Some(Choices::new(sender, gateways));
                self.applied.probed = Version::NEVER;
            }
        }
    }

    /// The versions of what is known.
    pub(super) fn versions(&self) -> Versions {
        Versions {
            probed: self.prober.version(),
            traced: self.traced.version(),
            choices: self.choices.as_ref().map_or(Version::NONE, Choices::version),
        }
    }

    pub(super) fn has_changed(&self) -> bool {
        self.prober.is_ready() && self.applied != self.versions()
    }

    /// Tells the placement the delays of the paths, if queue pairs use any.
    pub(super) fn tell_delays(&self, target: Target, shared: &Shared) {
        if self.prober.used().is_empty() {
            return;
        }
        let delays = || self.known().map(|(path, known)| (path, known.delay));
        for by_kernel in [false, true] {
            shared.change(|placer| placer.set_delays(Target { by_kernel, ..target }, delays()));
        }
    }

    /// Tells the placement what is known: all paths and, for kernel VXLAN, those with the next hops
    /// that the kernel chooses.
    pub(super) fn update(&mut self, target: Target, shared: &Shared) {
        let found = |(path, known): (PathId, &Known)| Found {
            path,
            links: links(target, path, known),
            way: Way {
                uplink: self.uplinks.get(&path.hop).copied().unwrap_or(0),
                arrival: known.arrival,
                routers: known.routers,
                recorded: known.recorded.clone(),
            },
            delay: known.delay,
        };
        let known = self.prober.placeable().chain(self.traced.known());
        let mut found: Vec<Found> = known.map(found).collect();
        let mut lost: BTreeSet<PathId> = self.prober.lost().collect();
        shared.update(target, &self.weights, &found, &lost);
        let Some(choices) = &self.choices else { return };
        found.retain(|path| choices.has(path.path));
        // The kernel sends by another next hop now.
        lost.extend(self.prober.used().iter().filter(|path| choices.has_left(**path)));
        let target = Target { by_kernel: true, ..target };
        shared.update(target, &self.weights, &found, &lost);
    }
}

/// The VTEPs to probe: those of the VNIs with `qp-pin` or `spray`.
pub(super) fn wanted(snapshot: &Snapshot) -> BTreeMap<Target, Wanted> {
    let tunnel = |tunnel: &Tunnel| (tunnel.local, tunnel.destination_port, tunnel.flow_label);
    let own = snapshot.vnis().filter(|table| table.entropy.policy().places_queue_pairs());
    let own = own.map(|table| (tunnel(&table.tunnel), table.entropy.range(), None));
    let kernel = snapshot.kernel_vnis().values().map(|vni| {
        let PinnedTunnel { local, destination_port, flow_label, .. } = vni.tunnel;
        let mark = if vni.route_per_frame { ROUTE_PER_FRAME_MARK } else { 0 };
        let range = vni.entropy.range();
        (
            (local, destination_port, FlowLabel::Fixed(flow_label)),
            range,
            Some(Sender { range, mark }),
        )
    });
    let mut wanted = BTreeMap::<Target, Wanted>::new();
    for ((local, port, label), range, sender) in own.chain(kernel) {
        let of_family = |vtep: &&Vtep| vtep.address.is_ipv4() == local.is_ipv4();
        for vtep in snapshot.vteps().filter(of_family) {
            let target = Target { local, address: vtep.address, port, by_kernel: false };
            let hops = vtep.paths.next_hops();
            let wanted = wanted.entry(target).or_insert_with(|| Wanted {
                weights: usable(hops),
                uplinks: uplinks(hops),
                range,
                label,
                gateways: hops.iter().map(|h| ((h.ifindex, h.gateway), h.identity)).collect(),
                kernel: None,
            });
            wanted.kernel = wanted.kernel.or(sender);
        }
    }
    wanted
}

/// A VTEP that is to be probed.
pub(super) struct Wanted {
    pub(super) weights: BTreeMap<u64, u16>,
    pub(super) uplinks: BTreeMap<u64, u32>,
    pub(super) range: SourcePortRange,
    pub(super) label: FlowLabel,
    pub(super) gateways: Gateways,
    /// Set if kernel VXLAN sends to the VTEP.
    pub(super) kernel: Option<Sender>,
}

/// The next hops by which probes can be sent, with their weights.
fn usable(hops: &[NextHop]) -> BTreeMap<u64, u16> {
    let resolved = hops.iter().filter(|hop| hop.destination_mac.is_some());
    resolved.map(|hop| (hop.identity, hop.weight.max(1))).collect()
}

/// The interface of each next hop.
fn uplinks(hops: &[NextHop]) -> BTreeMap<u64, u32> {
    hops.iter().map(|hop| (hop.identity, hop.ifindex)).collect()
}

/// The links of a path, as far as they are known. Traces name routers, and not their interfaces.
fn links(target: Target, path: PathId, known: &Known) -> Vec<Link> {
    let uplink = std::iter::once(Link::Uplink(path.hop));
    match (&known.traced, &known.recorded) {
        (Some(routers), _) => {
            let next = routers.iter().skip(1).chain([&target.address]);
            let between = routers.iter().zip(next).map(|(from, to)| Link::Between(*from, *to));
            uplink.chain(between).collect()
        }
        (None, Some(routers)) if !routers.is_empty() => {
            uplink.chain(routers.iter().map(|router| Link::Router(*router))).collect()
        }
        _ => uplink.chain([Link::Arrival(target.address, known.arrival)]).collect(),
    }
}
