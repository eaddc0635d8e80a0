//! The properties of the circuits of `lab wan`.

use quantity::NumberOrText;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::units::{LinkEnd, Percent, Time};

/// The circuits of `lab wan`. What is missing is as in the topology.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Circuits {
    /// The delay in each direction.
    pub delay: Option<Time>,
    /// The maximum deviation from the delay.
    pub jitter: Option<Time>,
    /// The loss in percent, 0 to 100.
    pub loss: Option<Percent>,
    /// The rate in kilobits per second, or with its unit (`"25Mbit"`); 0 for no limit.
    #[serde(deserialize_with = "quantity::some_kilobits")]
    #[schemars(with = "Option<NumberOrText>")]
    pub rate: Option<u64>,
    /// The queue of the rate limit in bytes, or with its unit (`"64KiB"`).
    #[serde(deserialize_with = "quantity::some_bytes")]
    #[schemars(with = "Option<NumberOrText>")]
    pub queue: Option<u64>,
}

/// The directions of a circuit, from an end of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Both.
    #[default]
    Both,
    /// Frames that the node of the end sends.
    Out,
    /// Frames that it receives.
    In,
}

/// The properties of one circuit, or of one of its directions.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Circuit {
    /// An end of the link, as `NODE:INTERFACE`.
    pub link: LinkEnd,
    /// The direction. Default: both.
    #[serde(default)]
    pub direction: Direction,
    /// What differs from the other circuits.
    pub circuits: Circuits,
}

impl Circuits {
    /// The options of `lab wan`. Settings in `self` win over those in `other`.
    #[must_use]
    pub fn options(&self, other: &Self) -> Vec<(&'static str, String)> {
        let time = |time: &Time| time.as_str().to_owned();
        let number = |own: Option<u64>, other: Option<u64>| own.or(other).map(|n| n.to_string());
        let options = [
            ("--delay", self.delay.as_ref().or(other.delay.as_ref()).map(time)),
            ("--jitter", self.jitter.as_ref().or(other.jitter.as_ref()).map(time)),
            ("--loss", self.loss.or(other.loss).map(|loss| loss.get().to_string())),
            ("--rate", number(self.rate, other.rate)),
            ("--queue", number(self.queue, other.queue)),
        ];
        options.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
