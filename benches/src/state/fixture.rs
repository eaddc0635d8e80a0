//! A leaf with a host, two uplinks and the tables of a large fabric in its kernel, and a probe.
//!
//! ```text
//!  host ── hp ─ br0 ─ vx0 ─ leaf ─┬─ up1 ── down1 ─┐
//!                                 └─ up2 ── down2 ─┴─ wire: receives all frames
//! ```

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use fabric::Namespace;
use netlink::Requests;
use wire::MacAddr;

use super::fabric::{LARGE, mac, vtep};
use super::messages::{self, Kernel};
use super::probe::Probe;

type Failure = Box<dyn Error>;

/// The kernel's source port range. Only the policy five-tuple of vtepd uses these ports.
const KERNEL_PORTS: &str = "32768 32769";
const HOST: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// The address of the gateway behind an uplink, 1 or 2.
#[must_use]
pub const fn gateway(uplink: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 255, uplink as u8, 0)
}

/// The MAC address of a gateway.
#[must_use]
pub const fn gateway_mac(uplink: usize) -> MacAddr {
    MacAddr([2, 0xee, 0, 0, 0, uplink as u8])
}

/// The namespaces of the leaf, its uplinks' far ends and its host.
#[derive(Debug)]
pub struct Fixture {
    /// The namespace of the leaf.
    pub leaf: Namespace,
    wire: Namespace,
    host: Namespace,
    /// The index of the vxlan netdev.
    pub vxlan: u32,
    /// The indices of the uplinks.
    pub uplinks: [u32; 2],
}

impl Fixture {
    /// Creates a leaf with one VNI, and with [`LARGE`]'s MAC addresses and VTEPs. Each VTEP has a
    /// route over both uplinks.
    ///
    /// # Errors
    /// If a namespace or an interface cannot be created.
    pub fn new() -> Result<Self, Failure> {
        let name = |node: &str| format!("vtb-{node}-{}", std::process::id());
        let [leaf, wire, host] = ["leaf", "wire", "host"].map(|node| Namespace::create(name(node)));
        let (leaf, wire, host) = (leaf?, wire?, host?);
        for namespace in [&leaf, &wire, &host] {
            let quiet = || std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            // This fails on a kernel without IPv6, which sends no IPv6 frames either.
            let _ = namespace.enter(quiet)?;
        }
        let mut lines = format!(
            "addr add 10.0.0.1/32 dev lo\n\
             link add br0 type bridge mcast_snooping 0\n\
             link add vx0 type vxlan id 1 local 10.0.0.1 dstport 4789 nolearning srcport {KERNEL_PORTS}\n\
             link set vx0 master br0 up\n\
             link set br0 up\n\
             link add hp type veth peer name eth0 address {HOST} netns {}\n\
             link set hp master br0 up\n",
            host.name()
        );
        for uplink in 1..=2 {
            writeln!(
                lines,
                "link add up{uplink} type veth peer name down{uplink} netns {}\n\
                 addr add 10.255.{uplink}.1/31 dev up{uplink}\n\
                 link set up{uplink} up\n\
                 neigh replace {} lladdr {} dev up{uplink} nud permanent",
                wire.name(),
                gateway(uplink),
                gateway_mac(uplink)
            )?;
        }
        for number in 0..LARGE.vteps {
            let [one, two] = [1, 2].map(gateway);
            writeln!(
                lines,
                "route add {}/32 metric 20 nexthop via {one} dev up1 nexthop via {two} dev up2",
                vtep(number)
            )?;
        }
        // The far ends are set up first, because routes need a carrier.
        let (links, routes) = lines.split_at(lines.find("route add").unwrap_or(lines.len()));
        batch(&leaf, "ip", links)?;
        batch(&wire, "ip", "link set down1 up\nlink set down2 up\n")?;
        batch(&host, "ip", "link set eth0 up\n")?;
        batch(&leaf, "ip", routes)?;
        let entries: String = (0..LARGE.macs)
            .map(|number| {
                let at = vtep(LARGE.home(number));
                format!("fdb append {} dev vx0 dst {at} self extern_learn\n", mac(number))
            })
            .collect();
        batch(&leaf, "bridge", &entries)?;
        let [vxlan, up1, up2] = indices(&leaf, ["vx0", "up1", "up2"])?;
        Ok(Self { leaf, wire, host, vxlan, uplinks: [up1, up2] })
    }

    /// A next hop through an uplink, 1 or 2.
    #[must_use]
    pub fn hop(&self, uplink: usize) -> (u32, Ipv4Addr) {
        let [one, two] = self.uplinks;
        (if uplink == 1 { one } else { two }, gateway(uplink))
    }

    /// Sets the far end of an uplink, 1 or 2, up or down.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_far_end(&self, uplink: usize, up: bool) -> Result<(), Failure> {
        let [one, two] = indices(&self.wire, ["down1", "down2"])?;
        let ifindex = if uplink == 1 { one } else { two };
        let set = || Kernel::open(&[])?.ask(&messages::set_up(ifindex, up));
        Ok(self.wire.enter(set)??)
    }

    /// Opens a netlink socket in the leaf.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn kernel(&self, groups: &[u32]) -> Result<Kernel, Failure> {
        Ok(self.leaf.enter(|| Kernel::open(groups))??)
    }

    /// Connects to vtepd's FPM server as zebra does.
    ///
    /// # Errors
    /// If vtepd does not listen.
    pub fn zebra(&self) -> Result<TcpStream, Failure> {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 2620);
        let stream = self.leaf.enter(|| TcpStream::connect(address))??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// A probe that sends to this MAC address.
    ///
    /// # Errors
    /// If sockets cannot be opened.
    pub fn probe(&self, to: MacAddr) -> Result<Probe, Failure> {
        Probe::open(&self.host, &self.wire, HOST, to)
    }
}

/// The indices of interfaces in a namespace.
///
/// # Errors
/// If an interface does not exist.
pub fn indices<const N: usize>(
    namespace: &Namespace,
    names: [&str; N],
) -> Result<[u32; N], Failure> {
    let found = namespace.enter(|| -> Result<Vec<u32>, netlink::Error> {
        let mut requests = Requests::open()?;
        names.iter().map(|name| Ok(requests.link(name)?.map_or(0, |link| link.ifindex))).collect()
    })??;
    found.try_into().map_err(|_| "an interface is gone".into())
}

/// Runs a batch of `ip` or `bridge` commands in a namespace, in one process. Benchmarks use it for
/// the thousands of routes and MAC addresses of a large fabric.
///
/// # Errors
/// The tool's error message.
pub fn batch(namespace: &Namespace, tool: &str, lines: &str) -> Result<(), Failure> {
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
