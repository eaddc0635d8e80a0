//! The protobuf encoding of the legacy module (`zebra -M fpm:protobuf`): routes only.
//!
//! The encoding has no MAC addresses, next-hop groups, weights, kernel metric or VNI of a type-5
//! route. It also has no table. Routes outside the default VRF have a VRF number that is
//! meaningless outside of zebra, so they are left out. A delete has only the prefix. Missing values
//! are 0, for adds and deletes alike. `replace` is set on adds, because zebra has at most one route
//! for each prefix.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink::{Message, Operation, Route, RouteNextHop, RouteTarget};
use prost::Message as _;

/// Generated from `proto/fpm.proto`, with `pub` for every item.
#[allow(unreachable_pub)]
mod schema {
    include!("generated/fpm.rs");
}

use schema::message::Type;
use schema::{AddressFamily, Nexthop, Protocol, RouteKey, RouteType, SubAddressFamily};

/// A protobuf payload that does not follow FRR's schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// Not a protobuf message of this schema.
    #[error("malformed protobuf: {0}")]
    Decode(#[from] prost::DecodeError),
    /// The message for the given type, the route key or the prefix is missing.
    #[error("protobuf message without {0}")]
    Missing(&'static str),
    /// A prefix that is too long for its family, or has fewer octets than its length needs.
    #[error("a prefix of {length} bits in {octets} octets")]
    Prefix {
        /// Prefix length in bits.
        length: u32,
        /// Octets of the prefix.
        octets: usize,
    },
    /// An IPv6 address that does not have 16 octets.
    #[error("an IPv6 address of {0} octets")]
    Address(usize),
}

/// The messages of a frame; empty for kinds that this project does not use.
pub(crate) fn decode(payload: &[u8]) -> Result<Vec<Message>, ProtobufError> {
    let message = schema::Message::decode(payload)?;
    let message = match message.r#type() {
        Type::UnknownMsg => None,
        Type::AddRoute => {
            let add = message.add_route.ok_or(ProtobufError::Missing("add_route"))?;
            let scope = Scope::new(add.vrf_id, add.address_family(), add.sub_address_family());
            let (route_type, protocol) = (route_type(add.route_type()), protocol(add.protocol()));
            let hops = add.nexthops.iter().map(next_hop).collect::<Result<_, _>>()?;
            let route = Route {
                route_type,
                protocol,
                replace: true,
                prepend: false,
                via: RouteTarget::NextHops(hops),
                ..scope.route(&add.key)?
            };
            scope.main_unicast.then_some(Message::Route(Operation::New, route))
        }
        Type::DeleteRoute => {
            let delete = message.delete_route.ok_or(ProtobufError::Missing("delete_route"))?;
            let scope =
                Scope::new(delete.vrf_id, delete.address_family(), delete.sub_address_family());
            let route = scope.route(&delete.key)?;
            scope.main_unicast.then_some(Message::Route(Operation::Delete, route))
        }
    };
    Ok(message.into_iter().collect())
}

/// VRF and address family of a route.
struct Scope {
    main_unicast: bool,
    ipv6: bool,
}

impl Scope {
    fn new(vrf: u32, family: AddressFamily, subfamily: SubAddressFamily) -> Self {
        let known = family != AddressFamily::UnknownAf && subfamily == SubAddressFamily::Unicast;
        Self { main_unicast: known && vrf == 0, ipv6: family == AddressFamily::Ipv6 }
    }

    /// A route with the key's prefix. All other attributes have default values.
    fn route(&self, key: &RouteKey) -> Result<Route, ProtobufError> {
        let prefix = key.prefix.as_ref().ok_or(ProtobufError::Missing("prefix"))?;
        let wrong = || ProtobufError::Prefix { length: prefix.length, octets: prefix.bytes.len() };
        let size = if self.ipv6 { 16 } else { 4 };
        let prefix_length = u8::try_from(prefix.length).map_err(|_| wrong())?;
        let needed = usize::from(prefix_length).div_ceil(8);
        if needed > size || prefix.bytes.len() > size {
            return Err(wrong());
        }
        let given = prefix.bytes.get(..needed).ok_or_else(wrong)?;
        let mut octets = [0; 16];
        octets.iter_mut().zip(given).for_each(|(to, from)| *to = *from);
        let [a, b, c, d, ..] = octets;
        let destination = if self.ipv6 {
            IpAddr::V6(Ipv6Addr::from(octets))
        } else {
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        };
        let via = RouteTarget::NextHops(Vec::new());
        Ok(Route { route_type: 0, protocol: 0, ..Route::new(destination, prefix_length, via) })
    }
}

fn next_hop(hop: &Nexthop) -> Result<RouteNextHop, ProtobufError> {
    let address = hop.address.as_ref();
    let v4 = address.and_then(|address| address.v4.as_ref());
    let v6 = address.and_then(|address| address.v6.as_ref());
    let gateway = match (v4, v6) {
        (Some(v4), _) => Some(IpAddr::V4(Ipv4Addr::from(v4.value))),
        (None, Some(v6)) => {
            let octets: [u8; 16] = v6
                .bytes
                .as_slice()
                .try_into()
                .map_err(|_| ProtobufError::Address(v6.bytes.len()))?;
            Some(IpAddr::from(octets))
        }
        (None, None) => None,
    };
    let ifindex = hop.if_id.as_ref().map_or(0, |interface| interface.index());
    Ok(RouteNextHop { ifindex, gateway, weight: 1, flags: 0, vni: None, encapsulation: None })
}

/// `RTN_*`.
const fn route_type(kind: RouteType) -> u8 {
    match kind {
        RouteType::Unknown | RouteType::Normal => 1,
        RouteType::Unreachable => 7,
        RouteType::Blackhole => 6,
    }
}

/// `RTPROT_*` values that zebra uses in the kernel (`zebra/rt_netlink.h`).
const fn protocol(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::UnknownProto | Protocol::Other => 11,
        Protocol::Local | Protocol::Connected | Protocol::Kernel => 2,
        Protocol::Static => 196,
        Protocol::Rip => 189,
        Protocol::Ripng => 190,
        Protocol::Ospf => 188,
        Protocol::Isis => 187,
        Protocol::Bgp => 186,
    }
}
