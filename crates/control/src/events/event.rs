//! What can happen.

use std::net::IpAddr;
use std::time::Duration;

use path::Entropy;
use wire::{MacAddr, Vni};

use crate::eligibility::ineligible::LeftToKernel;
use crate::eligibility::slug::slugs;
use crate::sources::SourceState;
use crate::sources::fpm_session::FpmSweep;
use crate::sources::resync::Resync;
use crate::stores::overlay::MacChange;

/// Something that happened. Its text is a sentence without a full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A VNI is taken over: its frames are redirected.
    Attached {
        /// The VNI.
        vni: Vni,
        /// Its vxlan netdev.
        netdev: String,
    },
    /// A VNI is given back to the kernel, or is gone.
    Detached {
        /// The VNI.
        vni: Vni,
        /// Its vxlan netdev.
        netdev: String,
    },
    /// A vxlan netdev stays with the kernel, for this reason.
    Left(LeftToKernel),
    /// The state of a source has changed.
    Source {
        /// `kernel` or `fpm`.
        name: &'static str,
        /// Its new state.
        state: SourceState,
    },
    /// The kernel's tables of these kinds were dumped.
    Resynced(Vec<(&'static str, Resync)>),
    /// Entries that zebra reported over an earlier FPM connection were removed.
    FpmSwept(FpmSweep),
    /// A MAC address of a VNI that is taken over is behind another VTEP, or behind none.
    Mac {
        /// The VNI.
        vni: Vni,
        /// Its vxlan netdev.
        netdev: String,
        /// What changed.
        change: MacChange,
    },
    /// A MAC address moves too often, or has stopped doing so.
    Flapping {
        /// The VNI.
        vni: Vni,
        /// Its vxlan netdev.
        netdev: String,
        /// The address.
        mac: MacAddr,
        /// The VTEP that it is behind.
        vtep: Option<IpAddr>,
        /// Number of moves while it flapped, if it has stopped.
        over: Option<u64>,
    },
    /// A VTEP was added to a flood list or removed from it.
    Flood {
        /// The VNI.
        vni: Vni,
        /// Its vxlan netdev.
        netdev: String,
        /// The VTEP.
        vtep: IpAddr,
        /// Whether it was added.
        added: bool,
    },
    /// The source port policy of a VNI, or its settings, changed.
    Policy {
        /// The VNI.
        vni: Vni,
        /// Its vxlan netdev.
        netdev: String,
        /// The new policy.
        entropy: Entropy,
    },
    /// A next hop is used, or is not used any more.
    NextHop {
        /// The uplink's name.
        uplink: String,
        /// The gateway.
        gateway: IpAddr,
        /// Whether it is used now.
        up: bool,
    },
    /// Buckets of VTEPs have another next hop, so flows moved.
    Placement {
        /// How many of the [`tables::BUCKETS`] buckets of these VTEPs have another next hop.
        buckets: usize,
        /// One of the VTEPs.
        vtep: IpAddr,
        /// Number of such VTEPs.
        vteps: usize,
        /// Whether next hops are missing, so that others have their buckets.
        reduced: bool,
    },
    /// Only the default route leads to a VTEP, or the VTEP has a route of its own again.
    ByDefault {
        /// The VTEP.
        vtep: IpAddr,
        /// Whether only the default route leads to it now.
        begins: bool,
    },
    /// A queueing discipline of an uplink shapes or impairs packets, so frames leave one by one; or
    /// it is gone.
    Impaired {
        /// The uplink's name.
        uplink: String,
        /// Whether the uplink is impaired now.
        begins: bool,
    },
    /// A worker hung for so long that the kernel took over.
    Stalled {
        /// How long the frames had waited.
        waited: Duration,
        /// How many of them were dropped.
        dropped: u64,
    },
    /// The configuration was read again.
    Reloaded,
    /// A warning for the user.
    Warning(String),
}

slugs! {
    Event:
    /// Every kind of event, and when it happens.
    KINDS,
    /// The kind of event, as one word.
    kind;
    Event::Attached { .. } => "attached",
        "A VNI is taken over: BPF programs or a worker forward its frames";
    Event::Detached { .. } => "detached", "A VNI is the kernel's again, or is gone";
    Event::Left(_) => "left", "A vxlan netdev stays with the kernel, for the reason given";
    Event::Source { .. } => "source", "A source (`kernel`, `fpm`) has another state";
    Event::Resynced(_) => "resync", "The kernel's tables were read again";
    Event::FpmSwept(_) => "swept", "What zebra had said over an earlier FPM connection was removed";
    Event::Mac { change: MacChange { from: None, .. }, .. } => "mac-added",
        "A MAC address is behind a remote VTEP";
    Event::Mac { change: MacChange { to: None, .. }, .. } => "mac-removed",
        "A MAC address is behind no remote VTEP any more";
    Event::Mac { .. } => "mac-moved", "A MAC address is behind another remote VTEP";
    Event::Flapping { over: None, .. } => "mac-flapping",
        "A MAC address moves too often; its moves are no longer reported one by one";
    Event::Flapping { .. } => "mac-settled", "A MAC address that moved too often has stopped";
    Event::Flood { added: true, .. } => "flood-added", "A VTEP is new in a flood list";
    Event::Flood { added: false, .. } => "flood-removed", "A VTEP has left a flood list";
    Event::Policy { .. } => "policy", "The source port policy of a VNI has changed";
    Event::NextHop { up: true, .. } => "next-hop-up", "A next hop is used";
    Event::NextHop { up: false, .. } => "next-hop-down", "A next hop is no longer used";
    Event::Placement { .. } => "flows-moved",
        "Buckets of one or more VTEPs have another next hop, so flows moved";
    Event::ByDefault { begins: true, .. } => "default-route",
        "Only the default route leads to a VTEP";
    Event::ByDefault { begins: false, .. } => "own-route", "A VTEP has a route of its own again";
    Event::Impaired { begins: true, .. } => "uplink-impaired",
        "A queueing discipline acts on single packets of an uplink: frames leave one by one";
    Event::Impaired { begins: false, .. } => "uplink-restored",
        "Frames may leave together over an uplink again";
    Event::Stalled { .. } => "worker-stalled", "A worker hung, and the kernel forwarded meanwhile";
    Event::Reloaded => "reload", "The configuration was read again";
    Event::Warning(_) => "warning", "Something that the user should know";
}
