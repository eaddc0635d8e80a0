//! Data-plane learning (RFC 7348 section 4.1): which VTEP a source address is behind. It follows
//! `vxlan_snoop()` in the kernel's `drivers/net/vxlan/vxlan_core.c`.
//!
//! This module does not change forwarding itself. It reports addresses that the tables do not have.
//! Control writes them into the kernel's FDB, and they come back in the next snapshot. Known
//! addresses are reported a few times per ageing time, so that the kernel does not age them out. A
//! cache of fixed size holds recent reports. For an address in it, a frame costs one lookup.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use frame::DropReason;
use path::Version;
use tables::{Learned, Learning, Snapshot, VniTable};
use wire::{MacAddr, as_ipv6};

use crate::counters::Counter;

/// Time after which a reported address that is not in the tables is reported again.
pub const AGAIN: Duration = Duration::from_millis(50);
/// Sustained rate of reports per millisecond. It applies separately to new or moved addresses, and
/// to refreshes.
pub const PER_MILLISECOND: u64 = 4;
/// Largest burst of reports, separately for each kind.
pub const BURST: u64 = 512;

/// Capacity of the cache in addresses: about twice the number that control lets one netdev learn.
const CACHED: usize = SETS * WAYS;
const SETS: usize = 4096;
const WAYS: usize = 8;
/// Time in milliseconds after which an address that needs no refresh is looked up again. Until then
/// its cache entry is hardly ever evicted.
const IDLE: u64 = 60_000;

/// A cache entry. Times are in milliseconds since the learner's first frame.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// MAC address and slot; 0 if the entry is unused.
    key: u64,
    /// IPv4 addresses are mapped (RFC 4291 section 2.5.5.2).
    vtep: Ipv6Addr,
    /// The snapshot that confirmed the entry; none while it is only reported.
    snapshot: Version<Snapshot>,
    /// When the address must be looked up or reported again.
    due: u64,
}

impl Seen {
    const NONE: Self =
        Self { key: 0, vtep: Ipv6Addr::UNSPECIFIED, snapshot: Version::NONE, due: 0 };
}

/// How a source address compares with the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceState {
    /// The tables do not have it.
    New,
    /// The tables have it behind this other VTEP.
    Moved(IpAddr),
    /// The tables have it behind the sending VTEP.
    Known,
    /// It has a static entry with the sending VTEP and is never refreshed.
    Static,
}

/// Compares a source address and its VTEP with the tables.
///
/// # Errors
/// [`DropReason::StaticSource`] if the address has a static entry with another VTEP.
fn compare(
    (mac, vtep): (MacAddr, IpAddr),
    (table, learning): (&VniTable, &Learning),
    snapshot: &Snapshot,
) -> Result<SourceState, DropReason> {
    match learning.fixed.get(&mac) {
        Some(owner) if *owner == vtep => return Ok(SourceState::Static),
        Some(_) => return Err(DropReason::StaticSource),
        None => {}
    }
    let known = table.fdb.get(&mac).and_then(|index| snapshot.vtep(*index));
    Ok(match known {
        Some(known) if known.address == vtep => SourceState::Known,
        Some(known) => SourceState::Moved(known.address),
        None => SourceState::New,
    })
}

/// Token bucket with a rate of [`PER_MILLISECOND`] and a depth of [`BURST`].
#[derive(Debug)]
struct Bucket {
    tokens: u64,
    filled: u64,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { tokens: BURST, filled: 0 }
    }
}

impl Bucket {
    fn take(&mut self, now: u64) -> bool {
        let new = now.saturating_sub(self.filled).saturating_mul(PER_MILLISECOND);
        self.tokens = self.tokens.saturating_add(new).min(BURST);
        self.filled = now;
        let some = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        some
    }
}

/// Finds source addresses to report to control.
#[derive(Debug, Default)]
pub(crate) struct Learner {
    /// Empty until the first frame of a VNI that learns.
    cache: Box<[[Seen; WAYS]]>,
    start: Option<Instant>,
    now: u64,
    /// Separate limits, so that a flood of new addresses does not let known ones age out.
    news: Bucket,
    refreshes: Bucket,
    reports: Vec<Learned>,
}

impl Learner {
    pub(crate) fn set_time(&mut self, now: Instant) {
        let start = self.start.get_or_insert(now);
        self.now = milliseconds(now.saturating_duration_since(*start));
    }

    pub(crate) fn reports(&mut self) -> impl Iterator<Item = Learned> + '_ {
        self.reports.drain(..)
    }

    /// Processes a frame from `vtep` with this source address. `limited` counts reports that the
    /// rate limit suppressed. `record` gets the result of a lookup in the tables.
    ///
    /// # Errors
    /// [`DropReason::StaticSource`] if the address has a static entry with another VTEP.
    pub(crate) fn learn(
        &mut self,
        (mac, vtep): (MacAddr, IpAddr),
        (table, learning): (&VniTable, &Learning),
        snapshot: &Snapshot,
        limited: &Counter,
        record: impl FnOnce(SourceState),
    ) -> Result<(), DropReason> {
        if self.cache.is_empty() {
            // Allocated once per worker.
            self.cache = vec![[Seen::NONE; WAYS]; SETS].into();
            self.reports.reserve(CACHED.min(BURST as usize * 2));
        }
        let key = key(mac, table.index.get());
        let Some(set) = self.cache.get_mut(set_of(key)) else { return Ok(()) };
        // Evicts the entry that is due first. New addresses therefore rarely evict known
        // ones.
        let place = match set.iter_mut().find(|seen| seen.key == key) {
            Some(place) => Some(place),
            None => set.iter_mut().min_by_key(|seen| seen.due),
        };
        let Some(place) = place else { return Ok(()) };
        let (now, version) = (self.now, snapshot.version());
        let sender = as_ipv6(vtep);
        let cached = place.key == key;
        let as_before = cached && (place.vtep, place.snapshot) == (sender, version);
        if as_before && now < place.due {
            return Ok(());
        }
        let state = compare((mac, vtep), (table, learning), snapshot)?;
        record(state);
        // The address was reported, and was not in the tables at the last lookup.
        let reported = cached && place.snapshot == Version::NONE;
        let at = |due| Seen { key, vtep: sender, snapshot: version, due };
        let report = Learned { ifindex: learning.ifindex, mac, vtep };
        if matches!(state, SourceState::New | SourceState::Moved(_)) {
            if reported && now < place.due {
                return Ok(());
            }
            if !self.news.take(now) {
                limited.add(1);
                return Ok(());
            }
            *place =
                Seen { snapshot: Version::NONE, ..at(now.saturating_add(milliseconds(AGAIN))) };
            self.reports.push(report);
            return Ok(());
        }
        if reported && place.vtep != sender && now < place.due {
            // Two VTEPs claim the address. It must not be reported for every frame.
            return Ok(());
        }
        let Some(ageing) = learning.ageing.filter(|_| state == SourceState::Known) else {
            *place = at(now.saturating_add(IDLE));
            return Ok(());
        };
        let interval = milliseconds(ageing / Learning::REFRESHES);
        let due = match (cached, reported) {
            // The age of the kernel's entry is unknown, or the ageing time has become shorter.
            (false, _) => now,
            (true, false) if place.due > now.saturating_add(interval) => now,
            // The kernel's entry is as old as the report.
            (true, true) => place.due.saturating_sub(milliseconds(AGAIN)).saturating_add(interval),
            (true, false) => place.due,
        };
        if now < due {
            *place = at(due);
            return Ok(());
        }
        if !self.refreshes.take(now) {
            limited.add(1);
            return Ok(());
        }
        *place = at(now.saturating_add(interval));
        self.reports.push(report);
        Ok(())
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

const fn key(MacAddr([a, b, c, d, e, f]): MacAddr, slot: u16) -> u64 {
    let [s, t] = slot.to_be_bytes();
    u64::from_be_bytes([a, b, c, d, e, f, s, t])
}

/// The cache set of a key.
const fn set_of(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SETS.ilog2())) as usize
}
