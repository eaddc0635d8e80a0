//! What became of sprayed packets, and how long they wait on each path, from the reports of the other
//! end.

use std::collections::VecDeque;
use std::time::Duration;

use path::{Arrived, Backlog, Fate, PathId, Pool};

use super::PACE;
use super::reporter::is_behind;

/// Reports that wait until what was sent before them must have arrived.
const MOST_WAITING: usize = 64;
/// How much longer than the longest path a packet may wait in queues until it counts as lost.
const QUEUES: Duration = Duration::from_millis(20);
/// The time of a packet on a path is forgotten by one part of so many with each report while none
/// wait.
const FORGETS: u64 = 32;
/// A longer delay counts by one part of so many each time.
const RISES: u64 = 256;

/// What became of the packets on the paths of a pool, from the reports of the other end.
///
/// A packet is lost if a report does not count it that was written when it must have arrived. Nobody
/// can report more arrivals than there were packets.
#[derive(Debug)]
pub struct Ledger {
    paths: Vec<Account>,
    /// The packets that were sent and answered on each path at the time of earlier reports.
    earlier: VecDeque<(Duration, Vec<Earlier>)>,
    /// The packets of which those that have not arrived are lost.
    due: Vec<u64>,
}

/// The packets of a path at the time of an earlier report.
#[derive(Debug, Clone, Copy)]
struct Earlier {
    sent: u64,
    answered: u64,
}

/// A path of the pool. Numbers count from the first report on.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    /// The totals of the last report; `None` before the first one.
    totals: Option<(u16, u16)>,
    /// Packets that were sent before the first report.
    before: u64,
    received: u64,
    missing: u64,
    /// As [`Backlog`].
    service: u64,
    base: u64,
    /// The report after which it fell behind other paths.
    slower: Option<Duration>,
}

impl Ledger {
    /// The ledger of a pool over which nothing was sent yet. `last` is the last report about other
    /// pools. Without one, packets of this pool that are on their way at the first report count as
    /// arrived then.
    #[must_use]
    pub fn new(pool: &Pool, last: Option<&[Arrived]>) -> Self {
        let account = |path: &PathId| Account {
            totals: last.map(|report| totals(report, *path)),
            ..Account::default()
        };
        let paths = pool.paths().iter().map(account).collect();
        Self { paths, earlier: VecDeque::new(), due: Vec::new() }
    }

    /// Follows the delays of the paths of the pool. What is longer than before may be a queue, or a path
    /// that was changed, so it is followed slowly.
    pub fn follow_delays(&mut self, delays: impl IntoIterator<Item = Option<Duration>>) {
        for (account, delay) in self.paths.iter_mut().zip(delays) {
            let Some(delay) = delay else { continue };
            let now = nanoseconds(delay + PACE);
            let before = account.base;
            let rises = before > 0 && now > before;
            account.base = if rises { before + (now - before) / RISES } else { now };
        }
    }

    /// Takes a report, and adds what it tells to the pool. `slowest` is the delay of the slowest path.
    pub fn report(&mut self, now: Duration, pool: &Pool, report: &[Arrived], slowest: Duration) {
        let sent: Vec<u64> = pool.sent().collect();
        let late = now.saturating_sub(slowest * 2 + QUEUES);
        while self.earlier.front().is_some_and(|(at, _)| *at <= late)
            && let Some((_, due)) = self.earlier.pop_front()
        {
            self.due = due.iter().map(|of| of.sent).collect();
        }
        let longest = self.paths.iter().map(|account| account.base).max().unwrap_or(0);
        let earlier = &self.earlier;
        let before = |base: u64, number: usize| {
            let window = Duration::from_nanos(base) + PACE;
            let (at, of) = earlier.iter().rev().find(|(at, _)| *at + window <= now)?;
            Some((now - *at, *of.get(number)?))
        };
        let paths = self.paths.iter_mut().zip(pool.paths()).zip(&sent).enumerate();
        let fates: Vec<Fate> = paths
            .map(|(number, ((account, path), sent))| {
                let due = self.due.get(number).copied().unwrap_or(0);
                account.take(totals(report, *path), *sent, due)
            })
            .collect();
        // A path may have become slow just before the last report, so the one before it counts, too.
        for (at, then) in earlier.iter().rev().take(2) {
            // What was answered since that report, and in a longer time before it.
            let answered = then.iter().map(|of| of.answered).enumerate().map(|(number, then)| {
                let before = before(longest, number).map_or(then, |(_, before)| before.answered);
                (then - before.min(then), then)
            });
            let counts: Vec<(u64, u64)> = answered
                .zip(&self.paths)
                .map(|((before, then), now)| (before, now.answered().saturating_sub(then)))
                .collect();
            for (number, account) in self.paths.iter_mut().enumerate() {
                if is_behind(&counts, number) {
                    account.slower = account.slower.max(Some(*at));
                }
            }
        }
        for (number, account) in self.paths.iter_mut().enumerate() {
            let since = before(longest, number);
            // How quick the path was before says nothing about now.
            let slower =
                account.slower.filter(|at| since.is_some_and(|(time, _)| *at + time > now));
            let slower = slower.and_then(|slower| {
                let (at, of) = earlier.iter().rev().find(|(at, _)| *at == slower)?;
                Some((now - *at, *of.get(number)?))
            });
            account.measure(before(account.base, number), [since, slower]);
        }
        let backlogs = self.paths.iter().map(|account| Backlog {
            answered: account.answered(),
            service: account.service,
            base: account.base,
        });
        pool.set_backlogs(backlogs);
        pool.add_feedback(fates);
        if self.earlier.len() < MOST_WAITING {
            let of =
                |(account, sent): (&Account, u64)| Earlier { sent, answered: account.answered() };
            self.earlier.push_back((now, self.paths.iter().zip(sent).map(of).collect()));
        }
    }
}

impl Account {
    /// What a report tells about a path on which `sent` packets were sent, `due` of them so long ago
    /// that they must have arrived.
    fn take(&mut self, (received, marked): (u16, u16), sent: u64, due: u64) -> Fate {
        let Some(before) = self.totals.replace((received, marked)) else {
            self.before = sent;
            return Fate::default();
        };
        // The other end may have begun anew, or say what cannot be.
        let possible = sent.saturating_sub(self.before).saturating_sub(self.received);
        let new = u64::from(received.wrapping_sub(before.0)).min(possible);
        let marked = u64::from(marked.wrapping_sub(before.1)).min(new);
        self.received += new;
        let missing = due.saturating_sub(self.before).saturating_sub(self.received);
        let lost = missing.saturating_sub(self.missing);
        self.missing = missing;
        Fate { good: new - marked, marked, lost }
    }

    /// The packets of the pool that have arrived or are lost.
    const fn answered(&self) -> u64 {
        self.before + self.received + self.missing
    }

    /// Measures how long the path takes for a packet, from what was sent and answered so long ago that
    /// all has arrived `if_empty`, and some time ago. If it has not, there is a queue. Of two times, the
    /// longer one counts: reports may come one right after the other.
    fn measure(
        &mut self,
        if_empty: Option<(Duration, Earlier)>,
        since: [Option<(Duration, Earlier)>; 2],
    ) {
        let answered = self.answered();
        let service = |(time, then): (Duration, Earlier)| {
            nanoseconds(time) / answered.saturating_sub(then.answered).max(1)
        };
        let longest = since.into_iter().flatten().map(service).max();
        let Some(((_, due), longest)) = if_empty.zip(longest) else { return };
        self.service = if due.sent > answered {
            longest
        } else {
            self.service - self.service.div_ceil(FORGETS)
        };
    }
}

/// The totals of a path. A port that nothing arrived with is in no report.
fn totals(report: &[Arrived], path: PathId) -> (u16, u16) {
    let arrived = report.iter().find(|arrived| arrived.port == path.source_port);
    arrived.map_or((0, 0), |of| (of.received, of.marked))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
