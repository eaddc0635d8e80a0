//! The network that most tests use: kernel VXLAN on all leaves, configured without FRR. A test
//! starts vtepd where it needs it.
//!
//! ```text
//!   host ──┐                ┌── r1 ──┐           ┌── peer (10.0.0.2) ── far
//!          ├─ leaf ─────────┤        ├───────────┤
//!   next ──┘  (10.0.0.1)    └── r2 ──┘           └── peer2 (10.0.0.3) ── farther
//! ```
//!
//! Every leaf has an uplink to each router. Overlays are `/24`s with one interface `ethVNI` per
//! host. IPv6 is off and ARP between hosts is static, so that counts are exact.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use ::fabric::Namespace;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use wire::MacAddr;

/// How the names of tests' namespaces begin.
const PREFIX: &str = "vtt-";
/// VNI of the overlay that every lab has.
pub const VNI: u32 = 10;

/// Parameters of a lab.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// MTU of all links between leaves and routers, in bytes.
    pub underlay_mtu: u32,
    /// MTU of vxlan netdevs, host ports and hosts, in bytes.
    pub overlay_mtu: u32,
    /// UDP port of VXLAN.
    pub port: u16,
    /// Further options of the leaf's vxlan netdev, as `ip link` takes them.
    pub vxlan: &'static str,
    /// Whether leaves learn from received frames, with the kernel's defaults, instead of having
    /// static entries.
    pub learning: bool,
    /// Further options of the other leaves' vxlan netdevs.
    pub peers: &'static str,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            underlay_mtu: 9000,
            overlay_mtu: 8950,
            port: 4789,
            vxlan: "",
            learning: false,
            peers: "",
        }
    }
}

/// A host and its addresses in the first overlay.
#[derive(Debug)]
pub struct Host {
    /// Its namespace.
    pub ns: Namespace,
    /// The last number of its addresses, 1 to 4.
    pub number: u8,
}

impl Host {
    /// Its MAC address in an overlay.
    #[must_use]
    pub const fn mac_in(&self, vni: u32) -> MacAddr {
        MacAddr([2, 0, 0, 0, vni as u8, self.number])
    }

    /// Its IPv4 address in an overlay.
    #[must_use]
    pub const fn ip_in(&self, vni: u32) -> Ipv4Addr {
        Ipv4Addr::new(192, 168, vni as u8, self.number)
    }

    /// Its MAC address in the first overlay.
    #[must_use]
    pub const fn mac(&self) -> MacAddr {
        self.mac_in(VNI)
    }

    /// Its IPv4 address in the first overlay.
    #[must_use]
    pub const fn ip(&self) -> Ipv4Addr {
        self.ip_in(VNI)
    }
}

/// The network of the module's description. Drop deletes it.
#[derive(Debug)]
pub struct Lab {
    /// First host behind the leaf.
    pub host: Host,
    /// Second host behind the leaf.
    pub next: Host,
    /// Host behind `peer`.
    pub far: Host,
    /// Host behind `peer2`.
    pub farther: Host,
    /// The leaf under test.
    pub leaf: Namespace,
    /// The routers.
    pub routers: [Namespace; 2],
    /// A remote leaf.
    pub peer: Namespace,
    /// Another remote leaf.
    pub peer2: Namespace,
    /// The lab's parameters.
    pub setup: Setup,
}

/// Interface of the first overlay on hosts.
pub const ETH: &str = "eth10";
/// The leaf's VTEP.
pub const LEAF: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The VTEP of `peer`.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// The VTEP of `peer2`.
pub const PEER2: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 3);

impl Lab {
    /// A lab with default parameters, in namespaces named after the test.
    #[must_use]
    pub fn new(case: &str) -> Self {
        Self::with(case, Setup::default())
    }

    /// A lab with other parameters.
    #[must_use]
    pub fn with(case: &str, setup: Setup) -> Self {
        delete_leftovers(PREFIX);
        let create = |node: &str| {
            let namespace =
                Namespace::create(namespace_name(case, node)).expect("create a namespace");
            for (name, value) in [
                ("ipv6/conf/all/disable_ipv6", "1"),
                ("ipv6/conf/default/disable_ipv6", "1"),
                ("ipv4/fib_multipath_hash_policy", "3"),
                ("ipv4/fib_multipath_hash_fields", "55"),
            ] {
                sysctl(&namespace, name, value);
            }
            namespace
        };
        let host = |node: &str, number| Host { ns: create(node), number };
        let lab = Self {
            host: host("host", 1),
            next: host("next", 2),
            far: host("far", 3),
            farther: host("farther", 4),
            leaf: create("leaf"),
            routers: [create("r1"), create("r2")],
            peer: create("peer"),
            peer2: create("peer2"),
            setup,
        };
        lab.underlay();
        let plane = if setup.learning { "" } else { "nolearning" };
        let options = [setup.vxlan, setup.peers].map(|options| format!("{plane} {options}"));
        lab.overlay(VNI, &options[0], &options[1], "");
        lab
    }

    /// Turns br_netfilter off, which is on by default, so that bridges do not pass IP frames to
    /// iptables.
    pub fn without_bridge_netfilter(&self) {
        for (leaf, ..) in self.leaves() {
            for family in ["ip", "ip6", "arp"] {
                let name = format!("bridge/bridge-nf-call-{family}tables");
                if std::path::Path::new("/proc/sys/net").join(&name).exists() {
                    sysctl(leaf, &name, "0");
                }
            }
        }
    }

    /// The leaves with their number and the routers' name for the link to them.
    fn leaves(&self) -> [(&Namespace, u8, &'static str); 3] {
        [(&self.leaf, 1, "leaf"), (&self.peer, 2, "peer"), (&self.peer2, 3, "peer2")]
    }

    fn underlay(&self) {
        let mtu = self.setup.underlay_mtu;
        for (leaf, number, name) in self.leaves() {
            let mut text = format!("addr add 10.0.0.{number}/32 dev lo\n");
            for (router, r) in self.routers.iter().zip(1..) {
                writeln!(
                    text,
                    "link add up{r} mtu {mtu} type veth peer name {name} mtu {mtu} netns {}\n\
                     addr add 10.{number}.{r}.1/31 dev up{r}\n\
                     link set up{r} up",
                    router.name()
                )
                .unwrap();
            }
            ip(leaf, &text);
        }
        for (router, r) in self.routers.iter().zip(1..) {
            sysctl(router, "ipv4/ip_forward", "1");
            let mut text = String::new();
            for (_, number, name) in self.leaves() {
                writeln!(
                    text,
                    "addr add 10.{number}.{r}.0/31 dev {name}\n\
                     link set {name} up\n\
                     route add 10.0.0.{number}/32 via 10.{number}.{r}.1"
                )
                .unwrap();
            }
            ip(router, &text);
        }
        for (leaf, number, _) in self.leaves() {
            let mut text = String::new();
            for other in (1..=3).filter(|other| *other != number) {
                writeln!(
                    text,
                    "route add 10.0.0.{other}/32 src 10.0.0.{number} nexthop via 10.{number}.1.0 nexthop via 10.{number}.2.0"
                )
                .unwrap();
            }
            ip(leaf, &text);
        }
    }

    /// The hosts with their leaf and the leaf's port to them.
    fn hosts(&self) -> [(&Host, &Namespace, &'static str); 4] {
        [
            (&self.host, &self.leaf, "hp"),
            (&self.next, &self.leaf, "hq"),
            (&self.far, &self.peer, "hp"),
            (&self.farther, &self.peer2, "hp"),
        ]
    }

    /// Adds an overlay: a bridge, a vxlan netdev and host ports on each leaf. `options` are those
    /// of the leaf's vxlan netdev, `peer_options` those of the others', `bridge` those of the
    /// leaf's bridge, all as `ip link` takes them. Without `nolearning` a leaf has only the flood
    /// list, with `remote` no entries at all.
    pub fn overlay(&self, vni: u32, options: &str, peer_options: &str, bridge: &str) {
        let Setup { overlay_mtu: mtu, port, .. } = self.setup;
        for (leaf, number, _) in self.leaves() {
            let (vxlan, bridge) = if number == 1 { (options, bridge) } else { (peer_options, "") };
            let mut text = format!(
                "link add br{vni} type bridge mcast_snooping 0 {bridge}\n\
                 link add vx{vni} mtu {mtu} type vxlan id {vni} local 10.0.0.{number} dstport {port} {vxlan}\n\
                 link set vx{vni} master br{vni} up\n\
                 link set vx{vni} type bridge_slave learning {learning}\n",
                learning = if vxlan.contains("nolearning") { "off" } else { "on" },
            );
            for (host, _, port) in
                self.hosts().into_iter().filter(|(_, of, _)| of.name() == leaf.name())
            {
                writeln!(
                    text,
                    "link add {port}{vni} mtu {mtu} type veth peer name eth{vni} mtu {mtu} address {mac} netns {host}\n\
                     link set {port}{vni} master br{vni} up",
                    mac = host.mac_in(vni),
                    host = host.ns.name(),
                )
                .unwrap();
            }
            writeln!(text, "link set br{vni} up").unwrap();
            ip(leaf, &text);
            // Netdevs with `external` or `group` get no FDB entries.
            let unicast = !vxlan.contains("external") && !vxlan.contains("group");
            if unicast && !vxlan.contains("remote") {
                self.flood_list(leaf, number, vni);
            }
            if unicast && vxlan.contains("nolearning") {
                self.static_fdb(leaf, number, vni);
            }
        }
        for (host, ..) in self.hosts() {
            let mut text =
                format!("addr add {}/24 dev eth{vni}\nlink set eth{vni} up\n", host.ip_in(vni));
            for (other, ..) in
                self.hosts().into_iter().filter(|(other, ..)| other.number != host.number)
            {
                writeln!(
                    text,
                    "neigh replace {} lladdr {} dev eth{vni} nud permanent",
                    other.ip_in(vni),
                    other.mac_in(vni)
                )
                .unwrap();
            }
            ip(&host.ns, &text);
        }
        self.wait_for_links();
    }

    /// Waits until all links have their carrier and all ports forward. Before, frames are dropped.
    /// A busy kernel sees a new carrier up to a second later (`linkwatch`).
    pub fn wait_for_links(&self) {
        let hosts = self.hosts().map(|(host, ..)| &host.ns);
        let leaves = self.leaves().map(|(leaf, ..)| leaf);
        for namespace in hosts.iter().chain(&leaves).copied().chain(&self.routers) {
            crate::wait_for("all carriers", || namespace.enter(have_carriers).unwrap());
        }
        for leaf in leaves {
            let forwards = |port: &str| !port.contains(",UP") || port.contains("state forwarding");
            crate::wait_for("all ports to forward", || {
                run(leaf, "bridge link show").lines().all(forwards)
            });
        }
    }

    /// Adds all other leaves to the flood list.
    fn flood_list(&self, leaf: &Namespace, number: u8, vni: u32) {
        let mut text = String::new();
        for other in (1..=self.leaves().len()).filter(|other| *other != usize::from(number)) {
            writeln!(text, "fdb append 00:00:00:00:00:00 dev vx{vni} dst 10.0.0.{other}").unwrap();
        }
        bridge(leaf, &text);
    }

    /// Adds the leaf's entries again, as FRR would after a vxlan netdev has lost them.
    pub fn entries(&self, vni: u32) {
        self.flood_list(&self.leaf, 1, vni);
        self.static_fdb(&self.leaf, 1, vni);
    }

    /// Adds the remote hosts to the FDB of bridge and vxlan netdev, as FRR does.
    fn static_fdb(&self, leaf: &Namespace, number: u8, vni: u32) {
        let mut text = String::new();
        for (host, of, _) in self.hosts() {
            let vtep = self.leaves().into_iter().find(|(ns, ..)| ns.name() == of.name()).unwrap().1;
            if vtep != number {
                text += &remote_mac(host.mac_in(vni), vni, Ipv4Addr::new(10, 0, 0, vtep));
            }
        }
        bridge(leaf, &text);
    }
}

/// The name of a namespace of a test. It begins with the process, so that tests can run at once.
#[must_use]
pub fn namespace_name(case: &str, node: &str) -> String {
    format!("{PREFIX}{}-{case}-{node}", std::process::id())
}

/// Deletes the namespaces of tests that were killed: their names are this prefix, a process that has
/// ended, and more.
pub fn delete_leftovers(prefix: &str) {
    for name in ::fabric::netns::list(prefix) {
        let process = name.strip_prefix(prefix).and_then(|rest| rest.split('-').next());
        let runs =
            process.is_some_and(|process| std::path::Path::new("/proc").join(process).exists());
        if !runs {
            // Another run may have deleted it already.
            let _ = ::fabric::netns::delete(&name);
        }
    }
}

/// The commands of `bridge -batch` that add a remote MAC address as FRR does.
#[must_use]
pub fn remote_mac(mac: MacAddr, vni: u32, vtep: Ipv4Addr) -> String {
    format!(
        "fdb replace {mac} dev vx{vni} dst {vtep} self extern_learn\n\
         fdb replace {mac} dev vx{vni} master extern_learn\n"
    )
}

/// Runs the lines of `ip -batch` in a namespace.
pub fn ip(namespace: &Namespace, lines: &str) {
    batch("ip", namespace, lines);
}

/// Runs the lines of `bridge -batch` in a namespace.
pub fn bridge(namespace: &Namespace, lines: &str) {
    batch("bridge", namespace, lines);
}

fn batch(tool: &str, namespace: &Namespace, lines: &str) {
    let run = || {
        let mut command = Command::new(tool);
        command
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{tool}: {error}"));
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = namespace.enter(run).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} in {}: {said}of\n{lines}", namespace.name());
}

/// Runs a command line in a namespace and returns its output. Arguments are separated by single
/// spaces.
pub fn run(namespace: &Namespace, command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    namespace.run(&words).unwrap_or_else(|error| panic!("{error}"))
}

/// Sets a sysctl below `net` in a namespace. The name is a path.
pub fn sysctl(namespace: &Namespace, name: &str, value: &str) {
    let path = format!("/proc/sys/net/{name}");
    // Kernels without IPv6 have nothing to turn off.
    if name.starts_with("ipv6/") && !std::path::Path::new("/proc/sys/net/ipv6").exists() {
        return;
    }
    namespace
        .enter(|| std::fs::write(&path, value))
        .unwrap()
        .unwrap_or_else(|e| panic!("{path}: {e}"));
}

/// The MAC address of an interface.
#[must_use]
pub fn mac_of(namespace: &Namespace, interface: &str) -> MacAddr {
    namespace.enter(|| fabric::packet::Interface::find(interface).unwrap().mac).unwrap()
}

/// The index of an interface.
#[must_use]
pub fn ifindex(namespace: &Namespace, interface: &str) -> u32 {
    namespace.enter(|| nix::net::if_::if_nametoindex(interface).unwrap()).unwrap()
}

/// Whether all interfaces of the calling thread's namespace that are up can also send.
fn have_carriers() -> bool {
    let (up, running) = (InterfaceFlags::IFF_UP, InterfaceFlags::IFF_RUNNING);
    let mut interfaces = getifaddrs().expect("interfaces");
    interfaces.all(|interface| !interface.flags.contains(up) || interface.flags.contains(running))
}
