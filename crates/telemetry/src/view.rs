//! What the metrics show in addition to the workers' counters: the names behind slots and path
//! indexes, and the state of the daemon.

use std::net::IpAddr;
use std::sync::Arc;

use pipeline::{Counters, VtepId};
use wire::Vni;

/// The state of the daemon at one moment.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Whether the kill switch is filled, so that frames are redirected.
    pub ready: bool,
    /// How often a snapshot was published.
    pub generation: u64,
    /// How many configurations were accepted, including the first.
    pub configuration: u64,
    /// The counters of each worker.
    pub workers: Vec<Arc<Counters>>,
    /// VNIs that are taken over.
    pub vnis: Vec<VniView>,
    /// Next hops that have counters.
    pub paths: Vec<PathView>,
    /// Remote VTEPs, with what identifies their counters.
    pub peers: Vec<(VtepId, IpAddr)>,
    /// Number of remote VTEPs that only a default route leads to.
    pub by_default: usize,
    /// vxlan netdevs that stay with the kernel.
    pub left: Vec<LeftView>,
    /// Bridge ports, and whether they use the bypass.
    pub ports: Vec<PortView>,
    /// Number of addresses in the map of the bypass, and of those that do not fit.
    pub bypass_addresses: [usize; 2],
    /// How many addresses have not fitted so far.
    pub bypass_no_room: u64,
    /// The sources of routes and addresses.
    pub sources: Vec<SourceView>,
    /// How often netlink messages were lost.
    pub overruns: u64,
    /// How often the control task hung, so that the kernel forwarded.
    pub control_stalls: u64,
    /// FPM connections that were refused because of their user.
    pub fpm_refused: u64,
    /// Log lines that were lost because they were not read in time.
    pub log_lines_lost: u64,
    /// Frames by decision of the steering programs. A super-frame counts as one.
    pub steering: Vec<(&'static str, u64)>,
    /// Addresses written into the kernel's FDB, by kind of change.
    pub learned: Vec<(&'static str, u64)>,
    /// Moves of MAC addresses between VTEPs, by what was done about them.
    pub moves: Vec<(&'static str, u64)>,
    /// How often an address started to move too often.
    pub flapping: u64,
    /// Known paths and placed queue pairs; `None` if paths are not probed.
    pub probing: Option<ProbingView>,
    /// Reported addresses that were not written into the FDB, by reason.
    pub not_learned: Vec<(&'static str, u64)>,
}

/// Known paths and placed queue pairs.
#[derive(Debug, Clone, Default)]
pub struct ProbingView {
    /// The VTEPs that are probed.
    pub vteps: Vec<ProbedView>,
    /// Queue pairs that are remembered.
    pub queue_pairs: u64,
    /// Queue pairs by whether both directions of their connection use the same links.
    pub same_links: [(&'static str, u64); 3],
    /// Moves of queue pairs, by reason.
    pub moves: Vec<(&'static str, u64)>,
    /// Queue pairs that were forgotten.
    pub forgotten: u64,
    /// Decisions by `qp-hash` that limits are the reason for, and messages beyond limits, by reason.
    pub beyond: Vec<(&'static str, u64)>,
    /// Messages, by what became of them.
    pub messages: Vec<(&'static str, u64)>,
}

/// A VTEP that is probed.
#[derive(Debug, Clone, PartialEq)]
pub struct ProbedView {
    /// Its address.
    pub address: IpAddr,
    /// Whether its paths were probed, or traced if it answers no probes.
    pub ready: bool,
    /// Whether its paths are traced by expired TTLs.
    pub traced: bool,
    /// Pairs with a known path.
    pub known: u64,
    /// Pairs that are dead.
    pub dead: u64,
    /// Pairs without an answer so far.
    pub unknown: u64,
    /// The balance of each tier, from the sending leaf on.
    pub tiers: Vec<TierView>,
    /// The paths over which packets to it are sprayed.
    pub spray_paths: u64,
    /// Packets that were sprayed to it, by what became of them.
    pub sprayed: [(&'static str, u64); 4],
}

impl ProbedView {
    /// Adds what is known of other paths to the same VTEP: those of a tunnel with another local address
    /// or UDP port. Of two tiers, the one with the higher MMR is shown.
    pub fn join(&mut self, other: Self) {
        self.ready &= other.ready;
        self.traced |= other.traced;
        self.known += other.known;
        self.dead += other.dead;
        self.unknown += other.unknown;
        self.spray_paths += other.spray_paths;
        for ((_, own), (_, other)) in self.sprayed.iter_mut().zip(other.sprayed) {
            *own += other;
        }
        for (number, other) in other.tiers.into_iter().enumerate() {
            match self.tiers.get_mut(number) {
                Some(own) if own.mmr < other.mmr => *own = other,
                Some(_) => {}
                None => self.tiers.push(other),
            }
        }
    }
}

/// How evenly queue pairs use the links of a tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierView {
    /// Maximum over mean.
    pub mmr: f64,
    /// The lowest that whole queue pairs allow.
    pub floor: f64,
    /// Jain's index.
    pub jain: f64,
}

/// A VNI that is taken over.
#[derive(Debug, Clone)]
pub struct VniView {
    /// Its slot, which is the index of its counters.
    pub slot: u16,
    /// The VNI.
    pub vni: Vni,
    /// Name of its vxlan netdev.
    pub netdev: String,
    /// Its entropy policy.
    pub policy: String,
    /// Who forwards it: `userspace` or `offload`.
    pub datapath: &'static str,
    /// Number of known remote MAC addresses.
    pub remote_macs: usize,
    /// Number of VTEPs in its flood list.
    pub flood_vteps: usize,
}

/// A next hop on an uplink.
#[derive(Debug, Clone)]
pub struct PathView {
    /// Index of its counters.
    pub path: u16,
    /// Name of the uplink.
    pub uplink: String,
    /// The gateway.
    pub gateway: IpAddr,
}

/// A vxlan netdev that stays with the kernel.
#[derive(Debug, Clone)]
pub struct LeftView {
    /// Its name.
    pub netdev: String,
    /// Its VNI, or `external` if each packet carries its own.
    pub vni: String,
    /// The reason, as a short name without interface names or addresses.
    pub reason: &'static str,
    /// The policy for source ports; `five-tuple` if the kernel's own hash chooses them.
    pub policy: String,
}

/// A bridge port of a VNI that is taken over.
#[derive(Debug, Clone)]
pub struct PortView {
    /// Its name.
    pub port: String,
    /// The name of its bridge.
    pub bridge: String,
    /// The VNI.
    pub vni: Vni,
    /// Why all of its frames pass the bridge; `None` if known unicast uses the bypass.
    pub reason: Option<String>,
    /// Its frames since it has used the bypass, by their path.
    pub frames: Option<PortFrames>,
}

/// Frames of a port, by their path. A super-frame counts as one.
#[derive(Debug, Clone, Copy, Default)]
pub struct PortFrames {
    /// Used the bypass.
    pub bypass: u64,
    /// Could have used the bypass, but passed the bridge to refresh the host's entry there.
    pub refreshed: u64,
    /// Passed the bridge because they could not use the bypass.
    pub passed: u64,
    /// Passed the bridge because the worker hung.
    pub stalled: u64,
}

/// A source of routes and addresses.
#[derive(Debug, Clone)]
pub struct SourceView {
    /// Its name, `kernel` or `fpm`.
    pub name: &'static str,
    /// The name of its state.
    pub state: String,
    /// Entries removed since the start because a dump or replay did not confirm them.
    pub swept: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tunnels_to_one_vtep_are_one_row() {
        let of = |numbers: [u64; 3], mmr| ProbedView {
            address: IpAddr::from([10, 0, 0, 2]),
            ready: true,
            traced: false,
            known: numbers[0],
            dead: numbers[1],
            unknown: numbers[2],
            tiers: vec![TierView { mmr, floor: 1.0, jain: 1.0 }],
            spray_paths: 4,
            sprayed: [("sent", 10), ("unmarked", 7), ("marked", 2), ("lost", 1)],
        };
        let mut joined = of([1, 2, 3], 1.5);
        let other = of([10, 20, 30], 1.2);
        joined.join(ProbedView { ready: false, tiers: [&other.tiers[..]; 2].concat(), ..other });
        let mut expected = of([11, 22, 33], 1.5);
        expected.tiers.push(TierView { mmr: 1.2, floor: 1.0, jain: 1.0 });
        (expected.ready, expected.spray_paths) = (false, 8);
        expected.sprayed = [("sent", 20), ("unmarked", 14), ("marked", 4), ("lost", 2)];
        assert_eq!(joined, expected);
    }
}
