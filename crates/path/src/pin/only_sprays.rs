//! Placement that only sprays.

use std::sync::Arc;
use std::time::Instant;

use super::{Answer, Before, Pinning, Pins, Usage};
use crate::choice::{Flow, Remote};
use crate::path_id::PathId;
use crate::policy::Policy;
use crate::spraying::Spraying;
use crate::version::Version;

/// Places no queue pair.
#[derive(Debug)]
struct OnlySprays {
    spraying: Arc<Spraying>,
    usage: Usage,
}

impl Pinning for OnlySprays {
    fn pin(&self, _: &Flow, _: &Remote<'_>, _: PathId, _: Before) -> Answer {
        Answer::Hashed
    }

    fn version(&self) -> Version<Policy> {
        Version::NONE
    }

    fn usage(&self) -> &Usage {
        &self.usage
    }

    fn spraying(&self) -> Option<Arc<Spraying>> {
        Some(Arc::clone(&self.spraying))
    }
}

impl Pins {
    /// Packets are sprayed, and queue pairs that are not have their path by `qp-hash`. Times count
    /// from `start`.
    #[must_use]
    pub fn only_spraying(spraying: Arc<Spraying>, start: Instant) -> Self {
        Self::new(Some(Arc::new(OnlySprays { spraying, usage: Usage::new(0, start) })))
    }
}
