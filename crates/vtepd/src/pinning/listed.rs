//! Lists of queue pairs, which are read in short steps: workers want the placement, too.

use path::CounterId;
use pathmap::Placer;
use pathmap::placer::{Flow, FlowId, Gone};

use super::Shared;

impl Shared {
    /// Reads all queue pairs.
    pub(crate) fn read_all<T>(
        &self,
        mut read: impl FnMut(&Placer, (&FlowId, &Flow)) -> Option<T>,
    ) -> Vec<T> {
        const STEP: usize = 8;
        let counters: Vec<CounterId> = self.read(|placer| placer.counters()).collect();
        let mut all = Vec::new();
        for some in counters.chunks(STEP) {
            self.read(|placer| {
                let flows = some.iter().filter_map(|counter| placer.at(*counter));
                all.extend(flows.filter_map(|flow| read(placer, flow)));
            });
        }
        all
    }

    /// The queue pairs that were forgotten in the last hour ([`Placer::gone`]).
    pub(crate) fn gone(&self) -> Vec<Gone> {
        const STEP: usize = 64;
        let (mut all, now) = (Vec::<Gone>::new(), self.now());
        loop {
            let next = all.last().map_or(0, |gone| gone.number + 1);
            let some =
                self.read(|placer| placer.gone(next, STEP, now).cloned().collect::<Vec<_>>());
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    }
}
