//! The sources of facts, and how far each is to be believed.

use std::fmt;
use std::time::Instant;

/// What is known of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourceState {
    /// It is switched off: nobody waits for it.
    Off,
    /// It is not there, and nothing is kept of what it may have said.
    #[default]
    Disconnected,
    /// It is there and tells what it knows: a dump or a replay is going on.
    Syncing,
    /// It has told everything and tells every change.
    Live,
    /// It is gone, or has lost changes. What it said before is kept until something better is
    /// known; zebra's for the settings' [`StaleTime`](crate::settings::StaleTime) at most.
    Stale {
        /// Since when.
        since: Instant,
    },
}

impl SourceState {
    /// The state's name, as metrics and the command line show it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Disconnected => "disconnected",
            Self::Syncing => "syncing",
            Self::Live => "live",
            Self::Stale { .. } => "stale",
        }
    }
}

impl fmt::Display for SourceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
