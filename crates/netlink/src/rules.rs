//! Packet filter rules, in a form that can be compared with the VXLAN packets of a VNI.
//!
//! A rule is a list of tests that a packet must pass, and an effect. Tests that this program does
//! not understand are [`Test::Unknown`]: some packets may pass them.

/// The hook at which a base chain sees packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuleHook {
    /// Received packets, before routing.
    Prerouting,
    /// Received packets for this host.
    Input,
    /// Packets that this host sends, after routing.
    Output,
    /// Sent packets, before they leave.
    Postrouting,
    /// Frames that certain interfaces receive.
    Ingress,
    /// Frames that certain interfaces send.
    Egress,
}

impl RuleHook {
    /// An IPv4 hook by its number. `None` for the forward hook, which sees no packets to or from
    /// this host.
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

/// The hook and the policy of a base chain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BaseChain {
    /// Its hook.
    pub hook: RuleHook,
    /// Patterns for the interfaces that an ingress or egress chain is bound to; empty for all
    /// interfaces.
    pub devices: Vec<NamePattern>,
    /// Whether the chain's policy is to drop.
    pub drops: bool,
}

/// An interface name, or a prefix of names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamePattern {
    /// The name or the prefix.
    pub text: String,
    /// Whether `text` is a prefix.
    pub prefix: bool,
}

impl NamePattern {
    /// Whether an interface's name matches.
    #[must_use]
    pub fn fits(&self, name: &str) -> bool {
        if self.prefix { name.starts_with(&self.text) } else { name == self.text }
    }
}

/// A chain with its rules in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RuleChain {
    /// Its address family: `ip`, `inet` or `netdev`; `iptables` for legacy iptables.
    pub family: &'static str,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Its hook and policy, if it is a base chain.
    pub base: Option<BaseChain>,
    /// Its rules, in order.
    pub rules: Vec<PacketRule>,
}

/// A rule of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PacketRule {
    /// Its handle in nftables, with which `nft` deletes it. In legacy iptables its number in the
    /// chain, from 1.
    pub handle: u64,
    /// The tests that a packet must pass.
    pub tests: Vec<Test>,
    /// The effect on such a packet.
    pub effect: Effect,
}

/// What a rule does to a packet that passes its tests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The packet is unchanged: there is no statement, or it only counts, or excludes the packet
    /// from connection tracking.
    Nothing,
    /// The base chain ends and accepts the packet.
    Accept,
    /// The chain ends and returns to its caller.
    Return,
    /// Another chain is evaluated, then the following rules.
    Jump(String),
    /// Another chain is evaluated instead of the following rules.
    Goto(String),
    /// Anything else: the packet may be dropped, marked, translated, logged and so on.
    Other,
}

/// A test of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Test {
    /// Not understood by this program.
    Unknown,
    /// A field of the packet is in a range after a mask was applied; or outside of it if `negated`.
    Field {
        /// The field.
        field: Field,
        /// The bits that count.
        mask: u32,
        /// The lowest value of the range.
        low: u32,
        /// The highest value of the range.
        high: u32,
        /// Whether the value must be outside of the range.
        negated: bool,
    },
    /// The name of an interface matches a pattern.
    Interface {
        /// Whether it is the receiving interface; otherwise the sending one.
        received: bool,
        /// The pattern.
        pattern: NamePattern,
        /// Whether the name must not match.
        negated: bool,
    },
    /// An interface has this index.
    InterfaceIndex {
        /// Whether it is the receiving interface; otherwise the sending one.
        received: bool,
        /// The index.
        ifindex: u32,
        /// Whether it must be a different interface.
        negated: bool,
    },
}

impl Test {
    /// A test that a field has exactly this value, or with `negated` another one.
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
    /// Layer 4 protocol.
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
