//! The leaf and what is outside of it.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use ::lab::Namespace;

use super::wires::{Wire, Wires};
use crate::lab::{bridge, ip, sysctl};

/// How a leaf is built. What changes later, scripts change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Options of the vxlan netdev, as `ip link` takes them.
    pub vxlan: String,
    /// MTU of the uplinks, in bytes.
    pub underlay_mtu: u32,
    /// MTU of the vxlan netdev and the host ports, in bytes.
    pub overlay_mtu: u32,
}

impl Default for Plan {
    fn default() -> Self {
        Self { vxlan: "nolearning".to_owned(), underlay_mtu: 9000, overlay_mtu: 8950 }
    }
}

/// A leaf with its surroundings. Dropped, everything goes away.
#[derive(Debug)]
pub struct Leaf {
    /// The leaf's namespace.
    pub leaf: Namespace,
    /// The namespace of hosts and routers.
    pub outside: Namespace,
    /// The interfaces there.
    pub wires: Wires,
}

impl Leaf {
    /// Builds it.
    #[must_use]
    pub fn build(plan: &Plan) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let create = |what: &str| {
            let namespace = Namespace::create(format!("vte-{}-{number}-{what}", std::process::id()));
            let namespace = namespace.expect("create a namespace");
            for family in ["all", "default"] {
                sysctl(&namespace, &format!("ipv6/conf/{family}/disable_ipv6"), "1");
                sysctl(&namespace, &format!("ipv4/conf/{family}/rp_filter"), "0");
            }
            // No rate limits: messages are to be counted.
            sysctl(&namespace, "ipv4/icmp_ratelimit", "0");
            sysctl(&namespace, "ipv4/icmp_msgs_per_sec", "100000");
            sysctl(&namespace, "ipv4/icmp_msgs_burst", "10000");
            namespace
        };
        let (leaf, outside) = (create("leaf"), create("outside"));
        ip(&leaf, &links(plan, outside.name()));
        ip(&outside, &Wire::ALL.map(|wire| format!("link set {} up\n", wire.name())).concat());
        ip(&leaf, &overlay(plan));
        let fdb: String = [(3, 2), (4, 3)]
            .map(|(station, vtep)| {
                format!(
                    "fdb append 00:00:00:00:00:00 dev vx10 dst 10.0.0.{vtep}\n\
                     fdb replace 02:00:00:00:0a:0{station} dev vx10 dst 10.0.0.{vtep} self extern_learn\n\
                     fdb replace 02:00:00:00:0a:0{station} dev vx10 master extern_learn\n"
                )
            })
            .concat();
        bridge(&leaf, &fdb);
        let wires = Wires::open(&outside);
        let built = Self { leaf, outside, wires };
        for port in ["hp1", "hp2"] {
            crate::wait_for("the port to forward", || {
                crate::lab::run(&built.leaf, &format!("bridge link show dev {port}")).contains("forwarding")
            });
        }
        built
    }

    /// Runs a shell script in the leaf's namespace. `$OUT` names the other namespace.
    ///
    /// # Errors
    /// What it wrote, if it failed.
    pub fn run(&self, script: &str) -> Result<(), String> {
        let (leaf, outside) = (self.leaf.name(), self.outside.name());
        let run = || {
            let mut command = Command::new("sh");
            command.args(["-e", "-c", script]).env("OUT", outside).env("LEAF", leaf);
            command.stdin(Stdio::null()).output().expect("sh")
        };
        let output = self.leaf.enter(run).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("'{script}': {said}")) }
    }
}

fn links(plan: &Plan, outside: &str) -> String {
    let Plan { underlay_mtu, overlay_mtu, .. } = plan;
    let mut text = String::from("addr add 10.0.0.1/32 dev lo\n");
    for wire in Wire::ALL {
        let mtu = if wire.is_uplink() { underlay_mtu } else { overlay_mtu };
        let (name, end, mac, far) = (wire.in_leaf(), wire.name(), wire.leaf_mac(), wire.outside_mac());
        text += &format!(
            "link add {name} mtu {mtu} address {mac} type veth peer name {end} mtu {mtu} address {far} \
             netns {outside}\n\
             link set {name} up\n"
        );
    }
    for (uplink, wire) in [(1, Wire::U1), (2, Wire::U2)] {
        text += &format!(
            "addr add 10.1.{uplink}.1/24 dev up{uplink}\n\
             neigh replace 10.1.{uplink}.2 lladdr {mac} dev up{uplink} nud permanent\n\
             route add 10.0.0.{vtep}/32 via 10.1.{uplink}.2 dev up{uplink} src 10.0.0.1\n",
            mac = wire.outside_mac(),
            vtep = uplink + 1,
        );
    }
    text
}

fn overlay(plan: &Plan) -> String {
    let Plan { vxlan, overlay_mtu, .. } = plan;
    let learning = if vxlan.contains("nolearning") { "off" } else { "on" };
    format!(
        "link add br10 type bridge mcast_snooping 0\n\
         link add vx10 mtu {overlay_mtu} type vxlan id 10 local 10.0.0.1 dstport 4789 {vxlan}\n\
         link set vx10 master br10 up\n\
         link set vx10 type bridge_slave learning {learning}\n\
         link set hp1 master br10\n\
         link set hp2 master br10\n\
         link set br10 up\n"
    )
}
