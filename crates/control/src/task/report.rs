//! What the control task reports: its status, and events in the journal.

use tokio::sync::watch;

use crate::events::{Event, Journal};
use crate::sources::SourceState;
use crate::sources::resync::Resync;
use crate::state::State;
use crate::task::status::{Status, Warning};

/// Writes status and journal.
#[derive(Debug)]
pub(crate) struct Reporter {
    status: watch::Sender<Status>,
    journal: Journal,
    /// The states of kernel and FPM that the journal has.
    sources: [SourceState; 2],
    /// Warnings that were logged.
    warned: Vec<Warning>,
}

impl Reporter {
    pub(crate) const fn new(status: watch::Sender<Status>, journal: Journal) -> Self {
        let sources = [SourceState::Disconnected; 2];
        Self { status, journal, sources, warned: Vec::new() }
    }

    /// Writes an event into the journal.
    pub(crate) fn write(&self, event: Event) {
        self.journal.write(event);
    }

    /// Writes changed states of sources into the journal.
    pub(crate) fn sources(&mut self, state: &State) {
        let states = [state.kernel_state(), state.fpm_state()];
        for ((name, state), known) in
            ["kernel", "fpm"].into_iter().zip(states).zip(&mut self.sources)
        {
            if *known != state {
                *known = state;
                self.journal.write(Event::Source { name, state });
            }
        }
    }

    /// Changes the status.
    pub(crate) fn update_status(&self, change: impl FnOnce(&mut Status)) {
        self.status.send_modify(change);
    }

    /// The last dumps of these kinds.
    pub(crate) fn last_dumps(
        &self,
        names: impl Iterator<Item = &'static str>,
    ) -> Vec<(&'static str, Resync)> {
        let status = self.status.borrow();
        names.filter_map(|name| Some((name, *status.dumps.get(name)?))).collect()
    }

    /// Whether this warning was in the last report.
    pub(crate) fn has_warned(&self, warning: &Warning) -> bool {
        self.warned.contains(warning)
    }

    /// Reports everything that the state shows. New warnings are logged.
    pub(crate) fn report(
        &mut self,
        state: &State,
        fpm: SourceState,
        refused: u64,
        warnings: Vec<Warning>,
    ) {
        for warning in warnings.iter().filter(|warning| !self.warned.contains(warning)) {
            tracing::warn!("{warning}");
            self.journal.write(Event::Warning(warning.to_string()));
        }
        self.sources(state);
        self.warned.clone_from(&warnings);
        let published = state.published();
        self.status.send_modify(|status| {
            status.kernel = state.kernel_state();
            status.fpm = fpm;
            status.learning = state.learn_counts();
            status.moves = state.move_counts();
            status.fpm_swept = state.fpm_swept();
            status.fpm_refused += refused;
            status.generation = published.snapshot.generation();
            status.plan.clone_from(&published.plan);
            status.left.clone_from(&published.left);
            status.missing.clone_from(&published.missing);
            status.by_default.clone_from(&published.by_default);
            status.ports.clone_from(&published.ports);
            status.warnings = warnings;
            status.turns += 1;
        });
    }
}
