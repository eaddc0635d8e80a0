//! The network between sites: what a policy for paths and the recovery from loss leave of a link.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of a RoCE packet's payload.
const PACKET: f64 = 4096.0;

/// How packets are placed on the paths between sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Each queue pair takes a random path.
    Ecmp,
    /// Each queue pair is placed on a known path.
    QpPin,
    /// Each packet takes a path of its own.
    Spray,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ecmp => "ecmp",
            Self::QpPin => "qp-pin",
            Self::Spray => "spray",
        })
    }
}

/// What a receiver does with packets behind a lost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// It drops them; the sender repeats all.
    #[default]
    GoBackN,
    /// It keeps them; the sender repeats what is lost.
    Selective,
}

/// A technology of the network: a policy, and the queue pairs between two GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Technology {
    /// The policy.
    pub policy: Policy,
    /// Queue pairs between two GPUs.
    pub queue_pairs: u32,
}

impl fmt::Display for Technology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.policy)?;
        if self.policy == Policy::Spray { Ok(()) } else { write!(f, " Q{}", self.queue_pairs) }
    }
}

/// How evenly a technology loads the paths. Measured by `lab run` or `lab sim`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Balance {
    /// The technology.
    #[serde(flatten)]
    pub technology: Technology,
    /// The load of the fullest path over the mean (MMR): 1 is even.
    pub imbalance: f64,
}

/// The link from each site to each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Link {
    /// Bytes in a second, in each direction, of all paths together.
    pub bandwidth: f64,
    /// By how much the hosts' rates exceed it. 1 if `bandwidth` is what hosts can use.
    #[serde(default = "one")]
    pub oversubscription: f64,
    /// Seconds in one direction.
    pub latency: f64,
    /// The share of packets that are lost.
    #[serde(default)]
    pub loss: f64,
    /// What receivers do with packets behind a lost one.
    #[serde(default)]
    pub recovery: Recovery,
}

fn one() -> f64 {
    1.0
}

/// What messages meet on the way to another site.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wire {
    /// Bytes in a second of all messages together.
    pub bandwidth: f64,
    /// Seconds from the last byte sent to its arrival.
    pub latency: f64,
}

impl Wire {
    /// A link that costs nothing.
    pub(crate) const IDEAL: Self = Self { bandwidth: f64::INFINITY, latency: 0.0 };
}

impl Link {
    /// What a technology makes of the link. `rate` is a GPU's rate to other nodes.
    ///
    /// Bandwidth / oversubscription / imbalance: the fullest path ends last. Loss p leaves 1 − p of
    /// it; with go-back-N, each loss also repeats what a queue pair has under way (its rate × the
    /// round-trip time). Sprayed packets arrive out of order, so spraying needs a receiver that
    /// keeps them.
    #[must_use]
    pub fn wire(&self, balance: &Balance, rate: f64) -> Wire {
        let shared = self.bandwidth / self.oversubscription.max(1.0);
        let even = shared / balance.imbalance.max(1.0);
        let queue_pairs = f64::from(balance.technology.queue_pairs.max(1));
        let repeats =
            self.recovery == Recovery::GoBackN && balance.technology.policy != Policy::Spray;
        let under_way =
            if repeats { rate / queue_pairs * 2.0 * self.latency / PACKET } else { 0.0 };
        let goodput = (1.0 - self.loss) / (1.0 + self.loss * under_way);
        Wire { bandwidth: even * goodput, latency: self.latency }
    }
}

/// The sites, and the links between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sites {
    /// GPUs of each site.
    pub gpus: Vec<u32>,
    /// The link between each two of them.
    pub link: Link,
}

impl Sites {
    /// The number of GPUs.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.gpus.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_divided_and_repeats_cost() {
        let link = Link {
            bandwidth: 40e9,
            oversubscription: 2.0,
            latency: 5e-3,
            loss: 0.01,
            recovery: Recovery::GoBackN,
        };
        let balance =
            |policy| Balance { technology: Technology { policy, queue_pairs: 10 }, imbalance: 2.0 };
        // 40.96 GB/s of 10 queue pairs over 10 ms: 10,000 packets are under way in each.
        let repeats = 0.99 / (1.0 + 0.01 * 10_000.0);
        let go_back_n = link.wire(&balance(Policy::Ecmp), 40.96e9);
        assert!((go_back_n.bandwidth / (10e9 * repeats) - 1.0).abs() < 1e-9, "{go_back_n:?}");
        let sprayed = link.wire(&balance(Policy::Spray), 40.96e9);
        assert!((sprayed.bandwidth / 9.9e9 - 1.0).abs() < 1e-9, "{sprayed:?}");
        let selective = Link { recovery: Recovery::Selective, ..link };
        assert_eq!(selective.wire(&balance(Policy::Ecmp), 40.96e9), sprayed);
    }
}
