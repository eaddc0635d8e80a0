//! The kernel's network state over netlink: messages, dumps, events and requests; and private
//! network namespaces, which requests can name.

mod attribute;
mod decode;
mod discard;
mod dump;
mod encode;
mod envelope;
mod error;
mod events;
mod fdb;
mod filter;
mod filter_monitor;
mod kernel;
mod link_monitor;
mod malformed;
mod matching;
mod message;
mod namespace;
mod nftables;
mod notifications;
mod packet_filter;
mod path_mtu;
mod request;
mod route_lookup;
mod rules;
mod socket;
mod socket_owner;
mod xtables;

pub use decode::{Messages, decode};
pub use discard::Discard;
pub use dump::Dump;
pub use error::Error;
pub use fdb::{FdbChange, FdbWrite};
pub use filter::{Direction, Filter};
pub use filter_monitor::{FilterChanges, FilterMonitor};
pub use kernel::{Event, Kernel};
pub use link_monitor::{LinkChanges, LinkMonitor};
pub use malformed::{DecodeError, Malformed};
pub use matching::{Packets, Policies, RuleSet, contains, network};
pub use message::{
    Address, Bridge, BridgePort, FdbEntry, IpsecDirection, IpsecPolicy, Link, LinkKind, Mdb,
    Message, Neighbour, NextHop, NextHopKind, Operation, Qdisc, ReversePathFilter, Route,
    RouteNextHop, RouteTarget, Rule, Vxlan,
};
pub use namespace::PrivateNamespace;
pub use nftables::packet_rules;
pub use notifications::{NotificationKind, Notifications};
pub use packet_filter::{PacketFilters, packet_filters};
pub use request::{LinkChange, Requests, Veth, VethEnd};
pub use route_lookup::SentPacket;
pub use rules::{BaseChain, Effect, Field, NamePattern, PacketRule, RuleChain, RuleHook, Test};
pub use socket_owner::{listener_owner, socket_owner};
pub use xtables::{LegacyTable, legacy_chains};
