//! Policy routing and IPsec: what the kernel would apply to VXLAN packets and vtepd does not.
//!
//! A rule or policy is ignored only if it certainly does not match. Received packets for this host
//! are delivered by the rule for table local, which is the first one by default. The other rules
//! therefore matter for sent packets only.

use std::fmt;
use std::net::IpAddr;

use netlink::{IpsecDirection, IpsecPolicy, Rule};

use crate::stores::prefix::contains;

/// `RT_TABLE_LOCAL`.
const LOCAL: u32 = 255;
/// `IPPROTO_UDP`.
const UDP: u8 = 17;

/// The VXLAN packets of one VNI, by their outer headers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow<'a> {
    pub(crate) local: IpAddr,
    /// In both directions.
    pub(crate) destination_port: u16,
    pub(crate) remotes: &'a [IpAddr],
    /// Whether packets from other senders are dropped.
    pub(crate) only_remotes: bool,
}

/// The routing rules and IPsec policies of the namespace.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    /// In the kernel's order; `None` until they were read.
    rules: Option<Vec<Rule>>,
    /// Whether the IPv4 rules are the default rules of a new namespace.
    default_rules: bool,
    /// The same for IPv6, also if there are none.
    default_ipv6_rules: bool,
    ipsec: Vec<IpsecPolicy>,
    /// Whether IPsec drops packets that no policy matches.
    ipsec_blocks: bool,
}

impl Policies {
    /// Sets the current rules. Returns whether any changed.
    pub(crate) fn set_rules(&mut self, rules: Vec<Rule>) -> bool {
        let changed = self.rules.as_ref().is_none_or(|known| *known != rules);
        let (ipv4, ipv6): (Vec<&Rule>, Vec<&Rule>) =
            rules.iter().partition(|rule| rule.from.0.is_ipv4());
        self.default_rules = ipv4.into_iter().eq(&Rule::defaults());
        self.default_ipv6_rules = ipv6.is_empty() || ipv6.into_iter().eq(&Rule::ipv6_defaults());
        self.rules = Some(rules);
        changed
    }

    /// Sets the current IPsec policies. Returns whether any changed.
    pub(crate) fn set_ipsec(&mut self, policies: Vec<IpsecPolicy>, blocks: bool) -> bool {
        let changed = (&self.ipsec, self.ipsec_blocks) != (&policies, blocks);
        (self.ipsec, self.ipsec_blocks) = (policies, blocks);
        changed
    }

    /// Whether the IPv4 rules are the default rules of a new namespace.
    pub(crate) const fn has_default_rules(&self) -> bool {
        self.default_rules
    }

    /// Whether there is any rule or policy that may match a tunnel's packets.
    pub(crate) const fn any(&self) -> bool {
        let by_default = self.default_rules && self.default_ipv6_rules;
        !by_default && self.rules.is_some() || !self.ipsec.is_empty() || self.ipsec_blocks
    }

    /// Why the kernel may route these packets differently than the default rules do.
    pub(crate) fn routing(&self, flow: &Flow<'_>) -> Option<String> {
        let rules = self.rules.as_ref()?;
        let (ipv4, ipv6) = (Rule::defaults(), Rule::ipv6_defaults());
        let defaults: &[Rule] = if flow.local.is_ipv4() { &ipv4 } else { &ipv6 };
        let mut of_family = rules.iter().filter(|rule| is_of_family(rule, flow.local)).peekable();
        if of_family.peek().is_none_or(|first| !looks_all_up(first, LOCAL)) {
            return Some("the first routing rule is not the one for table local".to_owned());
        }
        let missing = defaults.iter().find(|default| !rules.contains(default));
        let other = of_family.find(|rule| !defaults.contains(rule) && may_match(rule, flow));
        match (other, missing) {
            (Some(rule), _) => Some(format!("the routing rule '{}' may match", Text(rule))),
            (None, Some(rule)) => Some(format!("the routing rule '{}' is missing", Text(rule))),
            (None, None) => None,
        }
    }

    /// The IPsec policy that the kernel may apply to these packets.
    pub(crate) fn ipsec(&self, flow: &Flow<'_>) -> Option<String> {
        if self.ipsec_blocks {
            return Some("the default IPsec policy is 'block'".to_owned());
        }
        let policy = self.ipsec.iter().find(|policy| concerns(policy, flow))?;
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

fn is_of_family(rule: &Rule, address: IpAddr) -> bool {
    rule.from.0.is_ipv4() == address.is_ipv4()
}

/// Whether a rule may match a packet that this host sends to a remote VTEP.
fn may_match(rule: &Rule, flow: &Flow<'_>) -> bool {
    if rule.inverted {
        return true;
    }
    // Sent packets belong to no VRF, because the socket is bound to no device.
    if rule.l3mdev
        || rule.output.is_some()
        || rule.input.as_ref().is_some_and(|input| input != "lo")
    {
        return false;
    }
    let port = rule
        .destination_ports
        .is_none_or(|(first, last)| (first..=last).contains(&flow.destination_port));
    port && rule.protocol.is_none_or(|protocol| protocol == UDP)
        && contains(rule.from, flow.local)
        && flow.remotes.iter().any(|remote| contains(rule.to, *remote))
}

/// Whether the kernel may transform or drop packets of this flow because of an IPsec policy.
fn concerns(policy: &IpsecPolicy, flow: &Flow<'_>) -> bool {
    if !policy.block && !policy.transforms {
        return false;
    }
    let (port, mask) = policy.destination_port;
    if !matches!(policy.protocol, 0 | UDP) || (port ^ flow.destination_port) & mask != 0 {
        return false;
    }
    match policy.direction {
        IpsecDirection::Out => {
            contains(policy.source, flow.local)
                && flow.remotes.iter().any(|remote| contains(policy.destination, *remote))
        }
        IpsecDirection::In => {
            contains(policy.destination, flow.local)
                && (!flow.only_remotes
                    || flow.remotes.iter().any(|remote| contains(policy.source, *remote)))
        }
    }
}

/// A prefix in the notation of `ip`.
struct Prefix((IpAddr, u8));

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            (_, 0) => f.write_str("all"),
            (address, 32) => write!(f, "{address}"),
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
