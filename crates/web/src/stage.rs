//! What is shown, for a program whose fabrics come and go, as those of an experiment.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::hub::Hub;
use crate::model::Fabric;

/// The fabric that is shown, and how many were shown before it.
pub(crate) type Shown = (u64, Arc<Fabric>);

/// Changes what a [`Server`](crate::Server) shows, from any thread. Pages follow.
#[derive(Debug, Clone)]
pub struct Stage {
    shown: watch::Sender<Shown>,
    hub: Arc<Hub>,
}

impl Stage {
    pub(crate) const fn new(shown: watch::Sender<Shown>, hub: Arc<Hub>) -> Self {
        Self { shown, hub }
    }

    /// Shows another fabric. It may go down while it is shown.
    pub fn fabric(&self, fabric: Fabric) {
        let next = self.shown.borrow().0 + 1;
        self.shown.send_replace((next, Arc::new(fabric)));
        self.hub.publish([("fabric", json!(next))]);
    }

    /// Shows an experiment. Members that are null are as if they were absent.
    pub fn experiment(&self, experiment: Value) {
        self.hub.publish([("experiment", experiment)]);
    }

    /// Shows what is done at present.
    pub fn progress(&self, text: &str) {
        self.hub.publish([("progress", json!(text))]);
    }
}
