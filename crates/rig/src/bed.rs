//! A leaf with a host, and a peer that kernel VXLAN serves.
//!
//! ```text
//!  host: eth0 ── hp ─ br0 ─ vx0 ─ leaf ─ up1 ── down1 ─ peer ─ vx0 ─ br0 ─ hp ── eth0: far
//!                                                └ a gateway that is not there: what is sent to it ends on the link
//! ```

use std::io::Write as _;
use std::process::{Command, Stdio};

use lab::{Namespace, counters};
use wire::MacAddr;

use crate::Error;

/// What the names of all namespaces start with.
pub const PREFIX: &str = "vty-";
/// MAC address of the uplink.
pub const UPLINK: MacAddr = MacAddr([2, 0xaa, 0, 0, 0, 1]);
/// MAC address of the host.
pub const HOST: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
/// MAC address of the host behind the peer.
pub const FAR: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
/// Addresses that frames are sent to on either side, and that nobody has: so frames end where they
/// arrive.
pub const STATIONS: u8 = 8;
/// MTU of the hosts and of all that their frames pass before they are encapsulated, in bytes.
pub const MTU: u32 = 1500;
/// Where frames are longer than that has room for.
pub const JUMBO: u32 = 9000;
/// Ethernet, IPv4 and UDP header.
pub(crate) const HEADERS: usize = pipeline::aggregate::GsoGroup::SHARED;

/// A station behind the VTEP that is not there.
#[must_use]
pub const fn remote(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, number % STATIONS])
}

/// A station that the peer's frames come from.
#[must_use]
pub const fn beyond(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 3, number % STATIONS])
}

/// A station at the host's port.
#[must_use]
pub const fn local(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 2, number % STATIONS])
}

/// The namespaces; they are gone when it is dropped.
#[derive(Debug)]
pub struct Bed {
    /// The host's.
    pub host: Namespace,
    /// The leaf's.
    pub leaf: Namespace,
    /// The peer's.
    pub peer: Namespace,
    /// That of the host behind the peer.
    pub far: Namespace,
}

/// What has passed a place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Passed {
    /// Frames, those of super-frames one by one.
    pub frames: u64,
    /// What the link counted: a super-frame is one.
    pub packets: u64,
}

impl Bed {
    /// Lays it out. `tag` tells it from others of the same process.
    ///
    /// # Errors
    /// When namespaces or links cannot be had.
    pub fn new(tag: &str) -> Result<Self, Error> {
        let name = |node: &str| format!("{PREFIX}{tag}{node}-{}", std::process::id());
        let [host, leaf, peer, far] =
            ["host", "leaf", "peer", "far"].map(|node| Namespace::create(name(node)));
        let bed = Self { host: host?, leaf: leaf?, peer: peer?, far: far? };
        for namespace in [&bed.host, &bed.leaf, &bed.peer, &bed.far] {
            // A kernel without IPv6 is as quiet.
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
        let leaf = overlay("10.0.0.1", &bed.host)
            + &format!(
                "link add up1 mtu 9500 address {UPLINK} type veth peer name down1 mtu 9500 netns {}\n\
                 addr add 10.255.1.1/29 dev up1\n\
                 link set up1 up\n\
                 neigh replace 10.255.1.3 lladdr 02:ee:00:00:00:01 dev up1 nud permanent\n",
                bed.peer.name()
            );
        batch(&bed.leaf, "ip", &leaf)?;
        let peer = overlay("10.0.0.2", &bed.far)
            + "addr add 10.255.1.2/29 dev down1\nlink set down1 up\nroute add 10.0.0.1/32 via 10.255.1.1 dev down1\n";
        batch(&bed.peer, "ip", &peer)?;
        batch(
            &bed.leaf,
            "ip",
            "route add 10.0.0.2/32 via 10.255.1.2 dev up1\nroute add 10.0.0.3/32 via 10.255.1.3 dev up1\n",
        )?;
        for (host, own, address, other, at) in
            [(&bed.host, HOST, 1, FAR, 2), (&bed.far, FAR, 2, HOST, 1)]
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
            let (remote, local) = (remote(number), local(number));
            entries += &format!(
                "fdb append {remote} dev vx0 dst 10.0.0.3 self static\nfdb replace {remote} dev vx0 master static\n\
                 fdb replace {local} dev hp master static\n"
            );
        }
        batch(&bed.leaf, "bridge", &entries)?;
        let entries = format!(
            "fdb append {HOST} dev vx0 dst 10.0.0.1 self static\nfdb replace {HOST} dev vx0 master static\n"
        );
        batch(&bed.peer, "bridge", &entries)?;
        // The host's link cuts what a sender hands over as one.
        udp_segmentation(&bed.host, "eth0", false)?;
        Ok(bed)
    }

    /// Whether the leaf forwards its host's frames; else they end at its port.
    ///
    /// # Errors
    /// None in practice.
    pub fn set_bridged(&self, yes: bool) -> Result<(), Error> {
        batch(
            &self.leaf,
            "ip",
            if yes { "link set hp master br0\n" } else { "link set hp nomaster\n" },
        )?;
        if yes {
            // Those went with the port.
            let entries: String = (0..STATIONS)
                .map(|n| format!("fdb replace {} dev hp master static\n", local(n)))
                .collect();
            batch(&self.leaf, "bridge", &entries)?;
        }
        Ok(())
    }

    /// Whether the leaf's bridge asks iptables about every frame (`bridge-nf-call-iptables`, on by
    /// default where `br_netfilter` is loaded). Returns whether this kernel has that switch.
    ///
    /// # Errors
    /// None in practice.
    pub fn set_bridge_nf(&self, on: bool) -> Result<bool, Error> {
        let path = "/proc/sys/net/bridge/bridge-nf-call-iptables";
        Ok(self.leaf.enter(|| std::fs::write(path, if on { "1" } else { "0" }))?.is_ok())
    }

    /// Another MTU than [`MTU`], up to [`JUMBO`]. A vtepd that was started before is not prepared
    /// for longer frames.
    ///
    /// # Errors
    /// None in practice.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), Error> {
        for (host, leaf) in [(&self.host, &self.leaf), (&self.far, &self.peer)] {
            batch(host, "ip", &format!("link set eth0 mtu {mtu}\n"))?;
            batch(leaf, "ip", &format!("link set hp mtu {mtu}\nlink set vx0 mtu {mtu}\n"))?;
        }
        Ok(())
    }

    /// Encapsulated frames with so many bytes inside that have left by the uplink.
    ///
    /// # Errors
    /// None in practice.
    pub fn left(&self, length: usize) -> Result<Passed, Error> {
        let all = counters::read(&self.leaf)?;
        let link = all.get("up1").ok_or("the leaf has no uplink")?;
        Ok(Passed { frames: link.frames_sent(length as u64 + 8), packets: link.tx_packets })
    }

    /// What has left by the uplink, for somebody who does not encapsulate.
    ///
    /// # Errors
    /// None in practice.
    pub fn left_as_they_came(&self) -> Result<Passed, Error> {
        let all = counters::read(&self.leaf)?;
        let link = all.get("up1").ok_or("the leaf has no uplink")?;
        Ok(Passed { frames: link.tx_packets, packets: link.tx_packets })
    }

    /// Frames of so many bytes that have left by the host's port.
    ///
    /// # Errors
    /// None in practice.
    pub fn arrived(&self, length: usize) -> Result<Passed, Error> {
        let all = counters::read(&self.leaf)?;
        let link = all.get("hp").ok_or("the leaf has no port")?;
        Ok(Passed { frames: link.tx_bytes / length as u64, packets: link.tx_packets })
    }
}

/// Whether a link takes UDP super-frames as they are; else the kernel cuts them before.
///
/// # Errors
/// Without ethtool.
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

/// Runs the lines of a batch of `ip` or `bridge` in a namespace.
///
/// # Errors
/// With what the tool says.
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
