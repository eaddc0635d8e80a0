//! rtnetlink messages, decoded. The form is the same whether the kernel or zebra (FPM) sent them.
//!
//! Layouts: `include/uapi/linux/{rtnetlink,neighbour,nexthop,if_link}.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::MacAddr;

/// What happened to the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `RTM_NEW*`: it exists, with these attributes.
    New,
    /// `RTM_DEL*`: it was deleted.
    Delete,
}

/// One decoded message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// `RTM_NEWLINK`, `RTM_DELLINK`.
    Link(Operation, Link),
    /// `RTM_NEWADDR`, `RTM_DELADDR`.
    Address(Operation, Address),
    /// `RTM_NEWNEIGH`, `RTM_DELNEIGH` of family `AF_BRIDGE`: an FDB entry.
    Fdb(Operation, FdbEntry),
    /// `RTM_NEWNEIGH`, `RTM_DELNEIGH` of an IP family: a neighbour.
    Neighbour(Operation, Neighbour),
    /// `RTM_NEWROUTE`, `RTM_DELROUTE`.
    Route(Operation, Route),
    /// `RTM_NEWNEXTHOP`, `RTM_DELNEXTHOP`.
    NextHop(Operation, NextHop),
    /// `RTM_NEWQDISC`, `RTM_DELQDISC` of an interface's root. After a delete, the interface uses
    /// its default.
    Qdisc(Operation, Qdisc),
    /// `RTM_NEWMDB`, `RTM_DELMDB` with at least one entry: multicast entries of a bridge or of a
    /// vxlan netdev itself.
    Mdb(Operation, Mdb),
    /// A well-formed message of a type that this project does not use (its `nlmsg_type`).
    Other(u16),
    /// `RTM_NEWRULE`, `RTM_DELRULE`: a policy routing rule.
    Rule(Operation, Rule),
    /// A policy of the kernel's IPsec database that may apply to VXLAN. Occurs only in
    /// dumps.
    IpsecPolicy(IpsecPolicy),
    /// What the kernel does with packets that match no IPsec policy. Occurs only in dumps.
    IpsecDefault {
        /// Whether it drops received or sent packets.
        block: bool,
    },
    /// `RTM_NEWNETCONF`, `RTM_DELNETCONF` of IPv4 with a value of `rp_filter`.
    ReversePathFilter(Operation, ReversePathFilter),
    /// The IPsec database has changed and must be dumped again. Occurs only as an event.
    IpsecChanged,
}

/// A value of `net.ipv4.conf.*.rp_filter`. The kernel uses the larger of an interface's own value
/// and that of `all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReversePathFilter {
    /// The interface; -1 (`NETCONFA_IFINDEX_ALL`) for `all`, -2 for `default`.
    pub ifindex: i32,
    /// 0 is off, 1 strict, 2 loose.
    pub value: i32,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Interface index, unique in its namespace while it lives.
    pub ifindex: u32,
    /// `IFLA_IFNAME`.
    pub name: String,
    /// `ARPHRD_*`; 1 is Ethernet.
    pub hardware_type: u16,
    /// `IFF_*` flags.
    pub flags: u32,
    /// `IFLA_MTU`: the layer 3 MTU in bytes.
    pub mtu: u32,
    /// `IFLA_ADDRESS`, if it has six octets.
    pub mac: Option<MacAddr>,
    /// `IFLA_MASTER`: the ifindex of the bridge, VRF or bond above.
    pub master: Option<u32>,
    /// `IFLA_LINK`: the lower device or the veth peer, which may be in another namespace.
    pub link: Option<u32>,
    /// `IFLA_LINK_NETNSID`: the other namespace in which the lower device, or the underlay of a
    /// vxlan netdev, is.
    pub link_namespace: Option<i32>,
    /// `IFLA_CARRIER`.
    pub carrier: bool,
    /// `IFLA_OPERSTATE`; 6 is up.
    pub operstate: u8,
    /// The kind of device, with its attributes.
    pub kind: LinkKind,
    /// Whether the message is of family `AF_BRIDGE` and has only bridge port information. As a
    /// delete it means that the port left its bridge, not that the link was deleted.
    pub bridge_port_only: bool,
    /// Its bridge port options, if it is a bridge port.
    pub bridge_port: Option<BridgePort>,
    /// Whether `IFLA_XDP` reports an attached program.
    pub xdp: bool,
    /// `IFLA_QDISC`: the kind of its root queueing discipline; empty if the message has none.
    pub qdisc: String,
}

/// The multicast database of a bridge or of a vxlan netdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mdb {
    /// The bridge or the vxlan netdev.
    pub ifindex: u32,
    /// Number of entries in the message, at least one.
    pub entries: usize,
}

/// The root queueing discipline of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    /// The interface.
    pub ifindex: u32,
    /// `TCA_KIND`: `netem`, `tbf` and so on.
    pub kind: String,
}

impl Link {
    /// Whether the link is up and has a carrier: `IFF_UP` and `IFF_LOWER_UP`.
    #[must_use]
    pub const fn is_operational(&self) -> bool {
        self.flags & 0x1 != 0 && self.flags & 0x1_0000 != 0
    }
}

/// A bridge port's options (`IFLA_BRPORT_*`) that affect which frames pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BridgePort {
    /// `IFLA_BRPORT_STATE`: 0 disabled, 1 listening, 2 learning, 3 forwarding, 4 blocking.
    pub state: u8,
    /// `IFLA_BRPORT_MODE`: whether frames may leave through the port on which they arrived.
    pub hairpin: bool,
    /// `IFLA_BRPORT_LEARNING`.
    pub learning: bool,
    /// `IFLA_BRPORT_UNICAST_FLOOD`.
    pub unicast_flood: bool,
    /// `IFLA_BRPORT_MCAST_FLOOD`.
    pub multicast_flood: bool,
    /// `IFLA_BRPORT_BCAST_FLOOD`.
    pub broadcast_flood: bool,
    /// `IFLA_BRPORT_NEIGH_SUPPRESS`.
    pub neighbour_suppression: bool,
    /// `IFLA_BRPORT_ISOLATED`.
    pub isolated: bool,
    /// `IFLA_BRPORT_LOCKED`.
    pub locked: bool,
    /// `IFLA_BRPORT_BACKUP_PORT`: whether frames for this port go to another one while it has no
    /// carrier.
    pub backup: bool,
}

/// `IFLA_INFO_KIND`, with the attributes of the kinds that this project uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LinkKind {
    /// No `IFLA_LINKINFO`: a physical device or the loopback.
    #[default]
    Plain,
    /// `veth`.
    Veth,
    /// `bridge`.
    Bridge(Bridge),
    /// `vxlan`.
    Vxlan(Box<Vxlan>),
    /// Any other kind, by its name (`vrf`, `vlan`, `bond`, `macvlan`, …).
    Other(String),
}

/// A bridge's attributes (`IFLA_BR_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bridge {
    /// `IFLA_BR_VLAN_FILTERING`: the bridge is VLAN-aware.
    pub vlan_filtering: bool,
    /// `IFLA_BR_AGEING_TIME` in hundredths of a second: how long the entry of a silent host is
    /// kept.
    pub ageing: u32,
    /// `IFLA_BR_NF_CALL_IPTABLES` or `_IP6TABLES`: whether bridged frames pass the IP packet
    /// filters.
    pub calls_netfilter: bool,
    /// Whether `IFLA_PROMISCUITY` is not 0. Then the bridge interface gets a copy of every bridged
    /// frame, as for a capture.
    pub promiscuous: bool,
}

/// A vxlan netdev's attributes (`IFLA_VXLAN_*`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Vxlan {
    /// `IFLA_VXLAN_ID`, 0 to 16777215 as the kernel allows.
    pub id: u32,
    /// `IFLA_VXLAN_LOCAL` or `_LOCAL6`.
    pub local: Option<IpAddr>,
    /// `IFLA_VXLAN_GROUP` or `_GROUP6`: a multicast group, or a default unicast remote.
    pub remote: Option<IpAddr>,
    /// `IFLA_VXLAN_LINK`: the device that outer packets are bound to; 0 or absent is none.
    pub link: Option<u32>,
    /// `IFLA_VXLAN_PORT`.
    pub destination_port: u16,
    /// `IFLA_VXLAN_PORT_RANGE`; (0, 0) is the kernel's default range.
    pub source_ports: (u16, u16),
    /// `IFLA_VXLAN_TTL`; 0 is the kernel's default.
    pub ttl: u8,
    /// `IFLA_VXLAN_TTL_INHERIT`.
    pub ttl_inherit: bool,
    /// `IFLA_VXLAN_TOS`; 1 is inherit.
    pub tos: u8,
    /// `IFLA_VXLAN_DF`: 0 unset, 1 set, 2 inherit.
    pub df: u8,
    /// `IFLA_VXLAN_LABEL` (flow label, IPv6 underlay), host order.
    pub label: u32,
    /// `IFLA_VXLAN_LEARNING`.
    pub learning: bool,
    /// `IFLA_VXLAN_AGEING` in seconds; 0 means that entries do not age.
    pub ageing: u32,
    /// `IFLA_VXLAN_LIMIT` (`maxaddress`): maximum number of FDB entries; 0 means no limit.
    pub limit: u32,
    /// `IFLA_VXLAN_UDP_CSUM`: whether outer UDP checksums are sent over IPv4.
    pub udp_checksum: bool,
    /// `IFLA_VXLAN_UDP_ZERO_CSUM6_TX`.
    pub udp6_zero_checksum_tx: bool,
    /// `IFLA_VXLAN_UDP_ZERO_CSUM6_RX`.
    pub udp6_zero_checksum_rx: bool,
    /// `IFLA_VXLAN_COLLECT_METADATA`: an `external` device.
    pub external: bool,
    /// `IFLA_VXLAN_VNIFILTER`.
    pub vni_filter: bool,
    /// Names of further options that are on and affect what is sent or accepted, as `ip -d link`
    /// prints them. These are `proxy`, `rsc`, `l2miss`, `l3miss`, `remcsumtx`, `remcsumrx`, `gbp`,
    /// `gpe`, `nolocalbypass` and `mcroute`. Also `reserved_bits` if not those of RFC 7348, and
    /// `label_policy` if not fixed.
    pub options: Vec<&'static str>,
    /// The numbers of attributes that this program does not know. Their effect is unknown.
    pub unknown: Vec<u16>,
}

/// An IP address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The interface.
    pub ifindex: u32,
    /// `IFA_LOCAL`, or `IFA_ADDRESS` where that is absent.
    pub address: IpAddr,
    /// Prefix length in bits.
    pub prefix_length: u8,
}

/// An FDB entry, of a bridge port (`master`) or of a vxlan netdev itself (`self`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FdbEntry {
    /// The bridge port, or the vxlan netdev.
    pub ifindex: u32,
    /// `NDA_LLADDR`; the all-zero address is for the flood list of a vxlan netdev.
    pub mac: MacAddr,
    /// `NDA_DST`: the remote VTEP.
    pub destination: Option<IpAddr>,
    /// `NDA_MASTER`: the bridge.
    pub master: Option<u32>,
    /// `NDA_VLAN`.
    pub vlan: Option<u16>,
    /// `NDA_PORT` in host byte order: the destination port, if it differs from the netdev's.
    pub port: Option<u16>,
    /// `NDA_VNI`: the VNI, if it differs from the netdev's.
    pub vni: Option<u32>,
    /// `NDA_SRC_VNI`: sent by zebra since FRR 9.0.
    pub source_vni: Option<u32>,
    /// `NDA_IFINDEX`: the device to send through.
    pub via: Option<u32>,
    /// `NDA_NH_ID`: an FDB next-hop group (EVPN multihoming).
    pub next_hop_id: Option<u32>,
    /// `NUD_*`.
    pub state: u16,
    /// `NTF_*` (`self` 0x02, `master` 0x04, `extern_learn` 0x10, `sticky` 0x40), extended flags
    /// above bit 8.
    pub flags: u32,
}

/// A neighbour entry: an IP address and the MAC address that it resolves to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// The interface that the neighbour is on.
    pub ifindex: u32,
    /// `NDA_DST`.
    pub address: IpAddr,
    /// `NDA_LLADDR`; absent while the address is being resolved.
    pub mac: Option<MacAddr>,
    /// `NUD_*`.
    pub state: u16,
    /// `NTF_*`.
    pub flags: u32,
}

impl Neighbour {
    /// Whether frames may be sent to `mac`: `NUD_VALID` (`include/net/neighbour.h`).
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        // REACHABLE | STALE | DELAY | PROBE | NOARP | PERMANENT
        self.state & (0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80) != 0
    }
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// `RTA_TABLE` or `rtm_table`; 254 is main, 255 local.
    pub table: u32,
    /// `RTA_DST`; the unspecified address for a default route.
    pub destination: IpAddr,
    /// Prefix length in bits.
    pub prefix_length: u8,
    /// `RTA_PRIORITY`: the metric, lower is preferred.
    pub priority: u32,
    /// `rtm_tos`.
    pub tos: u8,
    /// `RTA_SRC` and its prefix length in bits: a route for packets from these addresses only, which
    /// IPv6 has.
    pub source: Option<(IpAddr, u8)>,
    /// `RTN_*`; 1 is unicast, 2 local, 6 blackhole, 7 unreachable, 8 prohibit.
    pub route_type: u8,
    /// `RTPROT_*`; 186 is BGP.
    pub protocol: u8,
    /// Whether `NLM_F_REPLACE` is set.
    pub replace: bool,
    /// Whether the route comes before others of its metric (`ip route prepend`). Of IPv4 only.
    pub prepend: bool,
    /// Whether `RTM_F_CLONED` is set: a cache entry, never a route of the FIB.
    pub cloned: bool,
    /// `RTA_METRICS` / `RTAX_MTU`, in bytes.
    pub mtu: Option<u32>,
    /// Whether `RTAX_LOCK` includes the MTU. Packets on this route then never have DF set.
    pub mtu_locked: bool,
    /// `RTA_METRICS` / `RTAX_HOPLIMIT`: the TTL of packets on this route, unless the sender sets
    /// one.
    pub hop_limit: Option<u32>,
    /// Where it leads.
    pub via: RouteTarget,
}

/// Where a route leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RouteTarget {
    /// Next hops in the message itself (`RTA_OIF`, `RTA_GATEWAY`, `RTA_VIA`, `RTA_MULTIPATH`);
    /// empty for blackholes.
    NextHops(Vec<RouteNextHop>),
    /// `RTA_NH_ID`: a next-hop object. The kernel also adds its resolved next hops, which are
    /// ignored.
    Object(u32),
}

/// One next hop of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteNextHop {
    /// `RTA_OIF`; 0 if absent (a recursive next hop).
    pub ifindex: u32,
    /// `RTA_GATEWAY` or `RTA_VIA` (RFC 8950: an IPv4 route may have an IPv6 gateway). Absent if the
    /// destination is on-link.
    pub gateway: Option<IpAddr>,
    /// Weight, 1 to 256.
    pub weight: u16,
    /// `RTNH_F_*`: dead 1, onlink 4, linkdown 16.
    pub flags: u8,
    /// `RTA_ENCAP`: the VNI in FRR's FPM encapsulation of type 100.
    pub vni: Option<u32>,
    /// `RTA_ENCAP_TYPE` (`LWTUNNEL_ENCAP_*`): packets leave with an additional header, for example
    /// MPLS or SRv6.
    pub encapsulation: Option<u16>,
}

/// A policy routing rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// `FRA_PRIORITY`: rules with lower values are evaluated first.
    pub priority: u32,
    /// `FRA_TABLE` or the table of `struct fib_rule_hdr`.
    pub table: u32,
    /// `FR_ACT_*`: 1 look up the table, 2 go to another rule, 3 do nothing, 6 blackhole, 7
    /// unreachable, 8 prohibit.
    pub action: u8,
    /// `FIB_RULE_INVERT`: the rule matches packets that its selectors do not.
    pub inverted: bool,
    /// `FRA_SRC` and its length in bits; length 0 is any source. The address shows the family of
    /// the rule.
    pub from: (IpAddr, u8),
    /// `FRA_DST` and its length in bits; length 0 is any destination.
    pub to: (IpAddr, u8),
    /// `FRA_IIFNAME`; `lo` stands for packets that this host sends.
    pub input: Option<String>,
    /// `FRA_OIFNAME`: only packets of sockets that are bound to this interface.
    pub output: Option<String>,
    /// `FRA_IP_PROTO`.
    pub protocol: Option<u8>,
    /// `FRA_DPORT_RANGE`: the first and the last port.
    pub destination_ports: Option<(u16, u16)>,
    /// `FRA_L3MDEV`: the rule for packets of VRFs.
    pub l3mdev: bool,
    /// Other selectors and options that the rule has, by their names in `ip rule`: `fwmark`, `tos`,
    /// `uidrange`, …
    pub others: Vec<&'static str>,
}

impl Rule {
    /// The IPv6 rules of a new network namespace.
    #[must_use]
    pub fn ipv6_defaults() -> [Self; 2] {
        let any = (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
        [(0, 255), (32_766, 254)].map(|(priority, table)| Self {
            priority,
            table,
            from: any,
            to: any,
            ..Self::default()
        })
    }

    /// The IPv4 rules of a new network namespace.
    #[must_use]
    pub fn defaults() -> [Self; 3] {
        [(0, 255), (32_766, 254), (32_767, 253)].map(|(priority, table)| Self {
            priority,
            table,
            ..Self::default()
        })
    }
}

impl Default for Rule {
    /// A rule that looks up table 0, which does not exist, for every packet.
    fn default() -> Self {
        let any = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        Self {
            priority: 0,
            table: 0,
            action: 1,
            inverted: false,
            from: any,
            to: any,
            input: None,
            output: None,
            protocol: None,
            destination_ports: None,
            l3mdev: false,
            others: Vec::new(),
        }
    }
}

/// The packets to which an IPsec policy applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpsecDirection {
    /// Packets that this host receives.
    In,
    /// Packets that this host sends.
    Out,
}

/// An IPsec policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpsecPolicy {
    /// `XFRM_POLICY_IN` or `_OUT`.
    pub direction: IpsecDirection,
    /// Source prefix of its selector: address and length in bits.
    pub source: (IpAddr, u8),
    /// Destination prefix of its selector: address and length in bits.
    pub destination: (IpAddr, u8),
    /// IP protocol of its selector; 0 is any.
    pub protocol: u8,
    /// Destination port of its selector, and a mask of the bits that count.
    pub destination_port: (u16, u16),
    /// Whether it drops packets.
    pub block: bool,
    /// Whether it requires a transformation, such as ESP.
    pub transforms: bool,
}

/// A next-hop object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextHop {
    /// `NHA_ID`.
    pub id: u32,
    /// Its kind.
    pub kind: NextHopKind,
}

/// The kind of a next-hop object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextHopKind {
    /// A single next hop: `NHA_OIF`, `NHA_GATEWAY`, flags of `struct nhmsg`.
    Single(RouteNextHop),
    /// `NHA_BLACKHOLE`.
    Blackhole,
    /// `NHA_GROUP`: pairs of object id and weight (1 to 256).
    Group(Vec<(u32, u16)>),
    /// `NHA_FDB` (VTEPs of EVPN multihoming), or a delete message, which has only the id.
    Other,
}
