//! Which decapsulated frames bypass the bridge on their way to a host, and from when on.
//!
//! A frame through the bridge passes three backlogs of the kernel. A frame that bypasses it passes
//! one, so it could overtake. Frames for an address therefore use the bridge
//! until none for that address has passed it for [`PAUSE`], or until the worker has paused for that
//! time ([`HostDelivery::settle`]). The change back to the bridge needs no such care, because the
//! path through the bridge is longer. See docs/adr/0011-five-millisecond-pause.md.

use std::time::{Duration, Instant};

use frame::{Destination, ETHERNET, MACS, Offload};
use path::Version;
use tables::{OpenPort, Snapshot};
use wire::MacAddr;
use wire::checksum::Sum;
use wire::number::{PROTOCOL_FRAGMENT, PROTOCOL_TCP, PROTOCOL_UDP};

/// Time after which frames sent to the bridge are presumed to have left it. The kernel does not
/// report this.
pub const PAUSE: Duration = Duration::from_millis(5);

const PLACES: usize = 1024;

/// What is known about one address of a VNI.
#[derive(Debug, Clone, Copy)]
struct Known {
    snapshot: Version<Snapshot>,
    /// The MAC address in the lower 48 bits, the slot of the VNI above it.
    address: u64,
    /// Interface index of the host port; 0 if there is none.
    port: u32,
    /// Longest frame that the port takes, in bytes with its Ethernet header.
    frame_limit: u32,
    /// When a frame for an address of this cache entry last went through the bridge, in
    /// milliseconds as [`HostDelivery::now`].
    bridged: u64,
}

impl Known {
    /// An unused entry.
    const NONE: Self =
        Self { snapshot: Version::NEVER, address: 0, port: 0, frame_limit: 0, bridged: 0 };
}

/// Decides for each decapsulated frame whether it bypasses the bridge.
#[derive(Debug)]
pub(crate) struct HostDelivery {
    places: Box<[Known; PLACES]>,
    /// Host ports to which frames may be sent, in the order of their interface indices.
    open: Vec<OpenPort>,
    /// Origin of `now`. It is moved by the time that each batch takes to send. The age of a frame
    /// therefore counts from the end of its batch.
    start: Option<Instant>,
    /// Milliseconds since `start`, plus more than [`PAUSE`]: an address that is not known yet has not
    /// gone through the bridge just now.
    now: u64,
    /// Frames sent through the bridge before this time have left it.
    settled: u64,
    /// When a frame that could bypass the bridge last followed earlier ones through it.
    unsettled: Option<u64>,
}

impl Default for HostDelivery {
    fn default() -> Self {
        let places = Box::new([Known::NONE; PLACES]);
        Self { places, open: Vec::new(), start: None, now: 0, settled: 0, unsettled: None }
    }
}

/// Whether the bridge only forwards such a frame: IPv4, or TCP, UDP and fragments over IPv6. It may
/// answer ARP and neighbour discovery. Other IPv6 extension headers are not parsed.
fn is_plain(inner: &[u8]) -> bool {
    let kind = inner.get(MACS..).and_then(<[u8]>::first_chunk);
    match kind {
        Some([0x08, 0x00]) => true,
        Some([0x86, 0xdd]) => {
            matches!(
                inner.get(ETHERNET + 6),
                Some(&(PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_FRAGMENT))
            )
        }
        _ => false,
    }
}

/// Whether the IP header is valid and the packet fills the frame. With br_netfilter, the bridge
/// drops packets with a wrong version, length or checksum, and trims bytes behind a packet
/// (`br_validate_ipv4()` and `br_validate_ipv6()` in `net/bridge/`). Packets with IPv4 options
/// count as invalid.
fn is_well_formed(inner: &[u8]) -> bool {
    let length = inner.len();
    let packet = inner.get(ETHERNET..).unwrap_or_default();
    let Some(ip) = packet.first_chunk::<20>() else { return false };
    let [first, _, l0, l1, p0, p1, ..] = *ip;
    let claimed = |high, low| usize::from(u16::from_be_bytes([high, low]));
    let kind = inner.get(MACS..ETHERNET);
    match (kind, first) {
        (Some([0x08, 0x00]), 0x45) => {
            claimed(l0, l1) + ETHERNET == length && Sum::new().bytes(ip).is_intact()
        }
        (Some([0x86, 0xdd]), 0x60..=0x6f) => claimed(p0, p1) + 40 + ETHERNET == length,
        _ => false,
    }
}

fn place(address: u64) -> usize {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES.ilog2())) as usize
}

impl HostDelivery {
    /// Sets the time at the start of a batch.
    pub(crate) fn set_time(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(*self.start.get_or_insert(now));
        self.now = (PAUSE + elapsed).as_millis() as u64 + 1;
    }

    /// As [`crate::Pipeline::handed_in`].
    pub(crate) fn handed_in(&mut self, began: Instant, ended: Instant) {
        if let Some(start) = &mut self.start {
            *start += ended.saturating_duration_since(began);
        }
    }

    /// As [`crate::Pipeline::others_sent`].
    pub(crate) fn others_sent(&mut self, now: Instant) {
        self.set_time(now);
        self.places.iter_mut().for_each(|known| known.bridged = self.now);
    }

    /// As [`crate::Pipeline::open_ports`].
    pub(crate) fn open(&mut self, ports: &[OpenPort]) {
        // While no port was open, frames through the bridge were not recorded.
        let unseen = self.open.is_empty();
        self.open.clear();
        self.open.extend(ports);
        self.open.sort_unstable();
        for known in self.places.iter_mut() {
            // Invalidates decisions that were made with the old ports.
            known.snapshot = Known::NONE.snapshot;
            if unseen {
                known.bridged = self.now;
            }
        }
    }

    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.is_some_and(|at| self.now.saturating_sub(at) <= PAUSE.as_millis() as u64)
    }

    pub(crate) const fn settle(&mut self) {
        self.settled = self.now + 1;
        self.unsettled = None;
    }

    /// Where to send a frame of this VNI so that it bypasses the bridge; `None` if it must not.
    #[inline(always)]
    pub(crate) fn way(
        &mut self,
        inner: &[u8],
        slot: u16,
        snapshot: &Snapshot,
        offload: Offload,
    ) -> Option<Destination> {
        if self.open.is_empty() {
            return None;
        }
        let port = self.find(inner, slot, snapshot, offload.gso.is_some())?;
        Some(Destination::Host(port))
    }

    /// The host port of the destination address, if the frame may bypass the bridge. The port's MTU does not limit a super-frame, because its segments fit.
    fn find(
        &mut self,
        inner: &[u8],
        slot: u16,
        snapshot: &Snapshot,
        is_super_frame: bool,
    ) -> Option<u32> {
        let &[a, b, c, d, e, f] = inner.first_chunk()?;
        // A group address belongs to no host.
        if a & 1 == 1 || !is_plain(inner) {
            return None;
        }
        let [s0, s1] = slot.to_le_bytes();
        let address = u64::from_le_bytes([a, b, c, d, e, f, s0, s1]);
        let known = self.places.get_mut(place(address))?;
        if known.snapshot != snapshot.version() || known.address != address {
            let hosts = snapshot.vni(slot).map(|table| &table.hosts);
            let port = hosts.and_then(|hosts| hosts.get(&MacAddr([a, b, c, d, e, f])));
            let found = port
                .and_then(|port| self.open.binary_search_by_key(port, |open| open.ifindex).ok());
            let open = found.and_then(|found| self.open.get(found));
            (known.snapshot, known.address) = (snapshot.version(), address);
            known.port = open.map_or(0, |open| open.ifindex);
            known.frame_limit = open.map_or(0, |open| open.mtu.saturating_add(ETHERNET as u32));
        }
        let since = self.now.saturating_sub(known.bridged);
        // Both times are cut off to milliseconds, so more than this many are at least the pause.
        let recent = known.bridged >= self.settled && since <= PAUSE.as_millis() as u64;
        if known.port != 0 {
            // A frame that is too long for the port goes through the bridge, which fragments it
            // with br_netfilter and drops it otherwise.
            let fits = is_super_frame || inner.len() <= known.frame_limit as usize;
            let well_formed = fits && is_well_formed(inner);
            if well_formed && !recent {
                return Some(known.port);
            }
            // Other frames need the bridge in any case, and a pause of the worker would not change
            // that.
            if well_formed {
                self.unsettled = Some(self.now);
            }
        }
        known.bridged = self.now;
        None
    }
}
