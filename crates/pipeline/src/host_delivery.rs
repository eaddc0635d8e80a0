//! Which frames skip the bridge on their way to a host, and when the first of them may.
//!
//! The way by the bridge is longer: a frame on it waits in the kernel's backlog three times, one
//! that skips it once, or twice in a bundle. So what is for an address goes on by the bridge until
//! nothing for that address has gone there for [`PAUSE`], or the worker has made such a pause
//! ([`HostDelivery::settle`]). The other way round needs no care: who comes later takes longer.

use std::time::{Duration, Instant};

use tables::{OpenPort, Snapshot};
use wire::MacAddr;
use wire::checksum::Sum;
use wire::number::{PROTOCOL_FRAGMENT, PROTOCOL_TCP, PROTOCOL_UDP};

use crate::batch::Destination;
use crate::frame::{ETHERNET, MACS, Offload};

/// After this long, what was sent to the bridge is taken to have left it: the kernel does not say
/// when it has.
pub const PAUSE: Duration = Duration::from_millis(5);

/// For so many milliseconds after a frame that cannot be in a bundle, an address gets none.
const APART: u64 = 1000;

const PLACES: usize = 1024;

/// What was decided about an address of a VNI.
#[derive(Debug, Clone, Copy)]
struct Known {
    snapshot: u64,
    /// The address, and the VNI's slot above it.
    address: u64,
    /// The port; 0: there is none.
    port: u32,
    /// Longest frame that the port takes, in bytes with its header.
    frame_limit: u32,
    /// When a frame for an address of this place last went by the bridge, in milliseconds as
    /// [`HostDelivery::now`].
    bridged: u64,
    /// The same in a bundle, and of UDP that cannot be in one; 0 for never.
    bundled: u64,
    apart: u64,
}

impl Known {
    /// Of a snapshot that none is.
    const NONE: Self = Self {
        snapshot: u64::MAX,
        address: 0,
        port: 0,
        frame_limit: 0,
        bridged: 0,
        bundled: 0,
        apart: 0,
    };
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct HostDelivery {
    places: Box<[Known; PLACES]>,
    /// Ports that may be sent to.
    open: Vec<OpenPort>,
    /// The beginning of the time that is counted, which stands still while a batch is sent: what
    /// was sent is as old as the time since.
    start: Option<Instant>,
    /// Milliseconds of it, counted from a pause on.
    now: u64,
    /// What went by the bridge before this time has left it.
    settled: u64,
    /// When a frame last went by the bridge only because of those before it.
    unsettled: Option<u64>,
    /// Whether frames may leave in bundles.
    pub(crate) bundles: bool,
}

impl Default for HostDelivery {
    fn default() -> Self {
        let places = Box::new([Known::NONE; PLACES]);
        Self {
            places,
            open: Vec::new(),
            start: None,
            now: 0,
            settled: 0,
            unsettled: None,
            bundles: false,
        }
    }
}

/// Whether the bridge does nothing with such a frame but to forward it: IPv4; TCP, UDP and
/// fragments over IPv6. It may answer ARP and neighbour discovery, and what is behind other
/// extension headers is not looked for.
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

/// Whether the packet's header is right and the packet fills the frame. Where br_netfilter is in
/// use the bridge drops packets with a wrong version, length or checksum, and cuts off what is
/// behind a packet (`br_validate_ipv4()` and `br_validate_ipv6()` in `net/bridge/`). Packets with
/// IPv4 options do not count as right.
fn is_well_formed(inner: &[u8]) -> bool {
    let length = inner.len();
    let packet = inner.get(ETHERNET..).unwrap_or_default();
    let Some(ip) = packet.first_chunk::<20>() else { return false };
    let [first, _, l0, l1, p0, p1, ..] = *ip;
    let claimed = |high, low| usize::from(u16::from_be_bytes([high, low]));
    match first {
        0x45 => claimed(l0, l1) + ETHERNET == length && Sum::new().bytes(ip).is_intact(),
        0x60..=0x6f => claimed(p0, p1) + 40 + ETHERNET == length,
        _ => false,
    }
}

/// Whether it is UDP over IPv4, or a fragment of that.
fn is_udp(inner: &[u8]) -> bool {
    matches!(
        inner.get(MACS..ETHERNET + 20),
        Some([0x08, 0x00, _, _, _, _, _, _, _, _, _, PROTOCOL_UDP, ..])
    )
}

fn place(address: u64) -> usize {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES.ilog2())) as usize
}

impl HostDelivery {
    /// A batch begins.
    pub(crate) fn set_time(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(*self.start.get_or_insert(now));
        self.now = (PAUSE + elapsed).as_millis() as u64;
    }

    /// See [`crate::Pipeline::handed_in`].
    pub(crate) fn handed_in(&mut self, began: Instant, ended: Instant) {
        if let Some(start) = &mut self.start {
            *start += ended.saturating_duration_since(began);
        }
    }

    /// Somebody else has sent to hosts by the bridge until now.
    pub(crate) fn others_sent(&mut self, now: Instant) {
        self.set_time(now);
        self.places.iter_mut().for_each(|known| known.bridged = self.now);
    }

    /// See [`crate::Pipeline::open_ports`].
    pub(crate) fn open(&mut self, ports: &[OpenPort]) {
        // Without ports nobody noted what went by the bridge.
        let unseen = self.open.is_empty();
        self.open.clear();
        self.open.extend(ports);
        self.open.sort_unstable();
        for known in self.places.iter_mut() {
            // What was decided by others is decided anew.
            known.snapshot = Known::NONE.snapshot;
            if unseen {
                known.bridged = self.now;
            }
        }
    }

    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.is_some_and(|at| self.now.saturating_sub(at) < PAUSE.as_millis() as u64)
    }

    pub(crate) const fn settle(&mut self) {
        self.settled = self.now + 1;
        self.unsettled = None;
    }

    /// Where a frame of this VNI is to be sent past the bridge.
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
        let bundles = self.bundles && is_udp(inner);
        let (now, known) = self.find(inner, slot, snapshot, offload.gso.is_some())?;
        let port = known.port;
        // Bundles are for UDP: TCP leaves in super-frames of its own.
        if !bundles {
            return Some(Destination::Host(port));
        }
        // A flow takes one way. One of which something is left to the kernel now and then takes the
        // straight one, which is the shorter.
        if offload != Offload::default() {
            known.apart = now;
        }
        if known.apart == 0 || now.saturating_sub(known.apart) >= APART {
            known.bundled = now;
            return Some(Destination::BundledHost(port));
        }
        if known.bundled != 0 && now.saturating_sub(known.bundled) < PAUSE.as_millis() as u64 {
            known.bridged = now;
            return None;
        }
        Some(Destination::Host(port))
    }

    /// What is known of the address that the frame is for, if it may skip the bridge; and the time.
    /// The port's MTU does not limit a super-frame: its segments fit.
    fn find(
        &mut self,
        inner: &[u8],
        slot: u16,
        snapshot: &Snapshot,
        is_super_frame: bool,
    ) -> Option<(u64, &mut Known)> {
        let &[a, b, c, d, e, f] = inner.first_chunk()?;
        // Nobody has a group's address.
        if a & 1 == 1 || !is_plain(inner) {
            return None;
        }
        let [s0, s1] = slot.to_le_bytes();
        let address = u64::from_le_bytes([a, b, c, d, e, f, s0, s1]);
        let known = self.places.get_mut(place(address))?;
        if known.snapshot != snapshot.identity() || known.address != address {
            let hosts = snapshot.vni(slot).map(|table| &table.hosts);
            let port = hosts.and_then(|hosts| hosts.get(&MacAddr([a, b, c, d, e, f])));
            let found = port
                .and_then(|port| self.open.binary_search_by_key(port, |open| open.ifindex).ok());
            let open = found.and_then(|found| self.open.get(found));
            (known.snapshot, known.address) = (snapshot.identity(), address);
            known.port = open.map_or(0, |open| open.ifindex);
            known.frame_limit = open.map_or(0, |open| open.mtu.saturating_add(ETHERNET as u32));
        }
        let since = self.now.saturating_sub(known.bridged);
        let recent = known.bridged >= self.settled && since < PAUSE.as_millis() as u64;
        if known.port != 0 {
            // The bridge fragments what is too long for the port where br_netfilter is in use, else
            // it drops it.
            let fits = is_super_frame || inner.len() <= known.frame_limit as usize;
            let well_formed = fits && is_well_formed(inner);
            if well_formed && !recent {
                return Some((self.now, known));
            }
            // Others go by the bridge for their own sake, and what follows stays behind them.
            if well_formed {
                self.unsettled = Some(self.now);
            }
        }
        known.bridged = self.now;
        None
    }
}
