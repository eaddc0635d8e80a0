//! Whether a packet filter of this network namespace could match the VXLAN packets of a VNI.
//!
//! Redirected packets and packets that workers send do not pass the netfilter hooks. A VNI
//! therefore stays with the kernel unless each rule provably does not match its packets, or only
//! accepts or counts them. (Counters of such a rule do not count what vtepd forwards, and
//! connection tracking does not see it.)

use std::collections::HashMap;
use std::net::IpAddr;
use std::slice;

use super::Packets;
use crate::rules::{BaseChain, Effect, Field, PacketRule, RuleChain, RuleHook, Test};

/// `IPPROTO_UDP`, `NFPROTO_IPV4` and `ETH_P_IP`.
const UDP: u32 = 17;
const IPV4: u32 = 2;
const ETHERTYPE_IPV4: u32 = 0x0800;

/// The packet filter rules of a network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuleSet {
    chains: Vec<RuleChain>,
    /// The index of each chain in `chains`, by family, table and name.
    index: HashMap<(&'static str, String, String), usize>,
    /// Why not all rules could be read. Unread rules might match.
    unread: Option<String>,
    may_read_marks: bool,
}

/// Whether packets pass a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    Never,
    Maybe,
    Always,
}

/// The effect of a chain on the packets.
#[derive(Debug, Clone)]
enum Outcome {
    /// All are accepted.
    Accepted,
    /// They reach its end, or some are accepted.
    Continues,
    /// A rule with another effect may match some: the rule, as a clause.
    Affected(String),
}

impl RuleSet {
    /// The packet filters with these chains. `unread` is why not all rules could be read, as a
    /// clause.
    #[must_use]
    pub fn new(mut chains: Vec<RuleChain>, unread: Option<String>) -> Self {
        for chain in &mut chains {
            chain.rules.retain(|rule| rule.effect != Effect::Nothing && concerns_vxlan(rule));
        }
        let key = |chain: &RuleChain| (chain.family, chain.table.clone(), chain.name.clone());
        let index = chains.iter().enumerate().map(|(index, chain)| (key(chain), index)).collect();
        // Whatever other tests a rule has: of a VNI that the kernel forwards, it is not always known
        // which packets it sends.
        let reads =
            |rule: &PacketRule| rule.effect == Effect::Other || rule.tests.contains(&Test::Unknown);
        let may_read_marks =
            unread.is_some() || chains.iter().flat_map(|chain| &chain.rules).any(reads);
        Self { chains, index, unread, may_read_marks }
    }

    /// Whether there are no rules that could match.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.unread.is_none()
    }

    /// Whether a rule may look at the mark of a VXLAN packet.
    #[must_use]
    pub const fn may_read_marks(&self) -> bool {
        self.may_read_marks
    }

    /// The rule that could match the packets of a VNI, as a clause.
    #[must_use]
    pub fn affects(&self, packets: &Packets<'_>) -> Option<String> {
        if let Some(unread) = &self.unread {
            return Some(unread.clone());
        }
        let mut known = HashMap::new();
        self.chains.iter().find_map(|chain| {
            let base = chain.base.as_ref()?;
            // Without an uplink nothing is redirected, and without a remote VTEP nothing is sent.
            let bound = |name: &String| base.devices.iter().any(|device| device.fits(name));
            let passes = base.devices.is_empty() || packets.uplinks.values().any(bound);
            let sends = base.hook.is_input() || !packets.remotes.is_empty();
            if packets.uplinks.is_empty() || !passes || !sends {
                return None;
            }
            match self.follow(chain, base, packets, &mut known) {
                Outcome::Affected(rule) => Some(rule),
                Outcome::Continues if base.drops => Some(format!(
                    "the policy 'drop' of chain '{}' may apply to its VXLAN packets",
                    place(chain, base)
                )),
                Outcome::Accepted | Outcome::Continues => None,
            }
        })
    }

    /// The effect of a chain on the packets. `known` has the chains that were followed before. The
    /// kernel refuses rules by which a chain calls itself.
    fn follow<'a>(
        &'a self,
        chain: &'a RuleChain,
        base: &BaseChain,
        packets: &Packets<'_>,
        known: &mut HashMap<(RuleHook, usize), Outcome>,
    ) -> Outcome {
        // Whether some packets may have left the chain before its end.
        let mut left = false;
        for rule in &chain.rules {
            let found = rule.tests.iter().map(|test| packets.matches(test, base.hook)).min();
            let found = found.unwrap_or(Match::Always);
            if found == Match::Never {
                continue;
            }
            let all = found == Match::Always && !left;
            let affected = || Outcome::Affected(name(chain, rule, base));
            let (target, goto) = match &rule.effect {
                Effect::Nothing => continue,
                Effect::Other => return affected(),
                Effect::Accept if all => return Outcome::Accepted,
                Effect::Accept => continue,
                Effect::Return if found == Match::Always => return Outcome::Continues,
                Effect::Return => {
                    left = true;
                    continue;
                }
                Effect::Jump(target) => (target, false),
                Effect::Goto(target) => (target, true),
            };
            let key = (chain.family, chain.table.clone(), target.clone());
            let Some((index, called)) =
                self.index.get(&key).and_then(|i| Some((*i, self.chains.get(*i)?)))
            else {
                return affected();
            };
            let outcome = match known.get(&(base.hook, index)) {
                Some(outcome) => outcome.clone(),
                None => {
                    // If a chain called itself all the same, this entry would end the recursion.
                    known.insert((base.hook, index), affected());
                    let outcome = self.follow(called, base, packets, known);
                    known.insert((base.hook, index), outcome.clone());
                    outcome
                }
            };
            match outcome {
                Outcome::Accepted if all => return Outcome::Accepted,
                Outcome::Accepted => {}
                Outcome::Continues if goto && found == Match::Always => return Outcome::Continues,
                Outcome::Continues => left |= goto,
                affected @ Outcome::Affected(_) => return affected,
            }
        }
        Outcome::Continues
    }
}

/// Whether a rule could match any VXLAN packet over IPv4.
fn concerns_vxlan(rule: &PacketRule) -> bool {
    rule.tests.iter().all(|test| match test {
        Test::Field { field: Field::Protocol, .. } => {
            passes(test, slice::from_ref(&UDP)) != Match::Never
        }
        Test::Field { field: Field::Family, .. } => {
            passes(test, slice::from_ref(&IPV4)) != Match::Never
        }
        Test::Field { field: Field::EtherType, .. } => {
            passes(test, slice::from_ref(&ETHERTYPE_IPV4)) != Match::Never
        }
        _ => true,
    })
}

fn place(chain: &RuleChain, base: &BaseChain) -> String {
    format!("{} {} {} ({})", chain.family, chain.table, chain.name, base.hook.name())
}

fn name(chain: &RuleChain, rule: &PacketRule, base: &BaseChain) -> String {
    let what = if chain.family == "iptables" { "rule" } else { "the rule with handle" };
    format!("{what} {} of chain '{}' may match its VXLAN packets", rule.handle, place(chain, base))
}

/// Whether the values of a field pass a test for it.
fn passes(test: &Test, values: &[u32]) -> Match {
    let Test::Field { mask, low, high, negated, .. } = test else { return Match::Maybe };
    all_or_none(values.iter().map(|value| (*low..=*high).contains(&(value & mask)) != *negated))
}

impl Packets<'_> {
    fn matches(&self, test: &Test, hook: RuleHook) -> Match {
        match test {
            Test::Unknown => Match::Maybe,
            Test::Interface { received, .. } | Test::InterfaceIndex { received, .. }
                if *received != hook.is_input() =>
            {
                Match::Maybe
            }
            Test::Interface { pattern, negated, .. } => {
                all_or_none(self.uplinks.values().map(|name| pattern.fits(name) != *negated))
            }
            Test::InterfaceIndex { ifindex, negated, .. } => {
                all_or_none(self.uplinks.keys().map(|uplink| (uplink == ifindex) != *negated))
            }
            Test::Field { field, .. } => {
                let remotes = || self.remotes.iter().filter_map(ipv4_bits).collect::<Vec<_>>();
                match (field, hook.is_input()) {
                    (Field::Source, true) if !self.only_remotes => Match::Maybe,
                    (Field::SourcePort, _) => Match::Maybe,
                    (Field::Source, false) | (Field::Destination, true) => {
                        passes(test, ipv4_bits(&self.local).as_slice())
                    }
                    (Field::Source, true) | (Field::Destination, false) => passes(test, &remotes()),
                    (Field::Protocol, _) => passes(test, &[UDP]),
                    (Field::Family, _) => passes(test, &[IPV4]),
                    (Field::EtherType, _) => passes(test, &[ETHERTYPE_IPV4]),
                    (Field::DestinationPort, _) => passes(test, &[u32::from(self.port)]),
                }
            }
        }
    }
}

/// The bits of an IPv4 address.
const fn ipv4_bits(address: &IpAddr) -> Option<u32> {
    match address {
        IpAddr::V4(address) => Some(address.to_bits()),
        IpAddr::V6(_) => None,
    }
}

fn all_or_none(mut passed: impl Iterator<Item = bool>) -> Match {
    let Some(first) = passed.next() else { return Match::Maybe };
    match (first, passed.all(|other| other == first)) {
        (true, true) => Match::Always,
        (false, true) => Match::Never,
        (_, false) => Match::Maybe,
    }
}
