//! Facts for which the kernel sends no notification: path MTUs and default values. They are read
//! once a second, and the path MTU of a VTEP when a router reports that a packet to it is too long.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::time::{Duration, Instant};

use netlink::Kernel;

use crate::resolve::path_mtu::Path;
use crate::settings::Defaults;
use crate::state::State;
use crate::stores::ipv6_interface::Ipv6Interface;

const INTERVAL: Duration = Duration::from_secs(1);
/// Number of paths that are read in one turn. Each read takes some microseconds.
const PATHS_AT_ONCE: usize = 1024;
/// Minimum time between two reads of reported paths. Anybody can report one.
const PACE: Duration = Duration::from_millis(10);
/// Number of reported paths that are read at once. Others are read within a second.
const REPORTED_AT_ONCE: usize = 256;

/// Reads path MTUs and default values.
#[derive(Debug)]
pub(crate) struct Polled {
    at: Instant,
    /// The path MTUs that the kernel has.
    paths: BTreeMap<Path, u32>,
    /// The last path of the previous turn, if there were too many paths for one.
    last: Option<Path>,
    reported: Reported,
}

/// VTEPs whose path MTU may have changed. The report may come a moment before the kernel has the
/// new value, so each one is read twice.
#[derive(Debug)]
struct Reported {
    new: BTreeSet<IpAddr>,
    /// These were read once.
    again: BTreeSet<IpAddr>,
    /// When they may be read.
    at: Instant,
}

impl Reported {
    /// When they are read next.
    fn due(&self) -> Option<Instant> {
        (!self.new.is_empty() || !self.again.is_empty()).then_some(self.at)
    }

    /// The VTEPs to read now.
    fn take(&mut self, now: Instant) -> BTreeSet<IpAddr> {
        if self.due().is_none_or(|due| now < due) {
            return BTreeSet::new();
        }
        self.at = now + PACE;
        let mut vteps = std::mem::replace(&mut self.again, std::mem::take(&mut self.new));
        vteps.extend(&self.again);
        vteps
    }
}

impl Polled {
    pub(crate) const fn new(now: Instant) -> Self {
        let reported = Reported { new: BTreeSet::new(), again: BTreeSet::new(), at: now };
        Self { at: now, paths: BTreeMap::new(), last: None, reported }
    }

    /// When something is read next.
    pub(crate) fn at(&self) -> Instant {
        self.reported.due().map_or(self.at, |reported| reported.min(self.at))
    }

    /// Has the paths to these VTEPs read soon.
    pub(crate) fn report(&mut self, vteps: impl IntoIterator<Item = IpAddr>) {
        let room = REPORTED_AT_ONCE.saturating_sub(self.reported.new.len());
        self.reported.new.extend(vteps.into_iter().take(room));
    }

    /// Reads what is due.
    pub(crate) async fn ask(&mut self, state: &mut State, kernel: &Kernel, now: Instant) {
        let reported = self.reported.take(now);
        let all = now >= self.at;
        let of_reported =
            if reported.is_empty() { BTreeSet::new() } else { state.paths(Some(&reported)) };
        let mut requested: Vec<Path> = of_reported.into_iter().take(REPORTED_AT_ONCE).collect();
        if all {
            self.at = now + INTERVAL;
            read_defaults(state);
            let wanted = state.paths(None);
            self.paths.retain(|path, _| wanted.contains(path));
            requested.extend(self.next_turn(&wanted));
        } else if requested.is_empty() {
            return;
        }
        if !requested.is_empty() {
            let answers = kernel.request(move |kernel| {
                let ask = |path: Path| (path, kernel.path_mtu(path.local, path.vtep, path.ifindex));
                Ok(requested.into_iter().map(ask).collect::<Vec<_>>())
            });
            match answers.await {
                Ok(answers) => self.apply_answers(answers),
                Err(error) => tracing::debug!(%error, "the kernel cannot be asked for path MTUs"),
            }
        }
        let mut smallest: BTreeMap<IpAddr, u32> = BTreeMap::new();
        for (path, mtu) in &self.paths {
            smallest
                .entry(path.vtep)
                .and_modify(|known| *known = (*known).min(*mtu))
                .or_insert(*mtu);
        }
        state.set_path_mtus(&smallest);
    }

    /// The next of all paths. If there are too many, the others follow in the next turn.
    fn next_turn(&mut self, wanted: &BTreeSet<Path>) -> Vec<Path> {
        let after = self.last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let turn: Vec<Path> =
            wanted.range((after, Bound::Unbounded)).copied().take(PATHS_AT_ONCE).collect();
        self.last = turn.last().copied().filter(|_| turn.len() == PATHS_AT_ONCE);
        turn
    }

    fn apply_answers(&mut self, answers: Vec<(Path, Result<Option<u32>, netlink::Error>)>) {
        for (path, answer) in answers {
            match answer {
                Ok(Some(mtu)) => {
                    self.paths.insert(path, mtu);
                }
                Ok(None) => {
                    self.paths.remove(&path);
                }
                Err(error) => {
                    tracing::debug!(vtep = %path.vtep, %error, "a path MTU cannot be read")
                }
            }
        }
    }
}

/// Reads the default values, and the settings of the uplinks for IPv6.
fn read_defaults(state: &mut State) {
    if let Some(defaults) = Defaults::read() {
        state.set_defaults(defaults);
    }
    let ipv6_uplinks = state.ipv6_uplinks().into_iter();
    let read = |(ifindex, name): (u32, String)| Some((ifindex, Ipv6Interface::read(&name)?));
    state.set_ipv6_interfaces(ipv6_uplinks.filter_map(read).collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vtep(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    /// A flood of reports causes few reads, and each reported VTEP is read twice.
    #[test]
    fn reports_are_read_at_once_then_again_and_no_more_often_than_that() {
        let start = Instant::now();
        let mut polled = Polled::new(start);
        polled.at = start + INTERVAL;
        polled.report([vtep(1)]);
        assert_eq!(polled.at(), start, "immediately");
        assert_eq!(polled.reported.take(start), BTreeSet::from([vtep(1)]));
        assert_eq!(polled.at(), start + PACE);
        polled.report((2..1000).map(vtep));
        assert_eq!(polled.reported.take(start + PACE / 2), BTreeSet::new());
        let second = polled.reported.take(start + PACE);
        assert_eq!(second.len(), 1 + REPORTED_AT_ONCE, "the first one again, and new ones");
        assert!(second.contains(&vtep(1)));
        assert_eq!(polled.reported.take(start + 2 * PACE).len(), REPORTED_AT_ONCE);
        assert_eq!(polled.at(), start + INTERVAL, "nothing is reported any more");
    }
}
