//! Facts for which the kernel sends no notification: path MTUs and default values. They are read
//! once a second.

use std::collections::BTreeMap;
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

/// Reads path MTUs and default values once a second.
#[derive(Debug)]
pub(crate) struct Polled {
    at: Instant,
    /// The path MTUs that the kernel has.
    paths: BTreeMap<Path, u32>,
    /// The last path of the previous turn, if there were too many paths for one.
    last: Option<Path>,
}

impl Polled {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { at: now, paths: BTreeMap::new(), last: None }
    }

    /// When they are read next.
    pub(crate) const fn at(&self) -> Instant {
        self.at
    }

    /// Reads them if it is time.
    pub(crate) async fn ask(&mut self, state: &mut State, kernel: &Kernel, now: Instant) {
        if now < self.at {
            return;
        }
        self.at = now + INTERVAL;
        if let Some(defaults) = Defaults::read() {
            state.set_defaults(defaults);
        }
        let ipv6_uplinks = state.ipv6_uplinks().into_iter();
        let read = |(ifindex, name): (u32, String)| Some((ifindex, Ipv6Interface::read(&name)?));
        state.set_ipv6_interfaces(ipv6_uplinks.filter_map(read).collect());
        let wanted = state.paths();
        self.paths.retain(|path, _| wanted.contains(path));
        // If there are too many, the others follow in the next turn.
        let after = self.last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let requested: Vec<Path> =
            wanted.range((after, Bound::Unbounded)).copied().take(PATHS_AT_ONCE).collect();
        self.last = requested.last().copied().filter(|_| requested.len() == PATHS_AT_ONCE);
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
