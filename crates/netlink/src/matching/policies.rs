//! Policy routing and IPsec: what the kernel would apply to VXLAN packets and vtepd does not.
//!
//! A rule or policy is ignored only if it certainly does not match. Received packets for this host
//! are delivered by the rule for table local. The rules behind it therefore matter for sent packets
//! only. By default it is the first rule. Where VRFs are set up, the rule for them comes first
//! (`Documentation/networking/vrf.rst`).

use std::fmt;
use std::net::IpAddr;

use super::{Packets, contains};
use crate::message::{IpsecDirection, IpsecPolicy, Rule};

/// `RT_TABLE_LOCAL`.
const LOCAL: u32 = 255;
/// `IPPROTO_UDP`.
const UDP: u8 = 17;

/// The routing rules and IPsec policies of the namespace.
#[derive(Debug, Default)]
pub struct Policies {
    /// In the kernel's order; `None` until they were read.
    rules: Option<Vec<Rule>>,
    /// Whether the IPv4 rules are the default rules of a new namespace.
    default_rules: bool,
    /// The same for IPv6, also if there are none.
    default_ipv6_rules: bool,
    /// Whether the IPv4 rules are the default rules, in any place, and those for VRFs.
    vrf_rules: bool,
    /// Whether there were other IPv4 rules than the default ones. The kernel never forgets that
    /// (`fib_has_custom_rules`, net/ipv4/fib_rules.c).
    had_other_rules: bool,
    ipsec: Vec<IpsecPolicy>,
    /// Whether IPsec drops packets that no policy matches.
    ipsec_blocks: bool,
}

impl Policies {
    /// Sets the current rules. Returns whether any changed.
    pub fn set_rules(&mut self, rules: Vec<Rule>) -> bool {
        let changed = self.rules.as_ref().is_none_or(|known| *known != rules);
        let (ipv4, ipv6): (Vec<&Rule>, Vec<&Rule>) =
            rules.iter().partition(|rule| rule.from.0.is_ipv4());
        self.default_rules = ipv4.into_iter().eq(&Rule::defaults());
        self.had_other_rules |= !self.default_rules;
        self.default_ipv6_rules = ipv6.is_empty() || ipv6.into_iter().eq(&Rule::ipv6_defaults());
        let tables: Vec<Option<u32>> = ipv4_lookups(&rules).collect();
        self.vrf_rules = tables == Rule::defaults().map(|default| Some(default.table));
        self.rules = Some(rules);
        changed
    }

    /// Sets the current IPsec policies. Returns whether any changed.
    pub fn set_ipsec(&mut self, policies: Vec<IpsecPolicy>, blocks: bool) -> bool {
        let changed = (&self.ipsec, self.ipsec_blocks) != (&policies, blocks);
        (self.ipsec, self.ipsec_blocks) = (policies, blocks);
        changed
    }

    /// Whether packets of interfaces that are in no VRF are looked up by the default IPv4 rules.
    #[must_use]
    pub const fn has_default_rules(&self) -> bool {
        self.vrf_rules
    }

    /// Whether there were other IPv4 rules than the default ones at any time.
    #[must_use]
    pub const fn had_other_rules(&self) -> bool {
        self.had_other_rules
    }

    /// Whether there is any rule or policy that may match a tunnel's packets.
    #[must_use]
    pub const fn any(&self) -> bool {
        let by_default = self.default_rules && self.default_ipv6_rules;
        !by_default && self.rules.is_some() || !self.ipsec.is_empty() || self.ipsec_blocks
    }

    /// Why the kernel may route these packets differently than the default rules do: those that may
    /// match have to be the default rules, in their order.
    #[must_use]
    pub fn routing(&self, packets: &Packets<'_>) -> Option<String> {
        let rules = self.rules.as_ref()?;
        let (ipv4, ipv6) = (Rule::defaults(), Rule::ipv6_defaults());
        let defaults: &[Rule] = if packets.local.is_ipv4() { &ipv4 } else { &ipv6 };
        let mut missing = defaults.iter().peekable();
        let mut looked_up: Vec<u32> = Vec::new();
        for rule in rules.iter().filter(|rule| is_of_family(rule, packets.local)) {
            if let Some(default) = missing.next_if(|default| looks_all_up(rule, default.table)) {
                looked_up.push(default.table);
                continue;
            }
            let again = looked_up.iter().any(|table| looks_all_up(rule, *table));
            let received = !looked_up.contains(&LOCAL) && may_match_received(rule, packets);
            if !again && (received || may_match(rule, packets)) {
                return Some(format!("the routing rule '{}' may match", Text(rule)));
            }
        }
        missing.next().map(|default| format!("the routing rule '{}' is missing", Text(default)))
    }

    /// The IPsec policy that the kernel may apply to these packets.
    #[must_use]
    pub fn ipsec(&self, packets: &Packets<'_>) -> Option<String> {
        if self.ipsec_blocks {
            return Some("the default IPsec policy is 'block'".to_owned());
        }
        let policy = self.ipsec.iter().find(|policy| concerns(policy, packets))?;
        let direction = match policy.direction {
            IpsecDirection::In => "in",
            IpsecDirection::Out => "out",
        };
        let (source, destination) = (Prefix(policy.source), Prefix(policy.destination));
        let action = if policy.block { ", block" } else { "" };
        Some(format!(
            "the IPsec policy 'dir {direction} src {source} dst {destination}{action}' may match"
        ))
    }
}

/// Whether a rule looks up every packet in this table.
fn looks_all_up(rule: &Rule, table: u32) -> bool {
    let Rule { priority, from, to, .. } = *rule;
    from.1 == 0 && to.1 == 0 && *rule == Rule { priority, table, from, to, ..Rule::default() }
}

/// The tables in which the IPv4 rules look up packets that are in no VRF; `None` for a rule that
/// matches only some of them.
fn ipv4_lookups(rules: &[Rule]) -> impl Iterator<Item = Option<u32>> {
    let of_vrfs = |rule: &&Rule| rule.l3mdev && !rule.inverted;
    let others = rules.iter().filter(move |rule| rule.from.0.is_ipv4() && !of_vrfs(rule));
    others.map(|rule| Some(rule.table).filter(|table| looks_all_up(rule, *table)))
}

fn is_of_family(rule: &Rule, address: IpAddr) -> bool {
    rule.from.0.is_ipv4() == address.is_ipv4()
}

/// Whether a rule may match a packet that this host sends to a remote VTEP.
fn may_match(rule: &Rule, packets: &Packets<'_>) -> bool {
    if rule.inverted {
        return true;
    }
    // Sent packets belong to no VRF, because the socket is bound to no device.
    let is_sent = rule.input.as_ref().is_none_or(|input| input == "lo");
    is_sent
        && !rule.l3mdev
        && is_for_port(rule, packets)
        && contains(rule.from, packets.local)
        && packets.remotes.iter().any(|remote| contains(rule.to, *remote))
}

/// Whether a rule may match a packet that this host receives at an uplink.
fn may_match_received(rule: &Rule, packets: &Packets<'_>) -> bool {
    if rule.inverted {
        return true;
    }
    let is_received = rule.input.as_ref().is_none_or(|input| input != "lo");
    is_received
        && (!rule.l3mdev || packets.vrf)
        && is_for_port(rule, packets)
        && contains(rule.to, packets.local)
        && (!packets.only_remotes
            || packets.remotes.iter().any(|remote| contains(rule.from, *remote)))
}

/// Whether a rule may match UDP packets with the packets' destination port, of a socket that is bound
/// to no device.
fn is_for_port(rule: &Rule, packets: &Packets<'_>) -> bool {
    let port =
        rule.destination_ports.is_none_or(|(first, last)| (first..=last).contains(&packets.port));
    port && rule.output.is_none() && rule.protocol.is_none_or(|protocol| protocol == UDP)
}

/// Whether the kernel may transform or drop these packets because of an IPsec policy.
fn concerns(policy: &IpsecPolicy, packets: &Packets<'_>) -> bool {
    if !policy.block && !policy.transforms {
        return false;
    }
    let (port, mask) = policy.destination_port;
    if !matches!(policy.protocol, 0 | UDP) || (port ^ packets.port) & mask != 0 {
        return false;
    }
    match policy.direction {
        IpsecDirection::Out => {
            contains(policy.source, packets.local)
                && packets.remotes.iter().any(|remote| contains(policy.destination, *remote))
        }
        IpsecDirection::In => {
            contains(policy.destination, packets.local)
                && (!packets.only_remotes
                    || packets.remotes.iter().any(|remote| contains(policy.source, *remote)))
        }
    }
}

/// A prefix in the notation of `ip`.
struct Prefix((IpAddr, u8));

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            (_, 0) => f.write_str("all"),
            (address @ IpAddr::V4(_), 32) | (address, 128) => write!(f, "{address}"),
            (address, length) => write!(f, "{address}/{length}"),
        }
    }
}

/// A rule in the notation of `ip rule`.
struct Text<'a>(&'a Rule);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { priority, table, action, inverted, from, to, .. } = self.0;
        let not = if *inverted { "not " } else { "" };
        write!(f, "{priority}: {not}from {}", Prefix(*from))?;
        if to.1 != 0 {
            write!(f, " to {}", Prefix(*to))?;
        }
        for (word, name) in [("iif", &self.0.input), ("oif", &self.0.output)] {
            if let Some(name) = name {
                write!(f, " {word} {name}")?;
            }
        }
        if let Some(protocol) = self.0.protocol {
            write!(f, " ipproto {protocol}")?;
        }
        match self.0.destination_ports {
            Some((first, last)) if first == last => write!(f, " dport {first}")?,
            Some((first, last)) => write!(f, " dport {first}-{last}")?,
            None => {}
        }
        for other in &self.0.others {
            write!(f, " {other}")?;
        }
        match (action, table) {
            (1, 255) => f.write_str(" lookup local"),
            (1, 254) => f.write_str(" lookup main"),
            (1, 253) => f.write_str(" lookup default"),
            (1, table) => write!(f, " lookup {table}"),
            (2, _) => Ok(()),
            (3, _) => f.write_str(" nop"),
            (6, _) => f.write_str(" blackhole"),
            (7, _) => f.write_str(" unreachable"),
            (8, _) => f.write_str(" prohibit"),
            (action, _) => write!(f, " action {action}"),
        }
    }
}
