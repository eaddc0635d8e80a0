//! The settings (sysctls) of a new namespace.
//!
//! The kernel copies `net.ipv4.conf` from the machine's first namespace, where Docker, systemd, load
//! balancers and hardening guides change it, and `net.ipv6.conf` if
//! `net.core.devconf_inherit_init_net` is 1 (Documentation/admin-guide/sysctl/net.rst). Here they
//! get the kernel's defaults (`net/ipv4/devinet.c`, `net/ipv6/addrconf.c`), so that nodes are the
//! same on all machines. Other settings of a new namespace have their defaults already, but for
//! those of TCP and those of neighbours (`net.ipv4.neigh`, `net.ipv6.neigh`), which are the
//! machine's.

use std::io;
use std::path::{Path, PathBuf};

/// A setting of all interfaces: its name in `net.ipv4.conf`, or in `net.ipv6.conf`, and its default.
type Setting = (&'static str, &'static str);

const IPV4: &[Setting] = &[
    // Set by Docker. A node that forwards sends ICMP errors, and believes no redirects: the kernel
    // changes `accept_redirects` with it, so it comes first.
    ("forwarding", "0"),
    // Set by systemd and distributions: packets whose way back is another one are dropped.
    ("rp_filter", "0"),
    // Set for load balancers, kube-proxy and WireGuard: own addresses as sources, 127.0.0.0/8 from
    // elsewhere, and the packet's mark in the reverse path filter.
    ("accept_local", "0"),
    ("route_localnet", "0"),
    ("src_valid_mark", "0"),
    // Set for load balancers: which interface answers ARP for which address, and who asks.
    ("arp_ignore", "0"),
    ("arp_announce", "0"),
    ("arp_filter", "0"),
    ("proxy_arp", "0"),
    ("proxy_arp_pvlan", "0"),
    // Neighbour entries and gratuitous ARP that nobody asked for.
    ("arp_accept", "0"),
    ("arp_notify", "0"),
    ("arp_evict_nocarrier", "1"),
    ("drop_gratuitous_arp", "0"),
    // Set by hardening guides: what ICMP redirects and source routes do, and whether odd packets
    // fill the kernel's log.
    ("accept_redirects", "1"),
    ("secure_redirects", "1"),
    ("send_redirects", "1"),
    ("shared_media", "1"),
    // The kernel's default for one interface is 1. Both must be 1, and that of all is 0.
    ("accept_source_route", "0"),
    ("log_martians", "0"),
    // Routes of links without a carrier count, as in the kernel's own default.
    ("ignore_routes_with_linkdown", "0"),
    // Set by systemd: with an interface's first address, the others of its subnet go, too.
    ("promote_secondaries", "0"),
    // Broadcasts and multicast.
    ("bc_forwarding", "0"),
    ("drop_unicast_in_l2_multicast", "0"),
    ("force_igmp_version", "0"),
    // IPsec policies count.
    ("disable_policy", "0"),
    ("disable_xfrm", "0"),
];

const IPV6: &[Setting] = &[
    // Set by Docker and Kubernetes, by hardening guides.
    ("forwarding", "0"),
    ("disable_ipv6", "0"),
    ("accept_ra", "1"),
    ("accept_redirects", "1"),
    ("autoconf", "1"),
    // Set by distributions: which addresses an interface gets, and keeps when it goes down.
    ("addr_gen_mode", "0"),
    ("use_tempaddr", "0"),
    ("keep_addr_on_down", "0"),
    // As for IPv4.
    ("ignore_routes_with_linkdown", "0"),
    ("proxy_ndp", "0"),
    ("ndisc_notify", "0"),
];

/// Gives the calling thread's namespace, which is new, the kernel's defaults. Returns the setting
/// that could not be written, with the error. Only what differs is written.
pub(crate) fn set_defaults() -> Result<(), (PathBuf, io::Error)> {
    for (family, settings) in [("ipv4", IPV4), ("ipv6", IPV6)] {
        for (name, default) in settings {
            for interfaces in ["all", "default"] {
                let path = Path::new("/proc/sys/net").join(family).join("conf");
                let path = path.join(interfaces).join(name);
                // The kernel has no such setting, or no IPv6.
                let Ok(value) = std::fs::read_to_string(&path) else { continue };
                if value.trim() != *default {
                    std::fs::write(&path, default).map_err(|error| (path, error))?;
                }
            }
        }
    }
    Ok(())
}
