//! What is planned for: a model, machines at sites, and the batch of an iteration.

use serde::{Deserialize, Serialize};

use crate::cost;
use crate::machine::Machine;
use crate::model::Model;
use crate::network::{Balance, Sites, Wire};
use crate::plan::Plan;

/// What is planned for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Job {
    /// The model.
    pub model: Model,
    /// The machines, all of one kind.
    pub machine: Machine,
    /// Where they are.
    pub sites: Sites,
    /// Sequences of an iteration.
    pub batch: u32,
    /// Whether gradients of a layer are exchanged while those of the next are computed.
    #[serde(default = "yes")]
    pub overlap: bool,
    /// How evenly each technology loads the paths between sites.
    pub balance: Vec<Balance>,
}

fn yes() -> bool {
    true
}

impl Job {
    /// What a plan's technology makes of the link between sites. `None` if its balance is not known.
    #[must_use]
    pub fn wire(&self, plan: &Plan) -> Option<Wire> {
        let known = |balance: &&Balance| balance.technology == plan.technology;
        if self.sites.gpus.len() < 2 {
            return Some(Wire::IDEAL);
        }
        Some(self.wire_with(self.balance.iter().find(known)?, plan))
    }

    /// What the technology of a balance makes of the link between sites, with the rest of a plan.
    pub(crate) fn wire_with(&self, balance: &Balance, plan: &Plan) -> Wire {
        self.sites.link.wire(balance, cost::pairs(self, plan), self.machine.network_link)
    }
}
