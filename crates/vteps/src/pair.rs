//! What a VTEP hears of the paths to another one: arrivals and marks as the other one counted them,
//! losses by difference.

use std::collections::VecDeque;
use std::sync::Arc;

use path::{Arrivals, Fate, Pool};
use sim::time::Picos;

/// The paths from a VTEP to another one.
#[derive(Debug)]
pub struct Pair {
    pub(crate) pool: Arc<Pool>,
    pub(crate) arrivals: Arc<Arrivals>,
    times: Times,
    reported: Picos,
    /// A report that is on its way, and when it arrives.
    under_way: Option<(Picos, Vec<Fate>)>,
    paths: Vec<Path>,
    /// What was sent on each path until these times.
    sent: VecDeque<(Picos, Vec<u64>)>,
}

/// The times of reports.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Between two reports.
    pub every: Picos,
    /// That a report takes.
    pub delay: Picos,
    /// After which a packet that has not arrived is lost.
    pub lost: Picos,
}

/// What is known of a path.
#[derive(Debug, Clone, Copy, Default)]
struct Path {
    /// As the other VTEP counts, modulo 2¹⁶.
    received: u16,
    marked: u16,
    arrived: u64,
    trimmed: u64,
    /// What the pool knows of.
    told_trimmed: u64,
    lost: u64,
}

impl Pair {
    pub(crate) fn new(pool: Arc<Pool>, arrivals: Arc<Arrivals>, times: Times) -> Self {
        let paths = pool.paths().iter().map(|_| Path::default()).collect();
        let (under_way, sent) = Default::default();
        Self { pool, arrivals, times, reported: 0, under_way, paths, sent }
    }

    /// The packets that were sent on each path.
    #[must_use]
    pub fn sent(&self) -> Vec<u64> {
        self.pool.sent().collect()
    }

    /// Adds what became of packets on each path, as a report says it.
    pub fn report(&self, fates: impl IntoIterator<Item = Fate>) {
        self.pool.add_feedback(fates);
    }

    /// A packet has lost its data on this path. Its headers arrive, but the VTEP does not count it.
    pub(crate) fn trimmed(&mut self, path: u16) {
        if let Some(path) = self.paths.get_mut(usize::from(path)) {
            path.trimmed += 1;
        }
    }

    /// Does what is due: a report arrives, and the next one begins.
    pub(crate) fn advance(&mut self, now: Picos) {
        if let Some((_, fates)) = self.under_way.take_if(|(at, _)| *at <= now) {
            self.report(fates);
        }
        if self.under_way.is_none() && now >= self.reported + self.times.every {
            self.reported = now;
            self.under_way = Some((now + self.times.delay, self.next_report(now)));
        }
    }

    fn next_report(&mut self, now: Picos) -> Vec<Fate> {
        self.sent.push_back((now, self.pool.sent().collect()));
        let mut old = Vec::new();
        while self.sent.front().is_some_and(|(at, _)| *at + self.times.lost <= now)
            && let Some((_, sent)) = self.sent.pop_front()
        {
            old = sent;
        }
        let mut fates = Vec::new();
        for ((number, own), id) in (0..).zip(&mut self.paths).zip(self.pool.paths()) {
            let arrived = self.arrivals.read().find(|arrived| arrived.port == id.source_port);
            let arrived = arrived.unwrap_or_default();
            let received = u64::from(arrived.received.wrapping_sub(own.received));
            let marked = u64::from(arrived.marked.wrapping_sub(own.marked));
            (own.received, own.marked) = (arrived.received, arrived.marked);
            own.arrived += received;
            // Of what was sent so long ago, the rest is lost.
            let sent = old.get(number).copied().unwrap_or_default();
            let silent = sent.saturating_sub(own.arrived + own.trimmed + own.lost);
            own.lost += silent;
            let lost = silent + own.trimmed - own.told_trimmed;
            own.told_trimmed = own.trimmed;
            fates.push(Fate { good: received.saturating_sub(marked), marked, lost });
        }
        fates
    }
}
