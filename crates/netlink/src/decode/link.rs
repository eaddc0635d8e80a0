//! `struct ifinfomsg`, `struct ifaddrmsg` and `struct tcmsg`: links, their addresses and queueing
//! disciplines.
//!
//! Attribute numbers: `include/uapi/linux/if_link.h` of Linux 6.18, `include/uapi/linux/if_addr.h`,
//! `include/uapi/linux/rtnetlink.h`.

use crate::attribute::Attributes;
use crate::envelope::{AF_BRIDGE, AF_INET, AF_INET6, Envelope};
use crate::malformed::DecodeError;
use crate::message::{Address, Bridge, BridgePort, Link, LinkKind, Qdisc, Vxlan};

/// The reserved bits of a VXLAN header for a netdev without extensions: all bits except the I flag
/// and the VNI (RFC 7348 section 5; `vxlan_nl2conf` in `drivers/net/vxlan/vxlan_core.c`).
const RESERVED_BITS: [u8; 8] = [0xf7, 0xff, 0xff, 0xff, 0, 0, 0, 0xff];

/// `TC_H_ROOT` (`include/uapi/linux/pkt_sched.h`).
const TC_H_ROOT: u32 = 0xffff_ffff;

pub(super) fn link(envelope: &Envelope<'_>) -> Result<Link, DecodeError> {
    let (&[family, _, h0, h1, i0, i1, i2, i3, f0, f1, f2, f3, ..], attributes) =
        envelope.body::<16>()?;
    let mut link = Link {
        ifindex: u32::from_ne_bytes([i0, i1, i2, i3]),
        hardware_type: u16::from_ne_bytes([h0, h1]),
        flags: u32::from_ne_bytes([f0, f1, f2, f3]),
        bridge_port_only: family == AF_BRIDGE,
        ..Link::default()
    };
    let mut promiscuous = false;
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            1 => link.mac = attribute.mac(),
            3 => link.name = attribute.string(),
            4 => link.mtu = attribute.u32()?,
            5 => link.link = Some(attribute.u32()?),
            6 => link.qdisc = attribute.string(),
            10 => link.master = Some(attribute.u32()?),
            // IFLA_PROTINFO holds bridge port options only in messages of family `AF_BRIDGE`.
            12 if link.bridge_port_only => {
                link.bridge_port = Some(bridge_port(attribute.nested())?)
            }
            16 => link.operstate = attribute.u8()?,
            18 => {
                let (kind, port) = link_info(attribute.nested())?;
                link.kind = kind;
                link.bridge_port = port.or(link.bridge_port);
            }
            30 => promiscuous = attribute.u32()? != 0,
            33 => link.carrier = attribute.bool()?,
            37 => link.link_namespace = Some(attribute.i32()?),
            43 => {
                for inner in attribute.nested() {
                    let inner = inner?;
                    // IFLA_XDP_ATTACHED: 0 none, otherwise the mode (driver, generic, hardware,
                    // several).
                    link.xdp |= inner.kind == 2 && inner.bool()?;
                }
            }
            _ => {}
        }
    }
    if let LinkKind::Bridge(bridge) = &mut link.kind {
        bridge.promiscuous = promiscuous;
    }
    Ok(link)
}

/// The root qdisc of an interface. `None` for other qdiscs, including `clsact`.
pub(super) fn root_qdisc(envelope: &Envelope<'_>) -> Result<Option<Qdisc>, DecodeError> {
    let (&[_, _, _, _, i0, i1, i2, i3, _, _, _, _, p0, p1, p2, p3, ..], attributes) =
        envelope.body::<20>()?;
    let mut qdisc = Qdisc { ifindex: u32::from_ne_bytes([i0, i1, i2, i3]), kind: String::new() };
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind == 1 {
            qdisc.kind = attribute.string();
        }
    }
    Ok((u32::from_ne_bytes([p0, p1, p2, p3]) == TC_H_ROOT).then_some(qdisc))
}

/// `IFLA_LINKINFO`: the link's own kind, and its options as a bridge port.
fn link_info(attributes: Attributes<'_>) -> Result<(LinkKind, Option<BridgePort>), DecodeError> {
    // The kind determines how the data is decoded, but may come after it.
    let (mut kind, mut data) = (None, None);
    let (mut port_kind, mut port_data) = (None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            1 => kind = Some(attribute.string()),
            2 => data = Some(attribute.nested()),
            4 => port_kind = Some(attribute.string()),
            5 => port_data = Some(attribute.nested()),
            _ => {}
        }
    }
    let data = data.unwrap_or_else(|| Attributes::new(&[], 0));
    let kind = match kind.as_deref() {
        None => LinkKind::Plain,
        Some("veth") => LinkKind::Veth,
        Some("bridge") => LinkKind::Bridge(bridge(data)?),
        Some("vxlan") => LinkKind::Vxlan(Box::new(vxlan(data)?)),
        Some(_) => LinkKind::Other(kind.unwrap_or_default()),
    };
    let port = match (port_kind.as_deref(), port_data) {
        (Some("bridge"), Some(data)) => Some(bridge_port(data)?),
        _ => None,
    };
    Ok((kind, port))
}

/// `IFLA_BR_*`.
fn bridge(attributes: Attributes<'_>) -> Result<Bridge, DecodeError> {
    let mut bridge = Bridge::default();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            4 => bridge.ageing = attribute.u32()?,
            7 => bridge.vlan_filtering = attribute.bool()?,
            36 | 37 => bridge.calls_netfilter |= attribute.bool()?,
            _ => {}
        }
    }
    Ok(bridge)
}

/// `IFLA_BRPORT_*`.
fn bridge_port(attributes: Attributes<'_>) -> Result<BridgePort, DecodeError> {
    let mut port = BridgePort::default();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            1 => port.state = attribute.u8()?,
            4 => port.hairpin = attribute.bool()?,
            8 => port.learning = attribute.bool()?,
            9 => port.unicast_flood = attribute.bool()?,
            27 => port.multicast_flood = attribute.bool()?,
            30 => port.broadcast_flood = attribute.bool()?,
            32 => port.neighbour_suppression = attribute.bool()?,
            33 => port.isolated = attribute.bool()?,
            34 => port.backup = attribute.u32()? != 0,
            39 => port.locked = attribute.bool()?,
            _ => {}
        }
    }
    Ok(port)
}

/// `IFLA_VXLAN_*`.
fn vxlan(attributes: Attributes<'_>) -> Result<Vxlan, DecodeError> {
    let mut vxlan = Vxlan::default();
    // These extensions change the default of the reserved bits.
    let mut extended = false;
    let mut reserved_bits = false;
    for attribute in attributes {
        let attribute = attribute?;
        let mut option = |name, on| {
            if on {
                vxlan.options.push(name);
            }
        };
        match attribute.kind {
            1 => vxlan.id = attribute.u32()?,
            2 | 16 => vxlan.remote = Some(attribute.ip()?).filter(|ip| !ip.is_unspecified()),
            3 => vxlan.link = Some(attribute.u32()?).filter(|&ifindex| ifindex != 0),
            4 | 17 => vxlan.local = Some(attribute.ip()?).filter(|ip| !ip.is_unspecified()),
            5 => vxlan.ttl = attribute.u8()?,
            6 => vxlan.tos = attribute.u8()?,
            7 => vxlan.learning = attribute.bool()?,
            8 => vxlan.ageing = attribute.u32()?,
            9 => vxlan.limit = attribute.u32()?,
            10 => {
                let ports = attribute.u32_network_order()?.to_be_bytes();
                let [l0, l1, h0, h1] = ports;
                vxlan.source_ports = (u16::from_be_bytes([l0, l1]), u16::from_be_bytes([h0, h1]));
            }
            11 => option("proxy", attribute.bool()?),
            12 => option("rsc", attribute.bool()?),
            13 => option("l2miss", attribute.bool()?),
            14 => option("l3miss", attribute.bool()?),
            15 => vxlan.destination_port = attribute.u16_network_order()?,
            18 => vxlan.udp_checksum = attribute.bool()?,
            19 => vxlan.udp6_zero_checksum_tx = attribute.bool()?,
            20 => vxlan.udp6_zero_checksum_rx = attribute.bool()?,
            21 => option("remcsumtx", attribute.bool()?),
            22 => {
                extended |= attribute.bool()?;
                option("remcsumrx", attribute.bool()?);
            }
            // Flags without a payload: their presence is the value.
            23 => {
                extended = true;
                option("gbp", true);
            }
            27 => {
                extended = true;
                option("gpe", true);
            }
            25 => vxlan.external = attribute.bool()?,
            26 => vxlan.label = attribute.u32_network_order()?,
            28 => vxlan.ttl_inherit = attribute.bool()?,
            29 => vxlan.df = attribute.u8()?,
            30 => vxlan.vni_filter = attribute.bool()?,
            31 => option("nolocalbypass", !attribute.bool()?),
            32 => option("label_policy", attribute.u32()? != 0),
            33 => reserved_bits = !attribute.payload.starts_with(&RESERVED_BITS),
            34 => option("mcroute", attribute.bool()?),
            // IFLA_VXLAN_UNSPEC, and IFLA_VXLAN_REMCSUM_NOPARTIAL, which has no effect without
            // `remcsumrx`.
            0 | 24 => {}
            unknown => vxlan.unknown.push(unknown),
        }
    }
    if reserved_bits && !extended {
        vxlan.options.push("reserved_bits");
    }
    Ok(vxlan)
}

/// An interface address; `None` for families other than IPv4 and IPv6.
pub(super) fn address(envelope: &Envelope<'_>) -> Result<Option<Address>, DecodeError> {
    let (&[family, prefix_length, _, _, i0, i1, i2, i3], attributes) = envelope.body::<8>()?;
    if !matches!(family, AF_INET | AF_INET6) {
        return Ok(None);
    }
    let (mut local, mut peer) = (None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            1 => peer = Some(attribute.ip()?),
            2 => local = Some(attribute.ip()?),
            _ => {}
        }
    }
    let address = local.or(peer).ok_or_else(|| envelope.missing(2))?;
    Ok(Some(Address { ifindex: u32::from_ne_bytes([i0, i1, i2, i3]), address, prefix_length }))
}
