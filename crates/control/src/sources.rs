//! The sources and their states.

use std::fmt;
use std::time::Instant;

pub(crate) mod fdb;
pub(crate) mod fpm_session;
pub(crate) mod kernel;
pub(crate) mod resync;
pub mod standalone;
pub(crate) mod zebra;

/// The state of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SourceState {
    /// It is switched off.
    Off,
    /// It is not connected, and nothing that it reported is kept.
    #[default]
    Disconnected,
    /// It is connected, and a dump or a replay is in progress.
    Syncing,
    /// It has reported everything, and reports every change.
    Live,
    /// It is disconnected, or changes were lost. What it reported is kept until newer facts are
    /// known; for zebra at most for [`StaleTime`](crate::settings::StaleTime).
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
