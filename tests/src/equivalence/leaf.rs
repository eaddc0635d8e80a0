//! The leaf and its neighbours.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use ::fabric::Namespace;
use aya::programs::{SchedClassifier, TcAttachType};

use super::observation::PORTS;
use super::stimulus::OWN_PORT;
use super::wires::{OWN, Wire, Wires};
use crate::Vtepd;
use crate::lab::{delete_leftovers, ip, sysctl};
use crate::programs;

/// Prefix of the names of all namespaces. A process ID follows.
const PREFIX: &str = "vte-";

/// Parameters of a leaf. Scripts make later changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Options of the vxlan netdev, as `ip link` takes them.
    pub vxlan: String,
    /// MTU of the uplinks, in bytes.
    pub underlay_mtu: u32,
    /// MTU of the vxlan netdev and the host ports, in bytes.
    pub overlay_mtu: u32,
    /// Whether the kernel of the first host has a tunnel of its own, and whether its packets have a
    /// tag.
    pub own_tunnel: Option<bool>,
    /// Whether vtepd leaves all VNIs to kernel VXLAN, for which it chooses source ports.
    pub kernel: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            vxlan: "nolearning".to_owned(),
            underlay_mtu: 9000,
            overlay_mtu: 8950,
            own_tunnel: None,
            kernel: false,
        }
    }
}

impl Plan {
    /// Whether the bridge learns from what it receives from the netdev.
    fn learning(&self) -> &'static str {
        if self.vxlan.contains("nolearning") { "off" } else { "on" }
    }
}

/// Shell functions for all scripts. `remake` creates the vxlan netdev again with further options.
/// `enslave` adds it to the bridge. `entries` writes its FDB. `underlay` writes the uplinks' routes
/// and neighbours. `carrier` waits for flags of a link. `forwarding` waits until a bridge port
/// forwards.
pub const PRELUDE: &str = "
entries() {
  for pair in 3:2 4:3; do
    station=02:00:00:00:0a:0${pair%:*} vtep=10.0.0.${pair#*:}
    bridge fdb append 00:00:00:00:00:00 dev vx10 dst $vtep 2>/dev/null || true
    bridge fdb replace $station dev vx10 dst $vtep self extern_learn
    bridge fdb replace $station dev vx10 master extern_learn
  done
}
enslave() {
  ip link set vx10 mtu $MTU master br10 up
  ip link set vx10 type bridge_slave learning $LEARNING
  entries
}
remake() {
  ip link del vx10
  ip link add vx10 type vxlan id 10 local 10.0.0.1 dstport 4789 $VXLAN \"$@\"
  enslave
}
carrier() {
  for _ in $(seq 300); do ip -o link show $1 | grep -q $2 && return; sleep 0.01; done
}
forwarding() {
  for _ in $(seq 300); do bridge link show dev $1 | grep -q forwarding && return; sleep 0.01; done
}
underlay() {
  for uplink in 1 2; do
    ip neigh replace 10.1.$uplink.2 lladdr 02:ee:00:00:00:0$((uplink + 1)) dev up$uplink nud permanent
    ip route replace 10.0.0.$((uplink + 1)) via 10.1.$uplink.2 dev up$uplink
  done
}
";

/// A leaf with hosts and routers. Drop deletes the namespaces.
#[derive(Debug)]
pub struct Leaf {
    /// The leaf's namespace.
    pub leaf: Namespace,
    /// The namespace of hosts and routers.
    pub outside: Namespace,
    /// The interfaces in that namespace.
    pub wires: Wires,
    /// The leaf's parameters.
    pub plan: Plan,
    _tagger: Option<aya::Ebpf>,
}

impl Leaf {
    /// Builds a leaf.
    #[must_use]
    pub fn build(plan: &Plan) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        if number == 0 {
            delete_leftovers(PREFIX);
        }
        let create = |what: &str| {
            let namespace =
                Namespace::create(format!("{PREFIX}{}-{number}-{what}", std::process::id()));
            let namespace = namespace.expect("create a namespace");
            for family in ["all", "default"] {
                sysctl(&namespace, &format!("ipv6/conf/{family}/disable_ipv6"), "1");
            }
            // No rate limits, because ICMP messages are counted.
            sysctl(&namespace, "ipv4/icmp_ratelimit", "0");
            sysctl(&namespace, "ipv4/icmp_msgs_per_sec", "100000");
            sysctl(&namespace, "ipv4/icmp_msgs_burst", "10000");
            namespace
        };
        let (leaf, outside) = (create("leaf"), create("outside"));
        ip(&leaf, &links(plan, outside.name()));
        ip(&outside, &Wire::ALL.map(|wire| format!("link set {} up\n", wire.name())).concat());
        ip(&leaf, &overlay(plan));
        let tagger = plan.own_tunnel.and_then(|has_tag| own_tunnel(&outside, has_tag));
        let wires = Wires::open(&outside, plan.own_tunnel.is_some());
        let built = Self { leaf, outside, wires, plan: plan.clone(), _tagger: tagger };
        built.run("enslave; underlay").unwrap_or_else(|problem| panic!("{problem}"));
        for port in ["hp1", "hp2"] {
            crate::wait_for("the port to forward", || {
                crate::lab::run(&built.leaf, &format!("bridge link show dev {port}"))
                    .contains("forwarding")
            });
        }
        built
    }

    /// Starts vtepd on the leaf with the kernel's source ports. The stall limit is long, because a
    /// worker on a busy machine may pause.
    #[must_use]
    pub fn vtepd(&self) -> Vtepd {
        let ports = format!("{}-{}", PORTS.start, PORTS.end - 1);
        let configuration = "[takeover]\nstall-limit-ms = 1000\n";
        let datapath = if self.plan.kernel { "kernel" } else { "auto" };
        let arguments = ["--source-ports", &ports, "--datapath", datapath];
        Vtepd::start_configured(&self.leaf, configuration, &arguments)
    }

    /// Runs a shell script with [`PRELUDE`] in the leaf's namespace. `$OUT` names the other
    /// namespace.
    ///
    /// # Errors
    /// The script's error output, if it failed.
    pub fn run(&self, script: &str) -> Result<(), String> {
        let (leaf, outside, plan) = (self.leaf.name(), self.outside.name(), &self.plan);
        let run = || {
            let mut command = Command::new("sh");
            command.args(["-e", "-c", &format!("{PRELUDE}{script}")]);
            command.env("OUT", outside).env("LEAF", leaf).env("VXLAN", &plan.vxlan);
            command.env("MTU", plan.overlay_mtu.to_string()).env("LEARNING", plan.learning());
            command.stdin(Stdio::null()).output().expect("sh")
        };
        let output = self.leaf.enter(run).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("'{script}': {said}")) }
    }
}

/// Gives the first host a tunnel to the station behind the first VTEP. Returns the program that tags
/// its packets.
fn own_tunnel(outside: &Namespace, has_tag: bool) -> Option<aya::Ebpf> {
    // The host answers no ARP requests: the stations are only in frames.
    sysctl(outside, "ipv4/conf/all/arp_ignore", "8");
    let [from, to] = [1, 3].map(super::stimulus::address);
    let (host, far) = (Wire::H1.name(), super::stimulus::mac(3));
    let lines = format!(
        "addr add {from}/32 dev {host}\n\
         route add {to} dev {host}\n\
         neigh add {to} lladdr {far} dev {host} nud permanent\n\
         link add {OWN} type vxlan id 99 local {from} remote {to} dstport {OWN_PORT}\n\
         link set {OWN} up\n"
    );
    ip(outside, &lines);
    let attach = || {
        let object = programs::tagger(OWN_PORT);
        let mut ebpf = aya::Ebpf::load_file(&object).unwrap();
        let _ = std::fs::remove_file(object);
        let program: &mut SchedClassifier = ebpf.program_mut("tag").unwrap().try_into().unwrap();
        program.load().unwrap();
        program.attach(host, TcAttachType::Egress).unwrap();
        ebpf
    };
    has_tag.then(|| outside.enter(attach).unwrap())
}

fn links(plan: &Plan, outside: &str) -> String {
    let Plan { underlay_mtu, overlay_mtu, .. } = plan;
    let mut text = String::from("addr add 10.0.0.1/32 dev lo\n");
    for wire in Wire::ALL {
        let mtu = if wire.is_uplink() { underlay_mtu } else { overlay_mtu };
        let (name, end, mac, far) =
            (wire.in_leaf(), wire.name(), wire.leaf_mac(), wire.outside_mac());
        text += &format!(
            "link add {name} mtu {mtu} address {mac} type veth peer name {end} mtu {mtu} address {far} \
             netns {outside}\n\
             link set {name} up\n"
        );
    }
    text += "addr add 10.1.1.1/24 dev up1\naddr add 10.1.2.1/24 dev up2\n";
    text
}

fn overlay(plan: &Plan) -> String {
    let Plan { vxlan, overlay_mtu, .. } = plan;
    format!(
        "link add br10 type bridge mcast_snooping 0\n\
         link add vx10 mtu {overlay_mtu} type vxlan id 10 local 10.0.0.1 dstport 4789 {vxlan}\n\
         link set hp1 master br10\n\
         link set hp2 master br10\n\
         link set br10 up\n"
    )
}
