//! Source ports of frames that the kernel encapsulates: those of VNIs in the `kernel` datapath, and
//! single frames that a worker does not take over.

use std::collections::BTreeMap;

use netlink::Vxlan;
use path::{Entropy, Policy, SourcePortRange};
use tables::{PinnedTunnel, PortChoice};
use wire::Vni;

use crate::eligibility::ineligible::KernelOnlyReason;
use crate::eligibility::{Candidate, EligibilityCheck, supported};
use crate::settings::{RoutePerFrame, Settings, VniSettings};
use crate::stores::overlay::Overlay;

/// `ARPHRD_ETHER` (`include/uapi/linux/if_arp.h`).
const ARPHRD_ETHER: u16 = 1;

/// The same, but the kernel chooses the source ports.
fn by_kernel(settings: VniSettings) -> VniSettings {
    VniSettings { policy: Policy::FiveTuple, ..settings }
}

impl EligibilityCheck<'_> {
    /// The source port policy for frames of a netdev that the kernel encapsulates; `None` if the
    /// kernel chooses the port. `left` is why the netdev stays with the kernel, if it does.
    pub(crate) fn port_choice(
        &self,
        Candidate { link, vxlan, .. }: Candidate<'_>,
        overlay: &Overlay,
        left: Option<&KernelOnlyReason>,
    ) -> Option<PortChoice> {
        // The BPF program cannot parse frames of a netdev without Ethernet headers (GPE).
        let link = link.filter(|link| link.hardware_type == ARPHRD_ETHER)?;
        // The reason for a netdev with many VNIs is always that.
        let is_standalone = !self.settings.standalone.is_empty();
        if is_standalone || left.is_some_and(|reason| !reason.chooses_ports()) {
            return None;
        }
        let external = vxlan.external || vxlan.vni_filter;
        let kernel_ports = match vxlan.source_ports {
            (low, high) if low < high => (low, high),
            _ => {
                let ports = self.namespace.defaults.local_ports;
                (ports.min(), ports.max())
            }
        };
        let of = |settings: &VniSettings| self.entropy_of_kernel(settings, kernel_ports);
        let vni = Vni::try_from(vxlan.id).ok().filter(|_| !external);
        let (entropy, vnis) = match external {
            true => (of(&self.default_of_many())?, self.of_many(of)),
            false => {
                let settings = vni.map_or(&self.settings.default, |vni| self.settings.of(vni));
                (of(settings)?, BTreeMap::new())
            }
        };
        // On netdevs with 'gbp', the mark that disables the route cache would be sent as the group
        // policy (vxlan_build_gbp_hdr(), drivers/net/vxlan/vxlan_core.c).
        let may_mark = !vxlan.options.contains(&"gbp");
        let route_per_frame = may_mark
            && match self.settings.route_per_frame {
                RoutePerFrame::On => true,
                RoutePerFrame::Off => false,
                RoutePerFrame::Auto => {
                    left.is_some()
                        && !self.may_read_marks(vxlan, external)
                        && self.is_multipath(vxlan, overlay)
                }
            };
        let kernel_decides = |entropy: &Entropy| entropy.policy() == Policy::FiveTuple;
        if kernel_decides(&entropy) && vnis.values().all(kernel_decides) {
            return None;
        }
        let (ifindex, name) = (link.ifindex, link.name.clone());
        // Otherwise all frames of a CPU leave by one next hop, whichever port they have.
        let by_port = route_per_frame || !self.is_multipath(vxlan, overlay);
        let is_pinned = left.is_some() && by_port && entropy.policy().places_queue_pairs();
        let pins = vni.filter(|_| is_pinned).and_then(|vni| self.pinned_tunnel(vni, vxlan));
        Some(PortChoice {
            ifindex,
            name,
            entropy,
            vnis,
            external,
            kernel_ports,
            route_per_frame,
            pins,
        })
    }

    /// The settings of VNIs of one netdev that are not in [`Self::of_many`].
    fn default_of_many(&self) -> VniSettings {
        let default = self.settings.default.clone();
        if self.settings.include.is_some() { by_kernel(default) } else { default }
    }

    /// The policies of single VNIs of a netdev that has many. The kernel decides about those that the
    /// user left to it.
    fn of_many(&self, of: impl Fn(&VniSettings) -> Option<Entropy>) -> BTreeMap<Vni, Entropy> {
        let Settings { vnis, exclude, detached, include, .. } = self.settings;
        let named = vnis.keys().chain(exclude).chain(detached).chain(include.iter().flatten());
        let settings = |vni: &Vni| {
            let own = self.settings.of(*vni).clone();
            if self.wanted(*vni).is_ok() { own } else { by_kernel(own) }
        };
        named.filter_map(|vni| Some((*vni, of(&settings(vni))?))).collect()
    }

    /// Whether a routing rule, an IPsec policy or a packet filter may look at the mark of frames that
    /// the kernel encapsulates, whatever else is the reason why it does.
    fn may_read_marks(&self, vxlan: &Vxlan, external: bool) -> bool {
        let is_ipv4 = !external && vxlan.local.is_some_and(|local| local.is_ipv4());
        self.stores.policies.any()
            || self.stores.packet_filters.may_read_marks()
            || (!is_ipv4 && self.namespace.filters.ipv6)
    }

    /// The tunnel of a VNI whose queue pairs can be placed: one whose packets differ from probes in
    /// nothing that decides their path.
    fn pinned_tunnel(&self, vni: Vni, vxlan: &Vxlan) -> Option<PinnedTunnel> {
        let local = supported(vxlan, &self.stores.links).ok()?;
        let (destination_port, flow_label) = (vxlan.destination_port, vxlan.label);
        Some(PinnedTunnel { vni, local, destination_port, flow_label })
    }

    /// The policy, with ports that the kernel can reach: the netdev's range without its last port.
    /// The configured range is used if it lies within.
    fn entropy_of_kernel(
        &self,
        settings: &VniSettings,
        (low, high): (u16, u16),
    ) -> Option<Entropy> {
        let reached = SourcePortRange::try_from((low.max(1), high.saturating_sub(1)));
        let reached = reached.unwrap_or(SourcePortRange::KERNEL_DEFAULT);
        let wanted = settings.source_ports;
        let within = reached.contains(wanted.min()) && reached.contains(wanted.max());
        let chosen = |policy| {
            Entropy::new(path::Settings {
                policy,
                seed: self.settings.seed,
                range: if within { wanted } else { reached },
                bins: settings.bins,
                netdev_range: SourcePortRange::try_from((low.max(1), high)).ok(),
            })
        };
        // If there are more bins than ports, bins are not used.
        chosen(settings.policy).or_else(|_| chosen(Policy::QpHash)).ok()
    }

    /// Whether a remote VTEP has several next hops, or may have.
    fn is_multipath(&self, vxlan: &Vxlan, overlay: &Overlay) -> bool {
        let is_ipv4 =
            |address: Option<std::net::IpAddr>| address.is_none_or(|address| address.is_ipv4());
        let is_multicast = vxlan.remote.is_some_and(|remote| remote.is_multicast());
        if vxlan.external
            || vxlan.vni_filter
            || is_multicast
            || !is_ipv4(vxlan.local)
            || !is_ipv4(vxlan.remote)
        {
            return true;
        }
        let reach = |index| self.stores.vteps.get(index).and_then(|known| known.route.as_ref());
        overlay.unsupported().is_some()
            || overlay.remotes().any(|index| reach(index).is_none_or(|reach| reach.is_multipath()))
    }
}
