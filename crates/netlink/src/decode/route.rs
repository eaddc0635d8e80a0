//! `struct rtmsg` and `struct nhmsg`: routes and next-hop objects.
//!
//! Attribute numbers: `include/uapi/linux/rtnetlink.h`, `include/uapi/linux/nexthop.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::attribute::{Attribute, Attributes, align};
use crate::envelope::{AF_INET, AF_INET6, Envelope};
use crate::malformed::{DecodeError, Malformed};
use crate::message::{NextHop, NextHopKind, Route, RouteNextHop, RouteTarget};

/// `NLM_F_REPLACE`.
const REPLACE: u16 = 0x100;
/// `NLM_F_APPEND`.
const APPEND: u16 = 0x800;
/// `NLM_F_MULTI`: a part of a dump.
const MULTI: u16 = 0x2;
/// `RTM_F_CLONED`.
const CLONED: u32 = 0x200;
/// FRR's FPM encapsulation type for VXLAN (`zebra/rt_netlink.c`: `FPM_NH_ENCAP_VXLAN`). The kernel
/// does not use this type.
const FPM_ENCAPSULATION_VXLAN: u16 = 100;
/// `LWTUNNEL_ENCAP_NONE`.
const NO_ENCAPSULATION: u16 = 0;
/// `RTA_DST`.
const DESTINATION: u16 = 1;
/// `NHA_ID`.
const ID: u16 = 1;

impl Route {
    /// A unicast route in table main, as BGP has it, without a metric.
    #[must_use]
    pub const fn new(destination: IpAddr, prefix_length: u8, via: RouteTarget) -> Self {
        Self {
            table: 254,
            destination,
            prefix_length,
            priority: 0,
            tos: 0,
            source: None,
            route_type: 1,
            protocol: 186,
            replace: false,
            prepend: false,
            cloned: false,
            mtu: None,
            mtu_locked: false,
            hop_limit: None,
            via,
        }
    }
}

/// A route. `None` for families other than IPv4 and IPv6.
pub(super) fn route(envelope: &Envelope<'_>) -> Result<Option<Route>, DecodeError> {
    let (
        &[
            family,
            prefix_length,
            source_length,
            tos,
            table,
            protocol,
            _,
            route_type,
            f0,
            f1,
            f2,
            f3,
        ],
        attributes,
    ) = envelope.body::<12>()?;
    let (unspecified, octets) = match family {
        AF_INET => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 4),
        AF_INET6 => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 16),
        _ => return Ok(None),
    };
    let rtm_flags = u32::from_ne_bytes([f0, f1, f2, f3]);
    let mut table = u32::from(table);
    let mut priority = 0;
    let mut metrics = Metrics::default();
    let (mut destination, mut source) = (None, None);
    let mut object = None;
    let mut multipath = None;
    let mut hop = Hop::new(rtm_flags);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            DESTINATION => destination = Some(attribute.ip()?),
            2 => source = Some(attribute.ip()?),
            6 => priority = attribute.u32()?,
            8 => metrics = route_metrics(attribute.nested())?,
            9 => multipath = Some(multipath_hops(&attribute)?),
            15 => table = attribute.u32()?,
            30 => object = Some(attribute.u32()?),
            _ => hop.read(&attribute)?,
        }
    }
    let whole = prefix_length == 0;
    let destination = destination
        .or(whole.then_some(unspecified))
        .ok_or_else(|| envelope.missing(DESTINATION))?;
    if destination.is_ipv4() != unspecified.is_ipv4() || usize::from(prefix_length) > octets * 8 {
        let what = Malformed::Prefix {
            octets: if destination.is_ipv4() { 4 } else { 16 },
            length: prefix_length,
        };
        return Err(DecodeError { offset: envelope.offset, what });
    }
    let via = match (object, multipath) {
        (Some(id), _) => RouteTarget::Object(id),
        (None, Some(hops)) => RouteTarget::NextHops(hops),
        (None, None) => RouteTarget::NextHops(hop.finish().into_iter().collect()),
    };
    Ok(Some(Route {
        table,
        destination,
        prefix_length,
        priority,
        tos,
        source: (source_length != 0).then(|| (source.unwrap_or(unspecified), source_length)),
        route_type,
        protocol,
        replace: envelope.flags & REPLACE != 0,
        // A dump has routes in the order of the kernel.
        prepend: family == AF_INET && envelope.flags & (MULTI | REPLACE | APPEND) == 0,
        cloned: rtm_flags & CLONED != 0,
        mtu: metrics.mtu,
        mtu_locked: metrics.mtu_locked,
        hop_limit: metrics.hop_limit,
        via,
    }))
}

/// The MTU in the answer to a route lookup, which is an entry of the route cache.
pub(crate) fn cached_mtu(envelope: &Envelope<'_>) -> Option<u32> {
    let (_, mut attributes) = envelope.body::<12>().ok()?;
    let metrics =
        attributes.find_map(|attribute| attribute.ok().filter(|attribute| attribute.kind == 8))?;
    route_metrics(metrics.nested()).ok()?.mtu
}

/// The `RTA_METRICS` that affect forwarding.
#[derive(Default)]
struct Metrics {
    mtu: Option<u32>,
    mtu_locked: bool,
    hop_limit: Option<u32>,
}

/// `RTAX_LOCK`, `RTAX_MTU` and `RTAX_HOPLIMIT` of `RTA_METRICS`.
fn route_metrics(attributes: Attributes<'_>) -> Result<Metrics, DecodeError> {
    let mut metrics = Metrics::default();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            // A bit mask, with one bit for each metric.
            1 => metrics.mtu_locked = attribute.u32()? & 1 << 2 != 0,
            2 => metrics.mtu = Some(attribute.u32()?),
            10 => metrics.hop_limit = Some(attribute.u32()?).filter(|limit| *limit != 0),
            _ => {}
        }
    }
    Ok(metrics)
}

/// The attributes of one next hop: of a route, or of an entry of `RTA_MULTIPATH`.
struct Hop {
    hop: RouteNextHop,
    some: bool,
    encapsulation: Option<u16>,
    vni: Option<u32>,
}

impl Hop {
    fn new(flags: u32) -> Self {
        // RTNH_F_* share the low eight bits of rtm_flags and nh_flags.
        let flags = u8::try_from(flags & 0xff).unwrap_or_default();
        let hop = RouteNextHop {
            ifindex: 0,
            gateway: None,
            weight: 1,
            flags,
            vni: None,
            encapsulation: None,
        };
        Self { hop, some: false, encapsulation: None, vni: None }
    }

    fn read(&mut self, attribute: &Attribute<'_>) -> Result<(), DecodeError> {
        match attribute.kind {
            4 => {
                self.hop.ifindex = attribute.u32()?;
                self.some = true;
            }
            5 => {
                self.hop.gateway = Some(attribute.ip()?);
                self.some = true;
            }
            18 => {
                self.hop.gateway = Some(attribute.via()?);
                self.some = true;
            }
            21 => self.encapsulation = Some(attribute.u16()?),
            // The content depends on the type, which may follow.
            22 => self.vni = fpm_vni(attribute.nested()),
            _ => {}
        }
        Ok(())
    }

    fn finish(self) -> Option<RouteNextHop> {
        let vni = self.vni.filter(|_| self.encapsulation == Some(FPM_ENCAPSULATION_VXLAN));
        let encapsulation = self
            .encapsulation
            .filter(|kind| !matches!(*kind, NO_ENCAPSULATION | FPM_ENCAPSULATION_VXLAN));
        self.some.then_some(RouteNextHop { vni, encapsulation, ..self.hop })
    }
}

/// Attribute 0 (`VXLAN_VNI`) of FRR's `RTA_ENCAP`. Errors are ignored, because other encapsulation
/// types have other content.
fn fpm_vni(attributes: Attributes<'_>) -> Option<u32> {
    attributes
        .map_while(Result::ok)
        .find(|attribute| attribute.kind == 0)
        .and_then(|attribute| attribute.u32().ok())
}

/// `RTA_MULTIPATH`: a list of `struct rtnexthop` (u16 length, u8 flags, u8 weight − 1, u32 ifindex)
/// with attributes.
fn multipath_hops(attribute: &Attribute<'_>) -> Result<Vec<RouteNextHop>, DecodeError> {
    let (mut rest, mut offset) = attribute.raw();
    let mut hops = Vec::new();
    while !rest.is_empty() {
        let available = rest.len();
        let wrong =
            |length| DecodeError { offset, what: Malformed::NextHopLength { length, available } };
        let Some((&[l0, l1, flags, weight, i0, i1, i2, i3], _)) = rest.split_first_chunk::<8>()
        else {
            return Err(wrong(available));
        };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let attributes = rest.get(8..length).ok_or_else(|| wrong(length))?;
        let mut hop = Hop::new(flags.into());
        hop.hop.ifindex = u32::from_ne_bytes([i0, i1, i2, i3]);
        hop.hop.weight = u16::from(weight).saturating_add(1);
        hop.some = true;
        for attribute in Attributes::new(attributes, offset.saturating_add(8)) {
            hop.read(&attribute?)?;
        }
        hops.extend(hop.finish());
        let taken = align(length).min(available);
        rest = rest.get(taken..).unwrap_or_default();
        offset = offset.saturating_add(taken);
    }
    Ok(hops)
}

pub(super) fn next_hop(envelope: &Envelope<'_>) -> Result<NextHop, DecodeError> {
    let (&[_, _, _, _, f0, f1, f2, f3], attributes) = envelope.body::<8>()?;
    let mut id = None;
    let mut kind = NextHopKind::Other;
    let mut fdb = false;
    let mut hop = Hop::new(u32::from_ne_bytes([f0, f1, f2, f3])).hop;
    let mut single = false;
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            ID => id = Some(attribute.u32()?),
            2 => kind = NextHopKind::Group(group(&attribute)?),
            4 => kind = NextHopKind::Blackhole,
            5 => {
                hop.ifindex = attribute.u32()?;
                single = true;
            }
            6 => {
                hop.gateway = Some(attribute.ip()?);
                single = true;
            }
            7 => {
                hop.encapsulation = Some(attribute.u16()?).filter(|kind| *kind != NO_ENCAPSULATION)
            }
            11 => fdb = true,
            _ => {}
        }
    }
    let id = id.ok_or_else(|| envelope.missing(ID))?;
    if fdb {
        kind = NextHopKind::Other;
    } else if kind == NextHopKind::Other && single {
        kind = NextHopKind::Single(hop);
    }
    Ok(NextHop { id, kind })
}

/// `NHA_GROUP`: `struct nexthop_grp` (u32 id, u8 weight − 1, u8 its high octet since Linux 6.12,
/// u16 reserved).
fn group(attribute: &Attribute<'_>) -> Result<Vec<(u32, u16)>, DecodeError> {
    let members = attribute.records::<8>()?;
    let member = |&[i0, i1, i2, i3, low, high, ..]: &[u8; 8]| {
        (u32::from_ne_bytes([i0, i1, i2, i3]), u16::from_le_bytes([low, high]).saturating_add(1))
    };
    Ok(members.iter().map(member).collect())
}
