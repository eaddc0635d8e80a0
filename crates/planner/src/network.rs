//! The network between sites: what a policy for paths and the recovery from loss leave of a link.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::normal;

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
        self.serialize(f)
    }
}

/// What a receiver does with packets behind a lost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// It drops them; the sender repeats all. With spraying, it gets packets in order: the leaf before
    /// it restores their order.
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

/// Up to so many queue pairs, the normal distribution is too far from theirs.
const FEW: f64 = 64.0;

/// How evenly a technology loads the paths.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Balance {
    /// The technology.
    #[serde(flatten)]
    pub technology: Technology,
    /// The load of the most loaded path over the mean (MMR), as measured: 1 is even. Default: what
    /// is expected of the queue pairs that share the paths ([`Technology::imbalance`]).
    pub imbalance: Option<f64>,
}

impl Technology {
    /// The expected MMR of so many equal queue pairs on equal paths. Even with spraying; as even as
    /// whole queue pairs allow if each is on a known path. With random paths, up to 11 % below the exact
    /// value, which depends on all paths together.
    #[must_use]
    pub fn imbalance(&self, queue_pairs: f64, paths: u32) -> f64 {
        let paths = f64::from(paths.max(1));
        let whole = (queue_pairs / paths).ceil() * paths / queue_pairs;
        match self.policy {
            Policy::Spray => 1.0,
            Policy::QpPin => whole,
            Policy::Ecmp => {
                let random = if queue_pairs <= FEW {
                    fullest_of_few(queue_pairs, paths) * paths / queue_pairs
                } else {
                    // The maximum of as many normal deviates as there are paths.
                    1.0 + normal::maximum(paths) * (paths / queue_pairs).sqrt()
                };
                random.max(whole).min(paths)
            }
        }
    }
}

/// The expected number of queue pairs on the most loaded of random paths, from the binomial
/// distribution of each, as if paths were independent.
fn fullest_of_few(queue_pairs: f64, paths: f64) -> f64 {
    let share = 1.0 / paths;
    let mut exactly = (1.0 - share).powf(queue_pairs);
    let (mut at_most, mut on, mut expected) = (exactly, 0.0, 0.0);
    // The most loaded one has at least the mean, and a whole number.
    let least = (queue_pairs * share).ceil();
    while on < queue_pairs {
        let more = 1.0 - at_most.min(1.0).powf(paths);
        expected += if on < least { 1.0 } else { more };
        if on >= least && more < 1e-6 {
            break;
        }
        exactly *= (queue_pairs - on) / (on + 1.0) * share / (1.0 - share);
        on += 1.0;
        at_most += exactly;
    }
    expected
}

/// The link from each site to each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Link {
    /// Bytes in a second on the wire, in each direction, of all paths together.
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
    /// Paths that share the bandwidth equally.
    #[serde(default = "four")]
    pub paths: u32,
    /// Bytes of payload of a packet.
    #[serde(default = "packet")]
    pub packet: u32,
    /// Bytes that a packet occupies on the link in addition.
    #[serde(default = "headers")]
    pub headers: u32,
}

fn four() -> u32 {
    4
}

/// The largest payload of a RoCE packet.
#[must_use]
pub fn packet() -> u32 {
    4096
}

/// The headers of a RoCE packet in VXLAN over Ethernet: preamble, frame check sequence and gap of
/// the link 24, outer Ethernet, IPv4 and UDP 42, VXLAN 8, inner Ethernet, IPv4 and UDP 42, base
/// transport header 12, invariant CRC 4.
#[must_use]
pub fn headers() -> u32 {
    24 + 42 + 8 + 42 + 12 + 4
}

fn one() -> f64 {
    1.0
}

/// What messages meet on the way to another site.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wire {
    /// Bytes of payload in a second of all messages together.
    pub bandwidth: f64,
    /// Seconds from the last byte sent to its arrival.
    pub latency: f64,
}

impl Wire {
    /// A link that costs nothing.
    pub(crate) const IDEAL: Self = Self { bandwidth: f64::INFINITY, latency: 0.0 };
}

impl Link {
    /// What a technology makes of the link, if so many pairs of GPUs send over it at a time. `rate`
    /// is a GPU's rate to other nodes.
    ///
    /// Bandwidth / oversubscription / imbalance: the most loaded path ends last. All queue pairs
    /// that share the paths count for the imbalance. Packets are payload and headers. Loss p leaves
    /// 1 − p of the bandwidth; with go-back-N, each loss also repeats what a queue pair has under
    /// way (its rate × the round-trip time).
    #[must_use]
    pub fn wire(&self, balance: &Balance, pairs: f64, rate: f64) -> Wire {
        let technology = balance.technology;
        let queue_pairs = f64::from(technology.queue_pairs.max(1));
        let expected = || technology.imbalance(pairs.max(1.0) * queue_pairs, self.paths);
        let shared = self.bandwidth / self.oversubscription.max(1.0);
        let even = shared / balance.imbalance.unwrap_or_else(expected).max(1.0);
        let (payload, headers) = (f64::from(self.packet.max(1)), f64::from(self.headers));
        let packet = payload + headers;
        let under_way = match self.recovery {
            Recovery::GoBackN => rate / queue_pairs * 2.0 * self.latency / packet,
            Recovery::Selective => 0.0,
        };
        let goodput = (1.0 - self.loss) / (1.0 + self.loss * under_way);
        Wire { bandwidth: even * goodput * (payload / packet), latency: self.latency }
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
    /// The number of GPUs; the largest number that there is if they are more.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.gpus.iter().copied().fold(0, u32::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        let text =
            "bandwidth = 40e9\noversubscription = 2.0\nlatency = 5e-3\nloss = 0.01\nheaders = 0";
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_link_is_divided_and_repeats_cost() {
        let link = link();
        let balance = |policy, queue_pairs| Balance {
            technology: Technology { policy, queue_pairs },
            imbalance: Some(2.0),
        };
        let is = |wire: Wire, expected: f64| {
            assert!((wire.bandwidth / expected - 1.0).abs() < 1e-9, "{wire:?} {expected}");
        };
        // 40.96 GB/s of 10 queue pairs over 10 ms: 10,000 packets are under way in each.
        is(link.wire(&balance(Policy::Ecmp, 10), 1.0, 40.96e9), 9.9e9 / 101.0);
        // A sprayed queue pair has as many under way as its rate needs, and repeats them as well.
        is(link.wire(&balance(Policy::Spray, 1), 1.0, 40.96e9), 9.9e9 / 1001.0);
        let selective = Link { recovery: Recovery::Selective, ..link };
        is(selective.wire(&balance(Policy::Ecmp, 10), 1.0, 40.96e9), 9.9e9);
        is(selective.wire(&balance(Policy::Spray, 1), 1.0, 40.96e9), 9.9e9);
    }

    /// Headers take their part of the link, and of what is under way.
    #[test]
    fn a_packet_is_payload_and_headers() {
        let technology = Technology { policy: Policy::Spray, queue_pairs: 1 };
        let even = Balance { technology, imbalance: None };
        let link = Link { oversubscription: 1.0, loss: 0.0, packet: 1024, headers: 256, ..link() };
        let wire = link.wire(&even, 1.0, 40e9);
        assert!((wire.bandwidth / (40e9 * 0.8) - 1.0).abs() < 1e-12, "{wire:?}");
        // 12.8 GB/s over 10 ms: 100,000 packets of 1280 bytes, each of which a loss repeats.
        let lossy = Link { loss: 1e-5, ..link.clone() }.wire(&even, 1.0, 12.8e9);
        let expected = 40e9 * 0.8 * (1.0 - 1e-5) / 2.0;
        assert!((lossy.bandwidth / expected - 1.0).abs() < 1e-9, "{lossy:?} {expected}");
        // RoCE's largest packet in VXLAN: 97 % of the wire is payload.
        let share = f64::from(packet()) / f64::from(packet() + headers());
        assert_eq!((headers(), (1000.0 * share).round()), (132, 969.0));
    }

    /// One queue pair is on one of four paths; those of 256 pairs of GPUs fill all of them.
    #[test]
    fn all_queue_pairs_that_share_the_paths_count() {
        let link = Link { loss: 0.0, oversubscription: 1.0, ..link() };
        let imbalance = |policy, queue_pairs, pairs| {
            let technology = Technology { policy, queue_pairs };
            let wire = link.wire(&Balance { technology, imbalance: None }, pairs, 1e9);
            link.bandwidth / wire.bandwidth
        };
        for policy in [Policy::Ecmp, Policy::QpPin] {
            assert_eq!(imbalance(policy, 1, 1.0), 4.0);
            assert_eq!(imbalance(policy, 4, 16.0), imbalance(policy, 1, 64.0));
        }
        assert_eq!(imbalance(Policy::QpPin, 1, 256.0), 1.0);
        assert!((1.10..1.15).contains(&imbalance(Policy::Ecmp, 1, 256.0)));
        assert_eq!(imbalance(Policy::Spray, 1, 1.0), 1.0);
    }
}
