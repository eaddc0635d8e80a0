//! A leaf with a host, and a peer with kernel VXLAN and a host.
//!
//! ```text
//!  host: eth0 ── hp ─ br0 ─ vx0 ─ leaf ─ up1 ── down1 ─ peer ─ vx0 ─ br0 ─ hp ── eth0: far
//!                                                └ a gateway that does not exist
//! ```

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use fabric::netns::{self, NetnsError};
use fabric::rtnl::{Rtnl, RtnlError, VethEnd, Vxlan};
use fabric::{Namespace, counters};
use wire::MacAddr;

use crate::{Error, redirect};

/// The prefix of the names of all namespaces.
pub const PREFIX: &str = "vty-";
/// The MAC address of the uplink.
pub const UPLINK: MacAddr = MacAddr([2, 0xaa, 0, 0, 0, 1]);
/// The MAC address of the leaf's host.
pub const HOST: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// The MAC address of the peer's host.
pub const FAR: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// The number of station MAC addresses on either side. No interface has them, so frames to them are
/// dropped where they arrive.
pub const STATIONS: u8 = 8;
/// The MTU in bytes of the hosts, the bridges' ports and the vxlan netdevs.
pub const MTU: u32 = 1500;
/// The MTU in bytes for measurements with longer frames.
pub const JUMBO: u32 = 9000;
/// The MTU in bytes of the uplink.
const UNDERLAY_MTU: u32 = 9500;
/// The VTEP addresses of the leaf and of its peer, and one that no node has.
const LEAF_VTEP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER_VTEP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const UNUSED_VTEP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);
/// The gateway to the VTEP that no node has.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 255, 1, 3);
/// The length in bytes of Ethernet, IPv4 and UDP headers.
pub(crate) const HEADERS: usize = frame::SHARED_HEADERS;

/// The MAC address of a station behind the VTEP that does not exist.
#[must_use]
pub const fn remote_station(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, number % STATIONS])
}

/// The source MAC address of the peer's frames.
#[must_use]
pub const fn peer_station(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 3, number % STATIONS])
}

/// The MAC address of a station at the leaf's host port.
#[must_use]
pub const fn local_station(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 2, number % STATIONS])
}

/// The namespaces. Dropping the value deletes them.
#[derive(Debug)]
pub struct Testbed {
    /// The namespace of the leaf's host.
    pub host: Namespace,
    /// The namespace of the leaf.
    pub leaf: Namespace,
    /// The namespace of the peer.
    pub peer: Namespace,
    /// The namespace of the peer's host.
    pub far: Namespace,
    /// The MTU of the leaf's vxlan netdev, and whether its packets have UDP checksums.
    mtu: AtomicU32,
    udp_checksum: AtomicBool,
}

/// Counters of frames at one place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Passed {
    /// Frames. The frames of a super-frame are counted individually.
    pub frames: u64,
    /// Packets as counted by the link. A super-frame is one packet.
    pub packets: u64,
}

impl Testbed {
    /// Creates the namespaces and links. `tag` distinguishes several testbeds of one process.
    ///
    /// # Errors
    /// If namespaces or links cannot be created.
    pub fn new(tag: &str) -> Result<Self, Error> {
        let name = |node: &str| format!("{PREFIX}{tag}{node}-{}", std::process::id());
        let [host, leaf, peer, far] =
            ["host", "leaf", "peer", "far"].map(|node| Namespace::create(name(node)));
        let testbed = Self {
            host: host?,
            leaf: leaf?,
            peer: peer?,
            far: far?,
            mtu: AtomicU32::new(MTU),
            udp_checksum: AtomicBool::new(true),
        };
        for namespace in [&testbed.host, &testbed.leaf, &testbed.peer, &testbed.far] {
            // This fails on a kernel without IPv6, which sends no IPv6 frames either.
            let _ = namespace
                .enter(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"))?;
        }
        overlay(&testbed.leaf, LEAF_VTEP, &testbed.host)?;
        overlay(&testbed.peer, PEER_VTEP, &testbed.far)?;
        let uplink = VethEnd { name: "up1", mac: Some(UPLINK), mtu: UNDERLAY_MTU };
        let far_end = VethEnd { name: "down1", mac: None, mtu: UNDERLAY_MTU };
        netns::veth_pair((&testbed.leaf, uplink), (&testbed.peer, far_end))?;
        testbed.leaf.rtnl(|rtnl| {
            rtnl.add_address("up1", "10.255.1.1/29")?;
            rtnl.set_neighbour("up1", GATEWAY, MacAddr([2, 0xee, 0, 0, 0, 1]))
        })?;
        testbed.peer.rtnl(|rtnl| {
            rtnl.add_address("down1", "10.255.1.2/29")?;
            rtnl.add_route(LEAF_VTEP, Ipv4Addr::new(10, 255, 1, 1), "down1")?;
            rtnl.add_remote_mac("vx0", HOST, LEAF_VTEP)
        })?;
        for (host, mac, address, other, other_mac) in [
            (&testbed.host, HOST, "10.1.0.1/24", Ipv4Addr::new(10, 1, 0, 2), FAR),
            (&testbed.far, FAR, "10.1.0.2/24", Ipv4Addr::new(10, 1, 0, 1), HOST),
        ] {
            host.rtnl(|rtnl| {
                rtnl.set_mac("eth0", mac)?;
                rtnl.add_address("eth0", address)?;
                rtnl.set_neighbour("eth0", other, other_mac)
            })?;
        }
        testbed.leaf.rtnl(|rtnl| {
            rtnl.add_route(PEER_VTEP, Ipv4Addr::new(10, 255, 1, 2), "up1")?;
            rtnl.add_route(UNUSED_VTEP, GATEWAY, "up1")?;
            (0..STATIONS).try_for_each(|number| rtnl.set_port_mac("hp", local_station(number)))
        })?;
        testbed.add_remote_macs()?;
        // The host's link must split the super-frames that a sender transmits.
        udp_segmentation(&testbed.host, "eth0", false)?;
        Ok(testbed)
    }

    /// Moves the stations behind the VTEP that does not exist to the peer, which answers probes.
    ///
    /// # Errors
    /// If an entry cannot be created.
    pub fn move_stations(&self) -> Result<(), Error> {
        for number in 0..STATIONS {
            let (mac, vtep) = (remote_station(number).to_string(), PEER_VTEP.to_string());
            let entry =
                ["bridge", "fdb", "replace", &mac, "dev", "vx0", "dst", &vtep, "self", "static"];
            self.leaf.run(&entry)?;
        }
        Ok(())
    }

    /// Gives the leaf and its peer this many links to each other, and multipath routes over them. Links
    /// that exist stay.
    ///
    /// # Errors
    /// If a link or a route cannot be created.
    pub fn set_uplinks(&self, count: u8) -> Result<(), Error> {
        let links = counters::read(&self.leaf)?;
        let (mut there, mut back) = (Vec::new(), Vec::new());
        for number in 1..=count {
            let (up, down) = (format!("up{number}"), format!("down{number}"));
            let [own, other] = [1, 2].map(|end| format!("10.255.{number}.{end}"));
            if !links.contains_key(&up) {
                let end = |name| VethEnd { name, mac: None, mtu: UNDERLAY_MTU };
                netns::veth_pair((&self.leaf, end(&up)), (&self.peer, end(&down)))?;
                self.leaf.rtnl(|rtnl| rtnl.add_address(&up, &format!("{own}/29")))?;
                self.peer.rtnl(|rtnl| rtnl.add_address(&down, &format!("{other}/29")))?;
            }
            there.extend(["nexthop", "via", &other, "dev", &up].map(str::to_owned));
            back.extend(["nexthop", "via", &own, "dev", &down].map(str::to_owned));
        }
        for (node, vtep, hops) in [(&self.leaf, PEER_VTEP, there), (&self.peer, LEAF_VTEP, back)] {
            let vtep = vtep.to_string();
            let hops: Vec<&str> = hops.iter().map(String::as_str).collect();
            node.run(&[&["ip", "route", "replace", &vtep][..], &hops].concat())?;
        }
        Ok(())
    }

    /// Sets whether the leaf's VXLAN packets have UDP checksums. The kernel can set this only for a new
    /// netdev. No vtepd may run.
    ///
    /// # Errors
    /// If a command or a read in the namespace fails.
    pub fn set_udp_checksum(&self, yes: bool) -> Result<(), Error> {
        if self.udp_checksum.swap(yes, Ordering::Relaxed) == yes {
            return Ok(());
        }
        let (mtu, local) = (self.mtu.load(Ordering::Relaxed).to_string(), LEAF_VTEP.to_string());
        let checksum = if yes { "udpcsum" } else { "noudpcsum" };
        self.leaf.run(&["ip", "link", "delete", "vx0"])?;
        #[rustfmt::skip]
        self.leaf.run(&[
            "ip", "link", "add", "vx0", "mtu", &mtu, "type", "vxlan", "id", "1", "local", &local,
            "dstport", "4789", "nolearning", checksum,
        ])?;
        self.leaf.rtnl(join_bridge)?;
        self.add_remote_macs()
    }

    /// The addresses behind the peer, and behind the VTEP that does not exist.
    fn add_remote_macs(&self) -> Result<(), Error> {
        self.leaf.rtnl(|rtnl| {
            rtnl.add_remote_mac("vx0", FAR, PEER_VTEP)?;
            (0..STATIONS)
                .try_for_each(|n| rtnl.add_remote_mac("vx0", remote_station(n), UNUSED_VTEP))
        })?;
        Ok(())
    }

    /// Sets whether the leaf forwards its host's frames. Otherwise they are dropped at the host
    /// port.
    ///
    /// # Errors
    /// If a command or a read in the namespace fails.
    pub fn set_bridged(&self, yes: bool) -> Result<(), Error> {
        self.leaf.rtnl(|rtnl| {
            rtnl.set_master("hp", yes.then_some("br0"))?;
            // The kernel deleted these entries with the port.
            let stations = if yes { 0..STATIONS } else { 0..0 };
            stations.into_iter().try_for_each(|n| rtnl.set_port_mac("hp", local_station(n)))
        })?;
        Ok(())
    }

    /// Sets whether a BPF program at the host port redirects all frames to the uplink.
    ///
    /// # Errors
    /// If the program cannot be compiled (`clang`) or attached (`tc`).
    pub fn set_redirected(&self, yes: bool) -> Result<(), Error> {
        if yes {
            redirect::attach(&self.leaf, "hp", "up1")
        } else {
            redirect::detach(&self.leaf, "hp")
        }
    }

    /// Sets whether the leaf's bridge calls iptables (`bridge-nf-call-iptables`, on by default with
    /// `br_netfilter`). Returns whether the kernel has this setting.
    ///
    /// # Errors
    /// If the namespace cannot be entered.
    pub fn set_bridge_nf(&self, on: bool) -> Result<bool, Error> {
        let path = "/proc/sys/net/bridge/bridge-nf-call-iptables";
        Ok(self.leaf.enter(|| std::fs::write(path, if on { "1" } else { "0" }))?.is_ok())
    }

    /// Sets whether the second core receives what arrives at the host port (receive packet steering,
    /// Documentation/networking/scaling.rst), and not the sender's.
    ///
    /// # Errors
    /// If the setting cannot be written.
    pub fn set_packet_steering(&self, yes: bool) -> Result<(), Error> {
        let mask = if yes { 2 } else { 0 };
        // A sysfs shows the links of the namespace in which it was mounted.
        let set = format!(
            "mount -t sysfs sysfs /sys && echo {mask} >/sys/class/net/hp/queues/rx-0/rps_cpus"
        );
        self.leaf.run(&["unshare", "--mount", "sh", "-c", &set])?;
        Ok(())
    }

    /// Sets an MTU other than [`MTU`], up to [`JUMBO`]. A vtepd that was started before does not
    /// support longer frames.
    ///
    /// # Errors
    /// If a command or a read in the namespace fails.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        self.mtu.store(mtu, Ordering::Relaxed);
        for (host, leaf) in [(&self.host, &self.leaf), (&self.far, &self.peer)] {
            host.rtnl(|rtnl| rtnl.set_mtu("eth0", mtu))?;
            leaf.rtnl(|rtnl| ["hp", "vx0"].iter().try_for_each(|link| rtnl.set_mtu(link, mtu)))?;
        }
        Ok(())
    }

    /// The encapsulated frames with an inner length of `length` bytes that have left by the uplink.
    ///
    /// # Errors
    /// If a command or a read in the namespace fails.
    pub fn sent_encapsulated(&self, length: usize) -> Result<Passed, Error> {
        let all = counters::read(&self.leaf)?;
        let link = all.get("up1").ok_or("the leaf has no uplink")?;
        Ok(Passed { frames: link.frames_sent(length as u64 + 8), packets: link.tx_packets })
    }

    /// The frames that have left by the uplink, for a datapath that does not encapsulate.
    ///
    /// # Errors
    /// If a command or a read in the namespace fails.
    pub fn sent_unchanged(&self) -> Result<Passed, Error> {
        let all = counters::read(&self.leaf)?;
        let link = all.get("up1").ok_or("the leaf has no uplink")?;
        Ok(Passed { frames: link.tx_packets, packets: link.tx_packets })
    }

    /// The bytes that have left by all uplinks.
    ///
    /// # Errors
    /// If a command or a read in the namespace fails.
    pub fn sent_bytes(&self) -> Result<u64, Error> {
        let all = counters::read(&self.leaf)?;
        let uplinks = all.iter().filter(|(name, _)| name.starts_with("up"));
        Ok(uplinks.map(|(_, link)| link.tx_bytes).sum())
    }

    /// The frames of `length` bytes that have left by the host port.
    ///
    /// # Errors
    /// If a command or a read in the namespace fails.
    pub fn delivered(&self, length: usize) -> Result<Passed, Error> {
        let all = counters::read(&self.leaf)?;
        let link = all.get("hp").ok_or("the leaf has no port")?;
        Ok(Passed { frames: link.tx_bytes / length as u64, packets: link.tx_packets })
    }
}

/// Creates a bridge with a VXLAN netdev and a port to a host.
fn overlay(leaf: &Namespace, vtep: Ipv4Addr, host: &Namespace) -> Result<(), NetnsError> {
    leaf.rtnl(|rtnl| {
        rtnl.add_address("lo", &vtep.to_string())?;
        rtnl.add_bridge("br0", false)?;
        rtnl.add_vxlan(Vxlan { name: "vx0", vni: 1, local: vtep, port: 4789, mtu: MTU })?;
        join_bridge(rtnl)
    })?;
    netns::veth((leaf, "hp"), (host, "eth0"), MTU)?;
    leaf.rtnl(|rtnl| rtnl.set_master("hp", Some("br0")))
}

/// Makes the VXLAN netdev a port of the bridge.
fn join_bridge(rtnl: &Rtnl) -> Result<(), RtnlError> {
    rtnl.set_master("vx0", Some("br0"))?;
    rtnl.set_up("vx0", true)?;
    rtnl.set_port_learning("vx0", false)
}

/// Sets whether a link accepts UDP super-frames; otherwise the kernel splits them first.
///
/// # Errors
/// If ethtool is missing or fails.
pub(crate) fn udp_segmentation(namespace: &Namespace, link: &str, on: bool) -> Result<(), Error> {
    namespace.run(&[
        "ethtool",
        "-K",
        link,
        "tx-udp-segmentation",
        if on { "on" } else { "off" },
    ])?;
    Ok(())
}
