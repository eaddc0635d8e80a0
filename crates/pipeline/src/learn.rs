//! Data-plane learning (RFC 7348 section 4.1), by the rules of `vxlan_snoop()` in the kernel's
//! `drivers/net/vxlan/vxlan_core.c`: behind which VTEP a source address is.
//!
//! Nothing is forwarded by what is heard here. What the tables do not say yet is reported; control
//! writes it into the kernel's FDB, from where it comes back with the next snapshot. What they say
//! already is reported a few times in an ageing time, so that the kernel does not forget who still
//! sends. A cache of fixed size remembers what was reported lately: in between, a frame costs one
//! look into it.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use tables::{Learned, Learning, Snapshot, VniTable};
use wire::MacAddr;

use crate::counters::Counter;
use crate::drop_reason::DropReason;

/// What was reported and is not in the tables after this time was lost, and is reported again.
pub const AGAIN: Duration = Duration::from_millis(50);
/// Reports about an address that the tables have, in an ageing time: so often may the kernel miss
/// one.
pub const REFRESHES: u32 = 4;
/// Reports of either kind (new and moved addresses, and refreshed ones) that are made in a
/// millisecond, in the long run.
pub const PER_MILLISECOND: u64 = 4;
/// Reports of either kind that are made at once.
pub const BURST: u64 = 512;

/// Addresses that the cache remembers: about twice what control lets one netdev learn.
const CACHED: usize = SETS * WAYS;
const SETS: usize = 4096;
const WAYS: usize = 8;
/// When an address that is never to be refreshed is looked up again, so that its place in the cache
/// comes free.
const IDLE: u64 = 60_000;

/// An address in the cache. Times are in milliseconds since the first frame.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// MAC address and slot; 0 is nobody.
    key: u64,
    vtep: u32,
    /// Of the snapshot that has it so; 0 while it was only reported.
    generation: u64,
    /// When it is to be reported again.
    due: u64,
}

/// What a source address means to the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// They do not have it.
    New,
    /// They have it behind this other VTEP.
    Moved(Ipv4Addr),
    /// They have it there.
    Known,
    /// It has a static entry there, which nothing refreshes.
    Static,
}

/// Compares the tables with where a source address was heard of.
///
/// # Errors
/// [`DropReason::StaticSource`].
pub(crate) fn judge(
    (mac, vtep): (MacAddr, Ipv4Addr),
    (table, learning): (&VniTable, &Learning),
    snapshot: &Snapshot,
) -> Result<Heard, DropReason> {
    match learning.fixed.get(&mac) {
        Some(owner) if *owner == vtep => return Ok(Heard::Static),
        Some(_) => return Err(DropReason::StaticSource),
        None => {}
    }
    let known = table.fdb.get(&mac).and_then(|index| snapshot.vtep(*index));
    Ok(match known {
        Some(known) if known.address == vtep => Heard::Known,
        Some(known) => Heard::Moved(known.address),
        None => Heard::New,
    })
}

/// Lets [`PER_MILLISECOND`] pass, and [`BURST`] at once.
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

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Learner {
    /// Empty until the first frame of a VNI that learns.
    cache: Box<[[Seen; WAYS]]>,
    start: Option<Instant>,
    now: u64,
    /// Apart from each other, so that a flood of new addresses does not let the known ones age.
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

    /// A frame came from `vtep` with this source address. `limited` counts what would have been
    /// reported.
    ///
    /// # Errors
    /// [`DropReason::StaticSource`].
    pub(crate) fn hear(
        &mut self,
        (mac, vtep): (MacAddr, Ipv4Addr),
        (table, learning): (&VniTable, &Learning),
        snapshot: &Snapshot,
        limited: &Counter,
    ) -> Result<(), DropReason> {
        if self.cache.is_empty() {
            // Once in a worker's life.
            self.cache = vec![[Seen::default(); WAYS]; SETS].into();
            self.reports.reserve(CACHED.min(BURST as usize * 2));
        }
        let key = key(mac, table.slot.get());
        let Some(set) = self.cache.get_mut(set_of(key)) else { return Ok(()) };
        // What is due soonest is missed least: what was known for long is not pushed out by what is
        // new.
        let place = match set.iter_mut().find(|seen| seen.key == key) {
            Some(place) => Some(place),
            None => set.iter_mut().min_by_key(|seen| seen.due),
        };
        let Some(place) = place else { return Ok(()) };
        let (now, generation) = (self.now, snapshot.generation());
        let cached = place.key == key;
        let as_before = cached && (place.vtep, place.generation) == (vtep.to_bits(), generation);
        if as_before && now < place.due {
            return Ok(());
        }
        let heard = judge((mac, vtep), (table, learning), snapshot)?;
        // Reported, but not in the tables when it was last looked for.
        let reported = cached && place.generation == 0;
        let at = |due| Seen { key, vtep: vtep.to_bits(), generation, due };
        let report = Learned { ifindex: learning.ifindex, mac, vtep };
        if matches!(heard, Heard::New | Heard::Moved(_)) {
            if reported && now < place.due {
                return Ok(());
            }
            if !self.news.take(now) {
                limited.add(1);
                return Ok(());
            }
            *place = Seen { generation: 0, ..at(now.saturating_add(milliseconds(AGAIN))) };
            self.reports.push(report);
            return Ok(());
        }
        if reported && place.vtep != vtep.to_bits() && now < place.due {
            // Two VTEPs claim it: no report for each frame.
            return Ok(());
        }
        let Some(ageing) = learning.ageing.filter(|_| heard == Heard::Known) else {
            *place = at(now.saturating_add(IDLE));
            return Ok(());
        };
        let interval = milliseconds(ageing / REFRESHES);
        let due = match (cached, reported) {
            // Nobody knows how long it has lived.
            (false, _) => now,
            // It has lived since it was reported.
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

/// Where in the cache a key is looked for.
const fn set_of(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SETS.ilog2())) as usize
}
