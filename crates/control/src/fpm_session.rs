//! What is known of zebra as an FPM client.

use std::time::{Duration, Instant};

use fpm::{Generation, ZebraTraits};
use netlink::Message;

use crate::source::SourceState;

/// How long zebra has to be silent until its replay is taken for finished: there is no end marker. (Replays of small
/// tables take less than a millisecond; zebra's own retry interval is 3 s.) The silence counts from its first message,
/// so that a stranger who connects and says nothing sweeps nothing.
pub(crate) const QUIET: Duration = Duration::from_secs(5);

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct FpmSession {
    pub(crate) state: SourceState,
    last_message: Option<Instant>,
    traits: ZebraTraits,
    /// How many entries the last replay did not confirm.
    pub(crate) swept: usize,
}

impl FpmSession {
    pub(crate) fn connected(&mut self) {
        *self = Self { state: SourceState::Syncing, ..Self::default() };
    }

    pub(crate) fn disconnected(&mut self, now: Instant) {
        self.state = SourceState::Stale { since: now };
    }

    pub(crate) fn heard(&mut self, messages: &[Message], now: Instant) {
        self.last_message = Some(now);
        messages.iter().for_each(|message| self.traits.observe(message));
    }

    /// Whether this zebra is of the generation that crashes when it replays a router MAC.
    pub(crate) fn is_fragile(&self) -> bool {
        self.traits.generation() == Generation::BeforeFrr9
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
