//! Dumps of the kernel's tables, and when they are repeated.

use std::time::{Duration, Instant};

use netlink::{Dump, Kernel};

use crate::events::Event;
use crate::sources::SourceState;
use crate::state::State;
use crate::task::report::Reporter;
use crate::task::status::Warning;

/// Dumps that only verify take at most one part in this many of the time.
const DUMP_SHARE: u32 = 8;
/// When a failed dump is repeated.
const RETRY: Duration = Duration::from_secs(1);

/// Makes dumps.
#[derive(Debug)]
pub(crate) struct Dumps {
    /// Dumps that failed, with the errors.
    failed: Vec<(Dump, String)>,
    /// When the next dump that only verifies may be made.
    at: Instant,
}

impl Dumps {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { failed: Vec::new(), at: now }
    }

    /// Makes all dumps and returns the first error.
    pub(crate) async fn make_all(
        &mut self,
        state: &mut State,
        kernel: &Kernel,
        reporter: &mut Reporter,
    ) -> Result<(), netlink::Error> {
        state.set_kernel_state(SourceState::Syncing);
        reporter.sources(state);
        self.failed.clear();
        let mut result = Ok(());
        for what in Dump::ALL {
            result = result.and(self.make(what, state, kernel, reporter).await);
        }
        // Dumps that an early one asked for were made after it: links are dumped first.
        state.take_wanted_dumps();
        self.report(&Dump::ALL, state, reporter);
        result
    }

    /// Makes the dumps that the state wants, and those that failed before. Returns whether there
    /// were any.
    pub(crate) async fn make_wanted(
        &mut self,
        state: &mut State,
        kernel: &Kernel,
        reporter: &mut Reporter,
        now: Instant,
    ) -> bool {
        if now < self.at {
            return false;
        }
        let mut wanted = state.take_wanted_dumps();
        wanted.extend(std::mem::take(&mut self.failed).into_iter().map(|(what, _)| what));
        if wanted.is_empty() {
            return false;
        }
        for what in Dump::ALL {
            if wanted.contains(&what) {
                // A failed dump is recorded in `failed`.
                let _ = self.make(what, state, kernel, reporter).await;
            }
        }
        self.at = Instant::now() + now.elapsed() * DUMP_SHARE;
        if !self.failed.is_empty() {
            self.at = self.at.max(now + RETRY);
        }
        self.report(&wanted, state, reporter);
        true
    }

    async fn make(
        &mut self,
        what: Dump,
        state: &mut State,
        kernel: &Kernel,
        reporter: &Reporter,
    ) -> Result<(), netlink::Error> {
        let dump = match kernel.dump(what).await {
            Ok(dump) => dump,
            Err(error) => {
                self.failed.push((what, error.to_string()));
                return Err(error);
            }
        };
        let resync = state.resync(what, dump);
        tracing::debug!(what = name(what), dumped = resync.dumped, swept = resync.swept, "dumped");
        reporter.update_status(|status| {
            status.dumps.insert(name(what), resync);
            status.swept.kernel += resync.swept as u64;
        });
        Ok(())
    }

    /// Sets the kernel's state after these dumps: live, unless one has failed.
    fn report(&self, dumps: &[Dump], state: &mut State, reporter: &mut Reporter) {
        let kernel = match (state.kernel_state(), self.failed.is_empty()) {
            (_, true) => SourceState::Live,
            (stale @ SourceState::Stale { .. }, false) => stale,
            (_, false) => SourceState::Stale { since: Instant::now() },
        };
        state.set_kernel_state(kernel);
        let read = Dump::ALL.into_iter().filter(|what| dumps.contains(what)).map(name);
        let read = reporter.last_dumps(read);
        reporter.write(Event::Resynced(read));
        reporter.sources(state);
    }

    /// Warnings about dumps that failed.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = Warning> {
        self.failed
            .iter()
            .map(|(what, error)| Warning::DumpFailed { what: name(*what), error: error.clone() })
    }

    /// When [`Dumps::make_wanted`] has something to do.
    pub(crate) fn wake_at(&self, state: &State) -> Option<Instant> {
        (!self.failed.is_empty() || state.wants_dumps()).then_some(self.at)
    }
}

fn name(what: Dump) -> &'static str {
    what.operation().trim_start_matches("read ")
}
