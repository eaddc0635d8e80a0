//! What is known of zebra as an FPM client.

use std::time::{Duration, Instant};

use crate::source::SourceState;

/// How long zebra has to be silent until its replay is taken for finished: there is no end marker. (Replays of small
/// tables take less than a millisecond; zebra's own retry interval is 3 s.)
pub(crate) const QUIET: Duration = Duration::from_secs(5);

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct FpmSession {
    pub(crate) state: SourceState,
    last_message: Option<Instant>,
    /// A MAC message without `NDA_SRC_VNI` came: zebra is older than 9.0.
    pub(crate) names_no_vni: bool,
    /// How many entries the last replay did not confirm.
    pub(crate) swept: usize,
}

impl FpmSession {
    pub(crate) fn connected(&mut self, now: Instant) {
        self.state = SourceState::Syncing;
        self.last_message = Some(now);
        self.names_no_vni = false;
    }

    pub(crate) fn disconnected(&mut self, now: Instant) {
        self.state = SourceState::Stale { since: now };
    }

    pub(crate) fn heard(&mut self, now: Instant) {
        self.last_message = Some(now);
    }

    /// When the replay will be taken for finished if nothing else comes.
    pub(crate) fn quiet_at(&self) -> Option<Instant> {
        self.last_message.filter(|_| self.state == SourceState::Syncing).map(|last| last + QUIET)
    }

    pub(crate) fn replay_ended(&self, now: Instant) -> bool {
        self.quiet_at().is_some_and(|end| now >= end)
    }

    pub(crate) fn live(&mut self, swept: usize) {
        self.state = SourceState::Live;
        self.swept = swept;
    }
}
