//! A leaf with a host, and a peer with kernel VXLAN and a host.
//!
//! ```text
//!  host: eth0 ── hp ─ br0 ─ vx0 ─ leaf ─ up1 ── down1 ─ peer ─ vx0 ─ br0 ─ hp ── eth0: far
//!                                                └ a gateway that does not exist
//! ```

use std::io::Write as _;
use std::process::{Command, Stdio};

use lab::{Namespace, counters};
use wire::MacAddr;

use crate::Error;

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
/// The length in bytes of Ethernet, IPv4 and UDP headers.
pub(crate) const HEADERS: usize = pipeline::aggregate::GsoGroup::SHARED;

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
        let testbed = Self { host: host?, leaf: leaf?, peer: peer?, far: far? };
        for namespace in [&testbed.host, &testbed.leaf, &testbed.peer, &testbed.far] {
            // This fails on a kernel without IPv6, which sends no IPv6 frames either.
            let _ = namespace
                .enter(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"))?;
        }
        let overlay = |local: &str, host: &Namespace| {
            format!(
                "addr add {local}/32 dev lo\n\
                 link add br0 type bridge mcast_snooping 0\n\
                 link add vx0 type vxlan id 1 local {local} dstport 4789 nolearning\n\
                 link set vx0 mtu {MTU} master br0 up\n\
                 link set vx0 type bridge_slave learning off\n\
                 link set br0 up\n\
                 link add hp mtu {MTU} type veth peer name eth0 mtu {MTU} netns {}\n\
                 link set hp master br0 up\n",
                host.name()
            )
        };
        let leaf = overlay("10.0.0.1", &testbed.host)
            + &format!(
                "link add up1 mtu 9500 address {UPLINK} type veth peer name down1 mtu 9500 netns {}\n\
                 addr add 10.255.1.1/29 dev up1\n\
                 link set up1 up\n\
                 neigh replace 10.255.1.3 lladdr 02:ee:00:00:00:01 dev up1 nud permanent\n",
                testbed.peer.name()
            );
        batch(&testbed.leaf, "ip", &leaf)?;
        let peer = overlay("10.0.0.2", &testbed.far)
            + "addr add 10.255.1.2/29 dev down1\nlink set down1 up\nroute add 10.0.0.1/32 via 10.255.1.1 dev down1\n";
        batch(&testbed.peer, "ip", &peer)?;
        batch(
            &testbed.leaf,
            "ip",
            "route add 10.0.0.2/32 via 10.255.1.2 dev up1\nroute add 10.0.0.3/32 via 10.255.1.3 dev up1\n",
        )?;
        for (host, own, address, other, at) in
            [(&testbed.host, HOST, 1, FAR, 2), (&testbed.far, FAR, 2, HOST, 1)]
        {
            let lines = format!(
                "link set eth0 address {own}\nlink set eth0 up\naddr add 10.1.0.{address}/24 dev eth0\n\
                 neigh replace 10.1.0.{at} lladdr {other} dev eth0 nud permanent\n"
            );
            batch(host, "ip", &lines)?;
        }
        let mut entries = format!(
            "fdb append {FAR} dev vx0 dst 10.0.0.2 self static\nfdb replace {FAR} dev vx0 master static\n"
        );
        for number in 0..STATIONS {
            let (remote, local) = (remote_station(number), local_station(number));
            entries += &format!(
                "fdb append {remote} dev vx0 dst 10.0.0.3 self static\nfdb replace {remote} dev vx0 master static\n\
                 fdb replace {local} dev hp master static\n"
            );
        }
        batch(&testbed.leaf, "bridge", &entries)?;
        let entries = format!(
            "fdb append {HOST} dev vx0 dst 10.0.0.1 self static\nfdb replace {HOST} dev vx0 master static\n"
        );
        batch(&testbed.peer, "bridge", &entries)?;
        // The host's link must split the super-frames that a sender transmits.
        udp_segmentation(&testbed.host, "eth0", false)?;
        Ok(testbed)
    }

    /// Sets whether the leaf forwards its host's frames. Otherwise they are dropped at the host
    /// port.
    ///
    /// # Errors
    /// If a command or a read in the namespace fails.
    pub fn set_bridged(&self, yes: bool) -> Result<(), Error> {
        batch(
            &self.leaf,
            "ip",
            if yes { "link set hp master br0\n" } else { "link set hp nomaster\n" },
        )?;
        if yes {
            // The kernel deleted these entries with the port.
            let entries: String = (0..STATIONS)
                .map(|n| format!("fdb replace {} dev hp master static\n", local_station(n)))
                .collect();
            batch(&self.leaf, "bridge", &entries)?;
        }
        Ok(())
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

    /// Sets an MTU other than [`MTU`], up to [`JUMBO`]. A vtepd that was started before does not
    /// support longer frames.
    ///
    /// # Errors
    /// If a command or a read in the namespace fails.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        for (host, leaf) in [(&self.host, &self.leaf), (&self.far, &self.peer)] {
            batch(host, "ip", &format!("link set eth0 mtu {mtu}\n"))?;
            batch(leaf, "ip", &format!("link set hp mtu {mtu}\nlink set vx0 mtu {mtu}\n"))?;
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

/// Runs a batch of `ip` or `bridge` commands in a namespace.
///
/// # Errors
/// The tool's error message.
pub fn batch(namespace: &Namespace, tool: &str, lines: &str) -> Result<(), Error> {
    let run = || -> std::io::Result<std::process::Output> {
        let mut command = Command::new(tool);
        let mut child = command
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(lines.as_bytes())?;
        }
        child.wait_with_output()
    };
    let output = namespace.enter(run)??;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{tool}: {}", String::from_utf8_lossy(&output.stderr)).into())
}
