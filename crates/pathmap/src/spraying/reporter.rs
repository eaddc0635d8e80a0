//! When a VTEP is told what arrived from it.

use std::mem;
use std::time::Duration;

use path::Arrived;

use super::{KEEPALIVE, PACE};

/// How often arrivals are to be looked at while packets arrive. A report that is early leaves no sooner
/// after the one before it.
pub const LOOK: Duration = Duration::from_micros(500);
/// Reports take one byte of so many that arrive.
pub(super) const SHARE: u64 = 200;
/// Reports that may be saved up, in bytes: two of the longest ones.
pub(super) const SAVED: u64 = 1600;
/// Bytes of a report in front of its message, and of its tag: Ethernet, IPv6, UDP, VXLAN and Ethernet.
pub(super) const AROUND: u64 = 14 + 40 + 8 + 8 + 14 + 16;
/// A path is behind if so many packets are missing, and one part of so many of what it should have.
const BEHIND: (u64, u64) = (3, 4);

/// Why a report is sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// It is time for one.
    Regular,
    /// A path falls behind.
    Early,
}

/// Whether a path falls behind the others, by the packets of each path before and now.
pub(super) fn is_behind(counts: &[(u64, u64)], number: usize) -> bool {
    let Some((before, now)) = counts.get(number) else { return false };
    let sum = |of: fn(&(u64, u64)) -> u64| counts.iter().map(of).sum::<u64>();
    let others = (sum(|of| of.0) - before, sum(|of| of.1) - now);
    let expected = before * others.1 / others.0.max(1);
    let missing = expected.saturating_sub(*now);
    let (fewest, part) = BEHIND;
    missing >= fewest && missing * part >= expected
}

/// When a VTEP is told what arrived from it. Reports take at most a 200th of what arrives, besides
/// those that only show that this VTEP lives.
///
/// A report is early if a path falls behind the others: it has become slow, or loses packets. The
/// arrivals that follow pay for it. So reports take no more of what arrives, whatever the paths and
/// the other end do.
#[derive(Debug, Default)]
pub struct Reporter {
    sent: Option<Duration>,
    bytes: u64,
    /// In 200ths of a byte. Below 0 while an early report is not paid.
    saved: i64,
    /// The bytes that had arrived at the last report.
    reported: u64,
    /// When more had arrived.
    active: Duration,
    /// What the last reports said, the newest first.
    said: [Vec<Arrived>; 3],
}

impl Reporter {
    /// Whether to look at what arrived, if so many bytes have arrived in all. Otherwise, nothing is
    /// [`Self::due`].
    #[must_use]
    pub fn is_worth_a_look(&self, now: Duration, bytes: u64) -> bool {
        bytes != self.bytes
            || bytes != self.reported
            || self.sent.is_none_or(|at| now.saturating_sub(at) >= KEEPALIVE)
    }

    /// Whether to send a report of these arrivals now, if it has a message of this length in bytes and
    /// so many bytes have arrived in all.
    pub fn due(
        &mut self,
        now: Duration,
        bytes: u64,
        arrived: &[Arrived],
        message: usize,
    ) -> Option<Due> {
        let new = bytes.saturating_sub(mem::replace(&mut self.bytes, bytes));
        let new = i64::try_from(new).unwrap_or(i64::MAX);
        self.saved = self.saved.saturating_add(new).min((SAVED * SHARE) as i64);
        if new > 0 {
            self.active = now;
        }
        let since = self.sent.map(|at| now.saturating_sub(at));
        let Some(since) = since.filter(|since| *since < KEEPALIVE) else {
            self.note(now, bytes, arrived);
            return Some(Due::Regular);
        };
        let cost = ((message as u64 + AROUND) * SHARE) as i64;
        let is_paid = since >= PACE && self.saved >= cost;
        let is_early = || since >= LOOK && self.saved >= 0 && self.is_one_behind(arrived);
        let due = match bytes != self.reported {
            true if is_paid => Due::Regular,
            true if is_early() => Due::Early,
            _ => return None,
        };
        self.saved -= cost;
        self.note(now, bytes, arrived);
        Some(due)
    }

    /// A report is sent.
    fn note(&mut self, now: Duration, bytes: u64, arrived: &[Arrived]) {
        (self.sent, self.reported) = (Some(now), bytes);
        self.said.rotate_right(1);
        arrived.clone_into(&mut self.said[0]);
    }

    /// Whether fewer packets came by a path since the last report, or the one before it, than until
    /// then, beside those by the other paths. A path may have become slow just before a report.
    fn is_one_behind(&self, arrived: &[Arrived]) -> bool {
        let received = |said: &[Arrived], port| {
            said.iter().find(|said| said.port == port).map_or(0, |said| said.received)
        };
        self.said.windows(2).any(|reports| {
            let [since, before] = reports else { return false };
            let counts = arrived.iter().map(|now| {
                let [since, before] = [since, before].map(|said| received(said, now.port));
                (since.wrapping_sub(before).into(), now.received.wrapping_sub(since).into())
            });
            let counts: Vec<(u64, u64)> = counts.collect();
            (0..counts.len()).any(|number| is_behind(&counts, number))
        })
    }

    /// Whether anything arrived a short time ago.
    #[must_use]
    pub fn is_active(&self, now: Duration) -> bool {
        now.saturating_sub(self.active) < KEEPALIVE
    }
}
