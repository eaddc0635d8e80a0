//! What is shown beside the worker's counters: who the slots and path indexes are, and how the
//! daemon is.

use std::net::{IpAddr, Ipv4Addr};

use wire::Vni;

/// One moment's view.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Whether the kill switch is filled: frames are redirected.
    pub ready: bool,
    /// Counts publications of the snapshot.
    pub generation: u64,
    /// Counts configurations that were taken over, the first included.
    pub configuration: u64,
    /// Frames that each worker received, from the underlay and from bridges.
    pub workers: Vec<[u64; 2]>,
    /// VNIs taken over.
    pub vnis: Vec<VniView>,
    /// Adjacencies that have counters.
    pub paths: Vec<PathView>,
    /// Remote VTEPs, by the index of their counters.
    pub peers: Vec<(u32, Ipv4Addr)>,
    /// Remote VTEPs that nothing better than a default route leads to.
    pub by_default: usize,
    /// vxlan netdevs left to the kernel.
    pub left: Vec<LeftView>,
    /// The ports of bridges, and whether they have the bypass.
    pub ports: Vec<PortView>,
    /// Addresses that the bypass goes by, and those for which its map has no room.
    pub bypass_addresses: [usize; 2],
    /// How many addresses have found no room so far.
    pub bypass_no_room: u64,
    /// Where facts come from.
    pub sources: Vec<SourceView>,
    /// How often events of the kernel's were lost.
    pub overruns: u64,
    /// How often the control task hung, so that the kernel forwarded.
    pub control_stalls: u64,
    /// FPM connections of users who may not connect.
    pub fpm_refused: u64,
    /// Lines of the log that were not read in time.
    pub log_lines_lost: u64,
    /// What the steering programs decided, in frames (a super-frame is one), by decision.
    pub steering: Vec<(&'static str, u64)>,
    /// Addresses written into the kernel's FDB, by what changed.
    pub learned: Vec<(&'static str, u64)>,
    /// Moves of MAC addresses from VTEP to VTEP, by what became of them.
    pub moves: Vec<(&'static str, u64)>,
    /// How often an address began to move too often.
    pub flapping: u64,
    /// Reports of addresses that were not written, by the reason.
    pub not_learned: Vec<(&'static str, u64)>,
}

/// A VNI taken over.
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
    /// Remote MAC addresses known.
    pub remote_macs: usize,
    /// VTEPs in its flood list.
    pub flood_vteps: usize,
}

/// An adjacency on an uplink.
#[derive(Debug, Clone)]
pub struct PathView {
    /// Index of its counters.
    pub path: u16,
    /// Name of the uplink.
    pub uplink: String,
    /// The gateway.
    pub gateway: IpAddr,
}

/// A vxlan netdev left to the kernel.
#[derive(Debug, Clone)]
pub struct LeftView {
    /// Its name.
    pub netdev: String,
    /// Its VNI, or `external` where packets bring theirs.
    pub vni: String,
    /// Why, as a short name without names or addresses.
    pub reason: &'static str,
    /// The policy of the source port: `five-tuple` where it is the kernel's own hash.
    pub policy: String,
}

/// A port of the bridge of a VNI taken over.
#[derive(Debug, Clone)]
pub struct PortView {
    /// Its name.
    pub port: String,
    /// The name of its bridge.
    pub bridge: String,
    /// The VNI.
    pub vni: Vni,
    /// Why all of its frames go by the bridge; absent where known unicast takes the bypass.
    pub reason: Option<String>,
    /// What became of its frames since it has the bypass.
    pub frames: Option<PortFrames>,
}

/// What became of a port's frames; a super-frame is one.
#[derive(Debug, Clone, Copy, Default)]
pub struct PortFrames {
    /// Took the bypass.
    pub bypass: u64,
    /// Could have, and went by the bridge so that it sees who is talking.
    pub refreshed: u64,
    /// Others, which went by the bridge.
    pub passed: u64,
    /// Went by the bridge because the worker hung.
    pub stalled: u64,
}

/// A source of facts.
#[derive(Debug, Clone)]
pub struct SourceView {
    /// Its name, `kernel` or `fpm`.
    pub name: &'static str,
    /// Its state's name.
    pub state: String,
    /// Entries that it had told and did not confirm, since the start.
    pub swept: u64,
}
