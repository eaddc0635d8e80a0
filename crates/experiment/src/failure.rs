//! What fails or changes during a run.

use std::time::Duration;

use quantity::NumberOrText;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::circuits::{Circuits, Direction};
use crate::units::{LinkEnd, Name, Time};

/// When a failure begins by default, after the start of the traffic.
const AT: Duration = Duration::from_secs(1);
/// The default limit in seconds.
const LIMIT: u32 = 60;

/// A failure, or a change of circuits, while traffic flows.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Failure {
    /// What happens.
    pub kind: FailureKind,
    /// When it begins, after the start of the traffic. Default: 1 s.
    pub at: Option<Time>,
    /// How long it lasts. Default: until traffic flows again without it, at most `limit`. FRR is
    /// started again at once by default.
    #[serde(rename = "for")]
    pub lasts: Option<Time>,
    /// The maximum number of seconds, or time with its unit, from the last failure, or its end, until
    /// traffic must flow again. Default: 60.
    #[serde(default = "limit", deserialize_with = "quantity::whole_seconds")]
    #[schemars(with = "NumberOrText", extend("minimum" = 1, "maximum" = 600))]
    pub limit: u32,
    /// An end of the link of `silent`, `carrier` and `circuits`, as `NODE:INTERFACE`. Default: of
    /// the tier with the most links, the link with the highest load; all circuits for `circuits`.
    pub link: Option<LinkEnd>,
    /// The node of `router`, `frr` and `vtepd`. Default: the router that sends to the link with the
    /// highest load, and for `vtepd` the sending leaf.
    pub node: Option<Name>,
    /// The direction of `circuits`, seen from the end in `link`. Default: both.
    #[serde(default)]
    pub direction: Direction,
    /// The settings of `circuits`. What is missing stays.
    #[serde(default)]
    pub circuits: Circuits,
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// A circuit forwards nothing in either direction, and both routers keep their carrier.
    Silent,
    /// A link is cut, and both ends lose their carrier.
    Carrier,
    /// A router loses its power: its FRR is killed, and its links lose their carrier.
    Router,
    /// The FRR of a router is ended and started again.
    Frr,
    /// vtepd is killed on a leaf. Kernel VXLAN takes over.
    Vtepd,
    /// Delay, jitter, loss or rate of circuits change. Other circuits are not disturbed.
    Circuits,
}

impl Failure {
    /// When it begins, after the start of the traffic.
    #[must_use]
    pub fn at(&self) -> Duration {
        self.at.as_ref().map_or(AT, Time::duration)
    }

    /// When it ends, after the start of the traffic; `None` if it lasts until the traffic flows
    /// again.
    #[must_use]
    pub fn until(&self) -> Option<Duration> {
        let lasts = match (self.kind, &self.lasts) {
            (_, Some(time)) => time.duration(),
            (FailureKind::Frr, None) => Duration::ZERO,
            (_, None) => return None,
        };
        Some(self.at() + lasts)
    }

    /// What is wrong with the keys together.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        use FailureKind::{Carrier, Circuits, Frr, Router, Silent, Vtepd};
        if self.link.is_some() && !matches!(self.kind, Silent | Carrier | Circuits) {
            return Err("'link' is for the failures silent, carrier and circuits: use 'node'");
        }
        if self.node.is_some() && !matches!(self.kind, Router | Frr | Vtepd) {
            return Err("'node' is for the failures router, frr and vtepd: use 'link'");
        }
        if self.direction != Direction::Both && self.link.is_none() {
            return Err("'direction' needs 'link', the end that it is seen from");
        }
        if (self.kind == Circuits) == self.circuits.is_empty() {
            return Err(
                "the failure 'circuits', and no other, needs settings of circuits, such as \
                        circuits = { loss = 1 }",
            );
        }
        Ok(())
    }
}

const fn limit() -> u32 {
    LIMIT
}
