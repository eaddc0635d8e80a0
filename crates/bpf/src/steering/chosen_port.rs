//! The `kernel` datapath: writes the map by which `choose_port` (`programs/chosen_port.bpf.h`) chooses
//! source ports.

use aya::Ebpf;
use path::{Entropy, Policy};
use tables::PortChoice;
use wire::Vni;

use crate::error::SteeringError;
use crate::maps::{self, insert};

/// The mark of frames for which kernel VXLAN looks up the route each time. A rule of legacy iptables
/// that looks at marks is seen within a second, and connection tracking remembers what NAT did to a
/// flow until then. So the mark has none of the bits that programs with such rules test by default:
/// kube-proxy (0xc000), the portmap plugin of CNI (0x2000), Cilium (0xf00), Calico and Tailscale
/// (the upper half).
pub const ROUTE_PER_FRAME_MARK: u32 = 0x1000;

const CHOICES: &str = "port_choices";

shared! {
    /// `struct port_key` of the programs.
    pub(crate) struct Key {
        pub(crate) ifindex: u32,
        pub(crate) vni: u32,
    }

    /// How the programs choose the source ports of a VNI: `struct port_choice`.
    pub struct PortChoiceEntry {
        pub(crate) state: u64,
        pub(crate) mark: u32,
        pub(crate) kernel_min: u16,
        pub(crate) kernel_width: u16,
        pub(crate) min: u16,
        pub(crate) ports: u16,
        pub(crate) bins: u16,
        pub(crate) external: u16,
        pub(crate) pins: u16,
        pub(crate) zero: [u16; 3],
    }
}

impl PortChoiceEntry {
    /// The ports of a policy. `kernel_ports` is the range to which the kernel scales its hash
    /// ([`PortChoice::kernel_ports`]).
    #[must_use]
    pub fn new(entropy: &Entropy, (kernel_min, kernel_max): (u16, u16)) -> Self {
        let range = entropy.range();
        Self {
            state: path::hash::begin(entropy.seed()),
            mark: 0,
            kernel_min,
            kernel_width: kernel_max.saturating_sub(kernel_min).max(1),
            min: range.min(),
            ports: if entropy.policy() == Policy::FiveTuple { 0 } else { range.ports() },
            bins: entropy.bins().map_or(0, |bins| bins.get()),
            external: 0,
            pins: 0,
            zero: [0; 3],
        }
    }

    /// The same, with ports that `qp-pin` places ([`crate::placed`]).
    #[must_use]
    pub const fn with_placed_ports(self) -> Self {
        Self { pins: 1, ..self }
    }

    fn of(entropy: &Entropy, choice: &PortChoice) -> Self {
        // Of a netdev with many VNIs, the kernel may decide about some.
        let is_marked = choice.route_per_frame && entropy.policy() != Policy::FiveTuple;
        Self {
            mark: if is_marked { ROUTE_PER_FRAME_MARK } else { 0 },
            external: choice.external.into(),
            pins: choice.pins.is_some().into(),
            ..Self::new(entropy, choice.kernel_ports)
        }
    }
}

/// Writes the entries of `choice` and removes those of `before` that it lacks.
pub(super) fn set(
    ebpf: &mut Ebpf,
    before: Option<&PortChoice>,
    choice: &PortChoice,
) -> Result<(), SteeringError> {
    for (vni, entropy) in entries(choice) {
        let key = Key { ifindex: choice.ifindex, vni };
        insert(ebpf, CHOICES, key, PortChoiceEntry::of(entropy, choice))?;
    }
    let gone = before.into_iter().flat_map(|before| before.vnis.keys());
    let mut gone = gone.filter(|vni| !choice.vnis.contains_key(vni));
    gone.try_for_each(|vni| delete(ebpf, choice.ifindex, vni.get()))
}

/// Removes a netdev's entries: the kernel chooses the source ports of its frames.
pub(super) fn remove(ebpf: &mut Ebpf, choice: &PortChoice) -> Result<(), SteeringError> {
    entries(choice).try_for_each(|(vni, _)| delete(ebpf, choice.ifindex, vni))
}

/// The netdev's own entry, under VNI 0, and the entries of single VNIs.
fn entries(choice: &PortChoice) -> impl Iterator<Item = (u32, &Entropy)> {
    let own = choice.vnis.iter().map(|(vni, entropy): (&Vni, _)| (vni.get(), entropy));
    std::iter::once((0, &choice.entropy)).chain(own)
}

fn delete(ebpf: &mut Ebpf, ifindex: u32, vni: u32) -> Result<(), SteeringError> {
    maps::remove::<_, PortChoiceEntry>(ebpf, CHOICES, &Key { ifindex, vni })
}
