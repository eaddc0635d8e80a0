//! Why a VNI stays with kernel VXLAN.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use tables::VniSource;
use wire::{MacAddr, Vni};

/// A vxlan netdev that stays with the kernel, or a standalone VNI that is not forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftToKernel {
    /// Where the VNI comes from.
    pub source: VniSource,
    /// Its name.
    pub name: String,
    /// Its VNI. 0 for devices without one.
    pub vni: u32,
    /// Why.
    pub reason: KernelOnlyReason,
}

impl fmt::Display for LeftToKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, vni, reason, .. } = self;
        if reason.is_external() {
            write!(f, "{name} (external) stays with kernel VXLAN: {reason}")
        } else if self.is_standalone() {
            write!(f, "{name} (VNI {vni}) is not forwarded: {reason}")
        } else {
            write!(f, "{name} (VNI {vni}) stays with kernel VXLAN: {reason}")
        }
    }
}

impl LeftToKernel {
    /// Whether it is a standalone VNI: there is no netdev, and the kernel does not forward it.
    #[must_use]
    pub const fn is_standalone(&self) -> bool {
        self.source.is_configured()
    }

    /// Its VNI, or `external` if packets bring their own.
    #[must_use]
    pub fn vni_text(&self) -> String {
        if self.reason.is_external() { "external".to_owned() } else { self.vni.to_string() }
    }
}

impl KernelOnlyReason {
    /// Slugs of the reasons for which vtepd does not choose source ports either: the user excluded
    /// the netdev, or it sends nothing.
    pub const UNTOUCHED: &'static [&'static str] =
        &["standalone", "not-included", "excluded", "detached", "settings", "down"];

    /// Whether vtepd chooses the source ports of frames that the kernel encapsulates.
    #[must_use]
    pub fn chooses_ports(&self) -> bool {
        !Self::UNTOUCHED.contains(&self.slug())
    }

    /// Whether the netdev has no VNI of its own.
    #[must_use]
    pub const fn is_external(&self) -> bool {
        matches!(self, Self::External | Self::VniFilter)
    }
}

/// The sentence about a VNI that the settings name and that no vxlan netdev has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoNetdev(pub Vni);

impl fmt::Display for NoNetdev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "VNI {} is to be taken over, but no vxlan netdev of this network namespace has it; it is taken over when one comes",
            self.0
        )
    }
}

/// Why a VNI stays with the kernel. Each reads as the end of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelOnlyReason {
    /// The configuration describes standalone VNIs, so all netdevs stay with the kernel.
    #[error("vtepd runs standalone, on the VNIs that its configuration describes")]
    Standalone,
    /// The configuration includes other VNIs only.
    #[error("the configuration does not include it")]
    NotIncluded,
    /// The configuration excludes it.
    #[error("the configuration excludes it")]
    Excluded,
    /// It was detached while the daemon ran.
    #[error("it was detached; `vtepctl attach` takes it over again")]
    Detached,
    /// The configuration is contradictory.
    #[error("its settings contradict each other: {0}")]
    Settings(#[from] path::SettingsError),
    /// `external`: each packet brings its VNI.
    #[error("'external' is on: each packet brings its own tunnel")]
    External,
    /// `vnifilter`: one netdev for many VNIs.
    #[error("'vnifilter' is on: one netdev serves many VNIs")]
    VniFilter,
    /// VNI 0, which RFC 7348 allows and neither FRR nor vtepd uses.
    #[error("its VNI is 0")]
    VniZero,
    /// Not operational: not administratively up, or without carrier.
    #[error("it is down")]
    Down,
    /// Not a port of a bridge.
    #[error("it is in no bridge")]
    NotInBridge,
    /// In a bridge with `vlan_filtering`.
    #[error("its bridge {bridge} is VLAN-aware")]
    VlanAwareBridge {
        /// The bridge's name.
        bridge: String,
    },
    /// No `local`, or one that no other host reaches.
    #[error("it has no 'local' address, or a loopback one")]
    NoLocalAddress,
    /// An IPv6 address that only the kernel supports: link-local, IPv4-mapped, or of another family
    /// than the other addresses.
    #[error("the address {address} is link-local, IPv4-mapped, or of another family than others")]
    Ipv6Underlay {
        /// That address.
        address: IpAddr,
    },
    /// `group`, or 255.255.255.255.
    #[error("it floods to many by one address ({group})")]
    MulticastGroup {
        /// The group.
        group: IpAddr,
    },
    /// `dev`.
    #[error("it is bound to {device}")]
    LowerDevice {
        /// The lower device's name.
        device: String,
    },
    /// Options that change what is sent or accepted.
    #[error("unsupported options: {}", .0.join(", "))]
    Options(Vec<&'static str>),
    /// The netdev's `df` has a value that vtepd does not know.
    #[error("its 'df' has the unknown value {0}")]
    UnknownDf(u8),
    /// An FDB entry that only the kernel supports.
    #[error("its FDB entry for {mac} has {oddity}")]
    FdbEntry {
        /// The entry's MAC address.
        mac: MacAddr,
        /// The unsupported property.
        oddity: UnsupportedEntry,
    },
    /// A remote VTEP whose route only the kernel supports.
    #[error("its remote VTEP {vtep} {obstacle}")]
    Underlay {
        /// The VTEP's address.
        vtep: IpAddr,
        /// The property of the route.
        obstacle: UnusableRoute,
    },
    /// Another netdev with the same local address, port and VNI. Received packets could belong to
    /// either.
    #[error("{other} has the same local address, port and VNI")]
    Duplicate {
        /// The other netdev's name.
        other: String,
    },
    /// `datapath = "kernel"`.
    #[error("the configuration chooses the kernel datapath for it")]
    KernelDatapath,
    /// All slots of the bridge punt pair are in use.
    #[error("4094 other VNIs are taken over already")]
    SlotsExhausted,
    /// Policy routing rules may route its packets differently.
    #[error("policy routing: {0}")]
    PolicyRouting(String),
    /// An IPsec policy may apply to its packets.
    #[error("{0}")]
    IpsecPolicy(String),
    /// A packet filter may match its packets: the rule, or why the rules cannot be read.
    #[error("{0}")]
    PacketFilter(String),
    /// The `local` address is not an address of this host.
    #[error("this host does not have its 'local' address {0}")]
    LocalAddressMissing(IpAddr),
    /// The netdev was moved here. Its packets are sent and received in another namespace.
    #[error("its underlay is in another network namespace")]
    ForeignNamespace,
    /// The kernel reported an option that this version does not know.
    #[error("it has an option that this version of vtepd does not know (IFLA_VXLAN attribute {0})")]
    UnknownOption(u16),
    /// A queueing discipline of the netdev that redirected frames would not pass.
    #[error("its queueing discipline {kind} delays or drops frames")]
    NetdevQdisc {
        /// Which one: `tbf`, `htb` and so on.
        kind: String,
    },
    /// Multicast entries of the netdev (`bridge mdb`).
    #[error("it has multicast entries of its own (bridge mdb)")]
    VxlanMdb,
}

/// A property of an FDB entry that the kernel supports and vtepd does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedEntry {
    /// `port`.
    #[error("a UDP port of its own ({0})")]
    Port(u16),
    /// `vni`.
    #[error("a VNI of its own ({0})")]
    Vni(u32),
    /// `via`.
    #[error("an output interface of its own ({0})")]
    Via(u32),
    /// `nhid`: EVPN multihoming.
    #[error("a next-hop group ({0}, EVPN multihoming)")]
    NextHop(u32),
    /// An IPv6 destination that is link-local or IPv4-mapped.
    #[error("a link-local or IPv4-mapped destination ({0})")]
    Ipv6(std::net::Ipv6Addr),
    /// A multicast destination, or 255.255.255.255.
    #[error("a multicast or broadcast destination ({0})")]
    MulticastGroup(IpAddr),
    /// No destination at all.
    #[error("no destination")]
    NoDestination,
    /// A multicast MAC address: a flood list for one group.
    #[error("a flood list of its own")]
    Group,
}

/// Why vtepd cannot use the route to a VTEP. Each follows the VTEP's address in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum UnusableRoute {
    /// An address of this namespace.
    #[error("is an address of this host")]
    OwnAddress,
    /// Through a bridge: its ports are switched, not routed.
    #[error("is routed through {device}, which lies on bridge {bridge}")]
    Bridge {
        /// The route's output interface.
        device: String,
        /// The bridge.
        bridge: String,
    },
    /// Through a port of a bridge.
    #[error("is routed through {device}, a port of bridge {bridge}")]
    BridgePort {
        /// The route's output interface.
        device: String,
        /// The bridge.
        bridge: String,
    },
    /// Through a vxlan netdev.
    #[error("is routed through {device}, a VXLAN tunnel itself")]
    Tunnel {
        /// The route's output interface.
        device: String,
    },
    /// Through a device without Ethernet headers.
    #[error("is routed through {device}, which is no Ethernet interface")]
    NotEthernet {
        /// The route's output interface.
        device: String,
    },
    /// Through a device whose neighbours have no addresses of their own.
    #[error("is routed through {device}, which asks for no neighbours (arp off)")]
    NoArp {
        /// The route's output interface.
        device: String,
    },
    /// A broadcast, anycast or multicast route.
    #[error("has a route of type {0}, which is no unicast route")]
    RouteType(u8),
    /// Packets get another header, such as one of MPLS or SRv6.
    #[error("is routed through {device} with {} encapsulation", encapsulation(*.kind))]
    Encapsulation {
        /// The route's output interface.
        device: String,
        /// `LWTUNNEL_ENCAP_*`.
        kind: u16,
    },
    /// Routes that depend on the outer TOS, on a tunnel that sets one.
    #[error("has routes for single TOS values, and the netdev's packets have a TOS")]
    TosRoute,
    /// Routes that depend on the outer source address.
    #[error("has routes from a source prefix")]
    SourceRoute,
    /// The route sets the TTL.
    #[error("has a route with hoplimit {0}, and the netdev has no TTL of its own")]
    HopLimit(u32),
    /// The IPv6 settings of the output interface are not known.
    #[error("is routed through {device}, whose IPv6 hop limit and MTU are not known (yet)")]
    Ipv6Settings {
        /// The route's output interface.
        device: String,
    },
    /// The route locks its MTU, so that its packets have no DF, on a tunnel whose packets may have
    /// it.
    #[error("has a route with a locked MTU, and the netdev sets or inherits DF")]
    LockedMtu,
}

/// The name that `ip route` gives to an encapsulation (`include/uapi/linux/lwtunnel.h`).
fn encapsulation(kind: u16) -> Cow<'static, str> {
    Cow::Borrowed(match kind {
        1 => "mpls",
        2 => "ip",
        3 => "ila",
        4 => "ip6",
        5 => "seg6",
        6 => "bpf",
        7 => "seg6local",
        8 => "rpl",
        9 => "ioam6",
        10 => "xfrm",
        other => return Cow::Owned(format!("unknown ({other})")),
    })
}
