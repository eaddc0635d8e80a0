//! What the kernel can be asked to list.

use crate::encode::{DUMP, REQUEST, Request};
use crate::envelope::{AF_BRIDGE, AF_INET, AF_INET6};

/// What to dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dump {
    /// All links.
    Links,
    /// All IPv4 and IPv6 addresses.
    Addresses,
    /// All next-hop objects.
    NextHops,
    /// All IPv4 and IPv6 routes, of all tables.
    Routes,
    /// All IPv4 and IPv6 neighbours.
    Neighbours,
    /// All FDB entries: of bridges, and of vxlan netdevs themselves.
    Fdb,
    /// All IPv4 and IPv6 policy routing rules. If the kernel has no policy routing, the default
    /// rules, which it behaves like.
    Rules,
    /// All IPsec policies that may apply to VXLAN, and the default policy; empty if the
    /// kernel has no IPsec. [`Requests::dump`](crate::Requests::dump) opens a socket of its own for this, in the calling
    /// thread's namespace.
    IpsecPolicies,
    /// The multicast databases of bridges and of vxlan netdevs; empty if the kernel has none.
    Mdb,
    /// The values of `rp_filter` for IPv4.
    ReversePathFilters,
}

impl Dump {
    /// All kinds. Objects that others refer to come first.
    pub const ALL: [Self; 10] = [
        Self::Links,
        Self::Addresses,
        Self::NextHops,
        Self::Routes,
        Self::Neighbours,
        Self::Fdb,
        Self::Mdb,
        Self::ReversePathFilters,
        Self::Rules,
        Self::IpsecPolicies,
    ];

    /// What it does, for errors: `read links`.
    #[must_use]
    pub const fn operation(self) -> &'static str {
        match self {
            Self::Links => "read links",
            Self::Addresses => "read addresses",
            Self::NextHops => "read next hops",
            Self::Routes => "read routes",
            Self::Neighbours => "read neighbours",
            Self::Fdb => "read FDB entries",
            Self::Rules => "read routing rules",
            Self::IpsecPolicies => "read IPsec policies",
            Self::Mdb => "read multicast databases",
            Self::ReversePathFilters => "read reverse path filters",
        }
    }

    /// The request for the routing rules of a family.
    pub(crate) fn rules(family: u8) -> Request {
        let mut body = [0; 12];
        body[0] = family;
        Request::new(34, REQUEST | DUMP, &body)
    }

    /// `RTM_GET*` requests. The structure of each type is zero except for the family.
    pub(crate) fn requests(self) -> Vec<Request> {
        let get = |kind, size: usize, family| {
            let mut body = vec![0; size];
            body.iter_mut().take(1).for_each(|octet| *octet = family);
            Request::new(kind, REQUEST | DUMP, &body)
        };
        match self {
            Self::Links => vec![get(18, 16, 0)],
            Self::Addresses => vec![get(22, 8, AF_INET), get(22, 8, AF_INET6)],
            Self::NextHops => vec![get(106, 8, 0)],
            Self::Routes => vec![get(26, 12, AF_INET), get(26, 12, AF_INET6)],
            Self::Neighbours => vec![get(30, 12, AF_INET), get(30, 12, AF_INET6)],
            Self::Fdb => vec![get(30, 12, AF_BRIDGE)],
            Self::Rules => vec![Self::rules(AF_INET), Self::rules(AF_INET6)],
            // XFRM_MSG_GETPOLICY with struct xfrm_userpolicy_id.
            Self::IpsecPolicies => vec![get(0x15, 64, 0)],
            // struct br_port_msg
            Self::Mdb => vec![get(86, 8, AF_BRIDGE)],
            // struct netconfmsg, with its padding
            Self::ReversePathFilters => vec![get(82, 4, AF_INET)],
        }
    }
}
