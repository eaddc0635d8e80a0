//! What is known of zebra as an FPM client.

use std::time::{Duration, Instant};

use fpm::{Generation, ZebraTraits};
use netlink::Message;

use crate::source::SourceState;

/// How long zebra has to be silent until its replay is taken for finished: there is no end marker.
/// (Replays of small tables take less than a millisecond; zebra's own retry interval is 3 s.) The
/// silence counts from its first message, so that a stranger who connects and says nothing sweeps
/// nothing.
pub(crate) const QUIET: Duration = Duration::from_secs(5);

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct FpmSession {
    pub(crate) state: SourceState,
    /// When the last connection was lost over which anything was said.
    lost: Option<Instant>,
    /// Whether what was said over it is kept.
    kept: bool,
    /// The last message of the connection that stands.
    last_message: Option<Instant>,
    traits: ZebraTraits,
    /// How many entries the last replay did not confirm.
    pub(crate) swept: usize,
}

impl FpmSession {
    pub(crate) fn connected(&mut self) {
        self.state = SourceState::Syncing;
        self.last_message = None;
        self.traits = ZebraTraits::default();
        self.swept = 0;
    }

    pub(crate) fn disconnected(&mut self, now: Instant) {
        // A stranger who said nothing does not make the time begin again.
        if self.last_message.take().is_some() {
            self.lost = Some(now);
            self.kept = true;
        }
        self.state = match self.lost.filter(|_| self.kept) {
            Some(since) => SourceState::Stale { since },
            None => SourceState::Disconnected,
        };
    }

    pub(crate) fn heard(&mut self, messages: &[Message], now: Instant) {
        self.last_message = Some(now);
        messages.iter().for_each(|message| self.traits.observe(message));
    }

    /// Whether this zebra is of the generation that crashes when it replays a router MAC.
    pub(crate) fn is_fragile(&self) -> bool {
        self.traits.generation() == Generation::BeforeFrr9
    }

    /// When what is unconfirmed is to be swept if nothing else is heard: a replay is taken for
    /// finished then, or zebra has been away for longer than what it said is kept.
    pub(crate) fn sweep_at(&self, stale_time: Duration) -> Option<Instant> {
        match (self.state, self.last_message) {
            (SourceState::Live | SourceState::Off, _) => None,
            (SourceState::Syncing, Some(last)) => Some(last + QUIET),
            _ => self.lost.filter(|_| self.kept).map(|lost| lost + stale_time),
        }
    }

    /// Whether zebra is here and says again what it knows.
    pub(crate) fn repeats(&self) -> bool {
        self.state == SourceState::Syncing && self.last_message.is_some()
    }

    /// So many entries were swept. Says whether that was because zebra is here and did not repeat
    /// them.
    pub(crate) fn swept(&mut self, entries: usize) -> bool {
        self.kept = false;
        let repeats = self.repeats();
        if repeats {
            self.lost = None;
            self.swept = entries;
            self.state = SourceState::Live;
        } else if self.state != SourceState::Syncing {
            self.state = SourceState::Disconnected;
        }
        repeats
    }

    /// Since when zebra has been away, where that is so long that nothing is kept of what it said.
    pub(crate) fn forgotten(&self) -> Option<Instant> {
        self.lost.filter(|_| !self.kept && self.last_message.is_none())
    }
}
