//! Short names for the reasons why VNIs stay with kernel VXLAN: labels of metrics and fields of the
//! API.

use crate::eligibility::ineligible::{KernelOnlyReason, UnusableRoute};

/// Gives each value of a type its slug and a general sentence: a list of both, and a method. The
/// match is exhaustive, so a new value without a slug does not compile.
macro_rules! slugs {
    ($of:ident: $(#[$of_list:meta])* $list:ident, $(#[$of_method:meta])* $method:ident;
     $($pattern:pat => $slug:literal, $sentence:literal;)+) => {
        impl $of {
            $(#[$of_list])*
            pub const $list: &'static [(&'static str, &'static str)] = &[$(($slug, $sentence)),+];

            $(#[$of_method])*
            #[must_use]
            pub const fn $method(&self) -> &'static str {
                match self {
                    $($pattern => $slug),+
                }
            }
        }
    };
}

pub(crate) use slugs;

slugs! {
    KernelOnlyReason:
    /// All slugs, each with a general sentence for the documentation.
    ALL,
    /// The reason's short name. It never contains names or addresses and does not change between
    /// versions.
    slug;
    KernelOnlyReason::Standalone => "standalone",
        "vtepd runs standalone, on the VNIs that its configuration describes";
    KernelOnlyReason::NotIncluded => "not-included", "the configuration names other VNIs";
    KernelOnlyReason::Excluded => "excluded", "the configuration excludes the VNI";
    KernelOnlyReason::Detached => "detached", "the VNI was detached by `vtepctl detach`";
    KernelOnlyReason::Settings(_) => "settings", "the settings of the VNI contradict each other";
    KernelOnlyReason::External => "external", "the netdev is `external`: each packet brings its own tunnel";
    KernelOnlyReason::VniFilter => "vni-filter", "the netdev has `vnifilter`: it serves many VNIs";
    KernelOnlyReason::VniZero => "vni-zero", "the VNI is 0";
    KernelOnlyReason::Down => "down", "the netdev is down";
    KernelOnlyReason::NotInBridge => "not-in-bridge", "the netdev is in no bridge";
    KernelOnlyReason::VlanAwareBridge { .. } => "vlan-aware-bridge", "the bridge is VLAN-aware";
    KernelOnlyReason::NoLocalAddress => "no-local-address", "the netdev has no `local` address, or a loopback one";
    KernelOnlyReason::Ipv6Underlay { .. } => "ipv6-underlay",
        "an IPv6 address is link-local or IPv4-mapped, or the families of the addresses differ";
    KernelOnlyReason::MulticastGroup { .. } => "multicast-group", "the netdev floods to a multicast group or to 255.255.255.255";
    KernelOnlyReason::LowerDevice { .. } => "lower-device", "the netdev is bound to a lower device (`dev`)";
    KernelOnlyReason::Options(_) => "options",
        "the netdev has options that change what is sent or accepted, such as `gbp` or `proxy`";
    KernelOnlyReason::UnknownDf(_) => "unknown-df", "`df` has a value that vtepd does not know";
    KernelOnlyReason::FdbEntry { .. } => "fdb-entry",
        "an FDB entry has a port, a VNI, an interface, a next-hop group or a destination that only the kernel follows";
    KernelOnlyReason::Underlay { obstacle: UnusableRoute::OwnAddress, .. } => "remote-is-local",
        "a remote VTEP has an address of this host";
    KernelOnlyReason::Underlay { obstacle: UnusableRoute::Bridge { .. }, .. } => "route-through-bridge",
        "the route to a remote VTEP leads through a bridge";
    KernelOnlyReason::Underlay { obstacle: UnusableRoute::BridgePort { .. }, .. } => "route-through-bridge-port",
        "the route to a remote VTEP leads through a port of a bridge";
    KernelOnlyReason::Underlay { obstacle: UnusableRoute::Tunnel { .. }, .. } => "route-through-tunnel",
        "the route to a remote VTEP leads through a VXLAN tunnel";
    KernelOnlyReason::Underlay { obstacle: UnusableRoute::NotEthernet { .. }, .. } => "route-not-ethernet",
        "the route to a remote VTEP leads through an interface without Ethernet headers";
    KernelOnlyReason::Underlay { obstacle: UnusableRoute::NoArp { .. }, .. } => "route-no-arp",
        "the route to a remote VTEP leads through an interface with `arp off`";
    KernelOnlyReason::Underlay { obstacle: UnusableRoute::Ipv6Settings { .. }, .. } => "ipv6-settings",
        "the IPv6 hop limit and MTU of an uplink have not been read yet, or cannot be read";
    KernelOnlyReason::Underlay { obstacle: UnusableRoute::RouteType(_), .. } => "route-type",
        "the route to a remote VTEP is a broadcast, anycast, multicast or other special route";
    KernelOnlyReason::Duplicate { .. } => "duplicate",
        "another netdev has the same local address, UDP port and VNI";
    KernelOnlyReason::KernelDatapath => "kernel-datapath",
        "the configuration chooses the kernel datapath";
    KernelOnlyReason::SlotsExhausted => "slots-exhausted", "4094 other VNIs are taken over already";
    KernelOnlyReason::PolicyRouting(_) => "policy-routing",
        "a rule of policy routing (`ip rule`) may match VXLAN packets, or a default rule is missing";
    KernelOnlyReason::IpsecPolicy(_) => "ipsec-policy", "an IPsec policy may match VXLAN packets";
    KernelOnlyReason::PacketFilter(_) => "packet-filter",
        "a rule of nftables or iptables may match VXLAN packets, and does more than accept or count them";
    KernelOnlyReason::LocalAddressMissing(_) => "local-address-missing",
        "this host does not have the netdev's `local` address";
    KernelOnlyReason::ForeignNamespace => "foreign-namespace",
        "the netdev was moved here and its underlay is in another network namespace";
    KernelOnlyReason::UnknownOption(_) => "unknown-option",
        "the netdev has an option that is newer than this version of vtepd";
    KernelOnlyReason::Underlay { obstacle: UnusableRoute::Encapsulation { .. }, .. } => "route-encapsulation",
        "the route to a remote VTEP has an encapsulation, such as MPLS or SRv6";
    KernelOnlyReason::Underlay { obstacle: UnusableRoute::TosRoute, .. } => "tos-route",
        "a remote VTEP has routes for single TOS values, and the netdev sets or inherits the TOS";
    KernelOnlyReason::Underlay { obstacle: UnusableRoute::SourceRoute, .. } => "source-route",
        "a remote VTEP has IPv6 routes that are valid for a source prefix only";
    KernelOnlyReason::Underlay { obstacle: UnusableRoute::HopLimit(_), .. } => "route-hoplimit",
        "the route to a remote VTEP sets the TTL, and the netdev has no TTL of its own";
    KernelOnlyReason::Underlay { obstacle: UnusableRoute::LockedMtu, .. } => "route-mtu-locked",
        "the route to a remote VTEP has a locked MTU (`mtu lock`), and the netdev sets or inherits DF";
    KernelOnlyReason::NetdevQdisc { .. } => "netdev-qdisc",
        "the netdev has a queueing discipline that delays or drops frames, such as `tbf` or `netem`";
    KernelOnlyReason::VxlanMdb => "vxlan-mdb", "the netdev has multicast entries of its own (`bridge mdb`)";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn slugs_are_unique_and_in_kebab_case() {
        let slugs: BTreeSet<&str> = KernelOnlyReason::ALL.iter().map(|(slug, _)| *slug).collect();
        assert_eq!(slugs.len(), KernelOnlyReason::ALL.len());
        for (slug, sentence) in KernelOnlyReason::ALL {
            let kebab = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(!slug.is_empty() && slug.chars().all(kebab), "{slug}");
            assert!(!sentence.is_empty() && !sentence.ends_with('.'), "{slug}: {sentence}");
        }
    }
}
