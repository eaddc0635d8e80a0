//! The ContainerLab topology file.

use std::fmt::{Result, Write as _};
use std::time::Duration;

use super::layout::{Layout, Role, Router};
use super::plan::{HOST_MTU, Plan, VNI};

/// The file `NAME.clab.yml`.
pub(super) fn topology(plan: &Plan, layout: &Layout) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = head(&mut text, plan);
    let _ = nodes(&mut text, plan, layout);
    let _ = links(&mut text, plan, layout);
    text
}

fn head(text: &mut String, plan: &Plan) -> Result {
    let Plan { name, sites, leaves, spines, hosts, .. } = plan;
    writeln!(
        text,
        "# {sites} × ({leaves} leaves, {spines} spines), {hosts} at each leaf. `lab new` wrote it.
#
#   lab up {name}.clab.yml                        in network namespaces
#   containerlab deploy -t {name}.clab.yml        in containers
#
# spines 10.0.0.N, leaves 10.0.1.N (loopback; the VTEP's address)
# leaf to spine 10.1.0.0/16, between sites 10.2.0.0/16, /31 for each link
# hosts 192.168.10.N in VNI {VNI}
#
# fib_multipath_hash_seed needs Linux 6.11. Where it is missing, remove those lines for ContainerLab.

name: \"{name}\"

topology:
  defaults:
    kind: linux
    network-mode: none
    privileged: false
  groups:
    router:
      image: ${{FRR_IMAGE:-quay.io/frrouting/frr:10.3.1}}
      cap-add: [NET_ADMIN, NET_RAW, SYS_ADMIN]
      sysctls:
        net.ipv4.ip_forward: \"1\"
        net.ipv4.conf.all.rp_filter: \"0\"
        net.ipv4.conf.default.rp_filter: \"0\"
        # Hash every packet afresh by addresses, protocol and ports, as a switch does.
        net.ipv4.fib_multipath_hash_policy: \"3\"
        net.ipv4.fib_multipath_hash_fields: \"0x37\"
      binds:
        - vtysh.conf:/etc/frr/vtysh.conf
    host:
      image: ${{HOST_IMAGE:-quay.io/frrouting/frr:10.3.1}}
      cap-add: [NET_ADMIN, NET_RAW]"
    )?;
    if plan.vtepd {
        writeln!(
            text,
            "    # Beside each leaf, in its network namespace. Without these nodes, kernel VXLAN forwards.
    vtepd:
      image: ${{VTEPD_IMAGE:-vtepd}}
      cap-add: [NET_ADMIN, NET_RAW, BPF, SYS_ADMIN, IPC_LOCK, SYS_NICE]"
        )?;
    }
    Ok(())
}

fn nodes(text: &mut String, plan: &Plan, layout: &Layout) -> Result {
    writeln!(text, "\n  nodes:")?;
    for router in &layout.routers {
        node(text, router)?;
        if router.role == Role::Leaf {
            leaf(text, router, layout)?;
        }
    }
    if plan.has_circuits() {
        let circuits = (1..=layout.between_sites.len()).map(|n| format!(" a{n}:b{n}"));
        let [delay, jitter] = [plan.circuit.0, plan.circuit.1].map(time);
        writeln!(
            text,
            "    # The circuits between the sites.
    wan:
      image: ${{LAB_IMAGE:-vtepd-lab}}
      cap-add: [NET_ADMIN, NET_RAW, SYS_NICE]
      sysctls:
        net.ipv6.conf.default.disable_ipv6: \"1\"
      cmd: lab wan{} --delay {delay} --jitter {jitter}",
            circuits.collect::<String>()
        )?;
    }
    if plan.vtepd {
        for router in layout.routers.iter().filter(|router| router.role == Role::Leaf) {
            let name = &router.name;
            writeln!(
                text,
                "    vtepd-{name}:\n      group: vtepd\n      network-mode: container:{name}"
            )?;
        }
    }
    for host in &layout.hosts {
        writeln!(
            text,
            "    {}:\n      group: host\n      exec:
        - ip link set eth1 address {} mtu {HOST_MTU}
        - ip addr add {}/24 dev eth1",
            host.name, host.mac, host.address
        )?;
    }
    Ok(())
}

fn node(text: &mut String, router: &Router) -> Result {
    let Router { name, role, hash_seed, .. } = router;
    let (image, daemons) = match role {
        Role::Spine => ("", "daemons"),
        Role::Leaf => ("\n      image: ${LEAF_IMAGE:-quay.io/frrouting/frr:10.3.1}", "daemons.fpm"),
    };
    writeln!(
        text,
        "    {name}:\n      group: router{image}
      sysctls:
        net.ipv4.fib_multipath_hash_seed: \"{hash_seed}\"
      binds:
        - {daemons}:/etc/frr/daemons
        - {name}.conf:/etc/frr/frr.conf"
    )
}

/// The bridge of a leaf, with a VXLAN netdev and the ports of its hosts.
fn leaf(text: &mut String, router: &Router, layout: &Layout) -> Result {
    writeln!(
        text,
        "      exec:
        - ip link add br{VNI} type bridge
        - ip link set br{VNI} addrgenmode none up
        - ip link add vx{VNI} type vxlan id {VNI} local {} dstport 4789 nolearning
        - ip link set vx{VNI} addrgenmode none mtu {HOST_MTU} master br{VNI} up
        - ip link set vx{VNI} type bridge_slave learning off neigh_suppress on",
        router.loopback
    )?;
    for host in layout.hosts.iter().filter(|host| host.leaf == router.name) {
        writeln!(text, "        - ip link set {} master br{VNI}", host.port)?;
    }
    Ok(())
}

fn links(text: &mut String, plan: &Plan, layout: &Layout) -> Result {
    writeln!(text, "\n  links:")?;
    let mut link = |a: &str, b: &str| writeln!(text, "    - endpoints: [\"{a}\", \"{b}\"]");
    for [leaf, spine] in &layout.fabric {
        link(leaf, spine)?;
    }
    for (index, [near, far]) in layout.between_sites.iter().enumerate() {
        if plan.has_circuits() {
            link(near, &format!("wan:a{}", index + 1))?;
            link(&format!("wan:b{}", index + 1), far)?;
        } else {
            link(near, far)?;
        }
    }
    for host in &layout.hosts {
        link(&format!("{}:{}", host.leaf, host.port), &format!("{}:eth1", host.name))?;
    }
    Ok(())
}

/// A time in the largest unit of which it is a whole number.
fn time(time: Duration) -> String {
    let nanoseconds = time.as_nanos();
    let units = [(1_000_000, "ms"), (1000, "us")];
    let unit = units.into_iter().find(|(scale, _)| nanoseconds.is_multiple_of(*scale));
    let (scale, unit) = unit.unwrap_or((1, "ns"));
    format!("{}{unit}", nanoseconds / scale)
}
