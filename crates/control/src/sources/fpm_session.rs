//! The state of the FPM session with zebra.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use fpm::{Generation, ZebraTraits};
use netlink::Message;
use tables::VniSource;
use wire::MacAddr;

use crate::sources::SourceState;
use crate::stores::Stores;
use crate::stores::neighbours::Adjacency;

/// How long zebra has to be silent until its replay counts as finished: FPM has no end marker.
/// (Replays of small tables take less than a millisecond; zebra's own retry interval is 3 s.) The
/// silence counts from the first message. A client that connects and sends nothing therefore
/// removes nothing.
pub(crate) const QUIET: Duration = Duration::from_secs(5);

/// `NUD_NOARP` (`include/uapi/linux/neighbour.h`).
const NUD_NOARP: u16 = 0x40;
/// `NTF_EXT_LEARNED`.
const NTF_EXT_LEARNED: u32 = 0x10;

/// Entries of zebra that were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FpmSweep {
    /// Routes, next-hop objects and MAC addresses.
    pub entries: usize,
    /// Whether zebra is connected and did not repeat them. If not, it was away for too long.
    pub returned: bool,
}

/// A condition under which zebra crashes when its FPM connection is made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FpmHazard {
    /// The router MAC address that makes its replay crash.
    pub router_mac: MacAddr,
    /// The VTEP of that address.
    pub vtep: IpAddr,
}

/// The FPM session with zebra, or the last one.
#[derive(Debug, Default)]
pub(crate) struct FpmSession {
    pub(crate) state: SourceState,
    /// When the last session ended in which anything was received.
    lost: Option<Instant>,
    /// Whether entries of that session are kept.
    kept: bool,
    /// When the last message of the current connection was received.
    last_message: Option<Instant>,
    traits: ZebraTraits,
    /// Number of entries that the last replay did not repeat.
    pub(crate) swept: usize,
}

impl FpmSession {
    pub(crate) fn connected(&mut self) {
        self.state = SourceState::Syncing;
        self.last_message = None;
        self.traits = ZebraTraits::default();
        self.swept = 0;
    }

    pub(crate) fn disconnected(&mut self, now: Instant) {
        // A client that sent nothing does not restart the stale time.
        if self.last_message.take().is_some() {
            self.lost = Some(now);
            self.kept = true;
        }
        self.state = match self.lost.filter(|_| self.kept) {
            Some(since) => SourceState::Stale { since },
            None => SourceState::Disconnected,
        };
    }

    pub(crate) fn received(&mut self, messages: &[Message], now: Instant) {
        self.last_message = Some(now);
        messages.iter().for_each(|message| self.traits.observe(message));
    }

    /// Whether this zebra belongs to the versions that crash when they replay a router MAC address.
    pub(crate) fn is_fragile(&self) -> bool {
        self.traits.generation() == Generation::BeforeFrr9
    }

    /// When unconfirmed entries are removed if nothing else is received: the replay then counts as
    /// finished, or the stale time has passed.
    pub(crate) fn sweep_at(&self, stale_time: Duration) -> Option<Instant> {
        match (self.state, self.last_message) {
            (SourceState::Live | SourceState::Off, _) => None,
            (SourceState::Syncing, Some(last)) => Some(last + QUIET),
            _ => self.lost.filter(|_| self.kept).map(|lost| lost + stale_time),
        }
    }

    /// Whether zebra is connected and its replay is in progress.
    pub(crate) fn repeats(&self) -> bool {
        self.state == SourceState::Syncing && self.last_message.is_some()
    }

    /// Unconfirmed entries were removed. Returns whether the reason is that zebra has not repeated
    /// them.
    pub(crate) fn swept(&mut self, entries: usize) -> bool {
        self.kept = false;
        let repeats = self.repeats();
        if repeats {
            self.lost = None;
            self.swept = entries;
            self.state = SourceState::Live;
        } else if self.state != SourceState::Syncing {
            self.state = SourceState::Disconnected;
        }
        repeats
    }

    /// When zebra left, if it has been away for so long that its entries were removed.
    pub(crate) fn forgotten(&self) -> Option<Instant> {
        self.lost.filter(|_| !self.kept && self.last_message.is_none())
    }
}

/// A remote router MAC address (L3VNI) that zebra wrote into the kernel: a neighbour on an SVI
/// whose address is that of the VTEP.
///
/// zebra up to 8.4.6, 8.5.6, 9.0.4, 9.1.2, 10.0.2 and 10.1.1 crashes when an FPM connection is made
/// while it has such an address. The first connection counts as well. Its version is unknown before
/// it connects.
pub(crate) fn router_mac(stores: &Stores) -> Option<FpmHazard> {
    stores.neighbours.iter().find_map(|(Adjacency { ifindex, address }, neighbour)| {
        let vtep = address;
        let router_mac = neighbour.mac.filter(|_| {
            neighbour.state & NUD_NOARP != 0 && neighbour.flags & NTF_EXT_LEARNED != 0
        })?;
        // The SVI is the bridge, or a VLAN interface on it.
        let svi = stores.links.get(ifindex)?;
        let bridge = if stores.links.is_bridge(ifindex) { ifindex } else { svi.link? };
        let mut overlays = stores
            .links
            .vxlans_in(bridge)
            .filter_map(|vxlan| stores.overlays.get(&VniSource::Netdev(vxlan)));
        overlays
            .any(|overlay| overlay.says(router_mac, vtep))
            .then_some(FpmHazard { router_mac, vtep })
    })
}
