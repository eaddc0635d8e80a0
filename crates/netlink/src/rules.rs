//! Rules of packet filters in a form that can be compared with the VXLAN packets of a VNI.
//!
//! A rule is a list of tests, all of which a packet has to pass, and what then happens to it. A
//! test that is not understood is [`Test::Unknown`]: some packets may pass it.

/// Where a base chain sees packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuleHook {
    /// Received packets, before routing.
    Prerouting,
    /// Received packets for this host.
    Input,
    /// Sent packets of this host, after routing.
    Output,
    /// Sent packets, before they leave.
    Postrouting,
    /// Received frames of single interfaces.
    Ingress,
    /// Sent frames of single interfaces.
    Egress,
}

impl RuleHook {
    /// A hook of IPv4 by its number; `None` for the forward hook, which packets of this host do not
    /// pass.
    pub(crate) const fn of_ipv4(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Prerouting),
            1 => Some(Self::Input),
            3 => Some(Self::Output),
            4 => Some(Self::Postrouting),
            _ => None,
        }
    }

    /// Whether it sees received packets.
    #[must_use]
    pub const fn is_input(self) -> bool {
        matches!(self, Self::Prerouting | Self::Input | Self::Ingress)
    }

    /// The name that `nft` uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// A base chain's place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BaseChain {
    /// Its hook.
    pub hook: RuleHook,
    /// The interfaces that an ingress or egress chain is bound to, as patterns; empty for all.
    pub devices: Vec<NamePattern>,
    /// Whether packets that no rule decides about are dropped.
    pub drops: bool,
}

/// An interface's name, or how it begins.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamePattern {
    /// The name or its beginning.
    pub text: String,
    /// Whether it is only the beginning.
    pub prefix: bool,
}

impl NamePattern {
    /// Whether an interface's name fits.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        if self.prefix { name.starts_with(&self.text) } else { name == self.text }
    }
}

/// A chain with its rules in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RuleChain {
    /// Its address family: `ip`, `inet` or `netdev`; `iptables` for those of legacy iptables.
    pub family: &'static str,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Its place, if it is a base chain.
    pub base: Option<BaseChain>,
    /// Its rules.
    pub rules: Vec<PacketRule>,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PacketRule {
    /// Its handle in nftables, by which `nft` deletes it; in legacy iptables its number in the
    /// chain, from 1 on.
    pub handle: u64,
    /// What a packet must pass.
    pub tests: Vec<Test>,
    /// What then happens to it.
    pub effect: Effect,
}

/// What a rule does to a packet that passes its tests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Nothing, or the packet is counted, or excepted from connection tracking.
    Nothing,
    /// The base chain ends, and the packet goes on.
    Accept,
    /// The chain ends.
    Return,
    /// The rules of another chain follow, then those after this one.
    Jump(String),
    /// The rules of another chain follow, and none of this one.
    Goto(String),
    /// Anything else: the packet is dropped, marked, translated, logged and so on.
    Other,
}

/// A test of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Test {
    /// It is not understood.
    Unknown,
    /// A field of the packet lies in a range (or, where `negated`, does not), after a mask was
    /// applied.
    Field {
        /// Which field.
        field: Field,
        /// Bits that count.
        mask: u32,
        /// The lowest value.
        low: u32,
        /// The highest value.
        high: u32,
        /// Whether the value must lie outside.
        negated: bool,
    },
    /// The name of an interface fits, or does not.
    Interface {
        /// Whether it is the interface that received the packet, or the one that it leaves by.
        received: bool,
        /// The name.
        pattern: NamePattern,
        /// Whether it must not fit.
        negated: bool,
    },
    /// An interface has this index, or does not.
    InterfaceIndex {
        /// Whether it is the interface that received the packet, or the one that it leaves by.
        received: bool,
        /// The index.
        ifindex: u32,
        /// Whether it must be another.
        negated: bool,
    },
}

impl Test {
    /// A field has exactly this value, or has not.
    pub(crate) const fn equals(field: Field, value: u32, negated: bool) -> Self {
        Self::Field { field, mask: u32::MAX, low: value, high: value, negated }
    }
}

/// A field of an IPv4 packet with UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// Source address.
    Source,
    /// Destination address.
    Destination,
    /// Protocol of layer 4.
    Protocol,
    /// `NFPROTO_*` of the packet.
    Family,
    /// EtherType.
    EtherType,
    /// UDP source port.
    SourcePort,
    /// UDP destination port.
    DestinationPort,
}
