//! A fabric on several machines: links of type `vxlan` and `vxlan-stitch` join their nodes. Two
//! namespaces are the machines.

use std::path::PathBuf;
use std::process::{Command, Output};

use fabric::{Namespace, netns};
use root_test::root_test;
use vtepd_tests::daemon::lab_program;
use vtepd_tests::lab::{ip, namespace_name};

/// The MTU between the machines in bytes, and what is left of it in a tunnel over IPv4.
const MTU: u32 = 1500;
const INNER: u32 = MTU - 50;

/// A machine with a node that has a link to the other machine.
struct Machine {
    namespace: Namespace,
    fabric: String,
    file: PathBuf,
}

impl Machine {
    fn new(case: &str, number: u8) -> Self {
        let namespace = Namespace::create(namespace_name(case, &number.to_string())).unwrap();
        let fabric = format!("vtt-{case}-{number}");
        let file = std::env::temp_dir().join(format!("{fabric}-{}.yml", std::process::id()));
        Self { namespace, fabric, file }
    }

    fn lab(&self, arguments: &[&str]) -> Output {
        let run = || Command::new(lab_program()).args(arguments).output().unwrap();
        self.namespace.enter(run).unwrap()
    }

    /// Starts the node with these links.
    fn up(&self, links: &str) -> Output {
        let Self { fabric, .. } = self;
        let text = format!(
            "name: {fabric}\ntopology:\n  nodes:\n    node: {{kind: linux}}\n  links:\n{links}"
        );
        std::fs::write(&self.file, text).unwrap();
        self.lab(&["up", self.file.to_str().unwrap(), "--no-wait"])
    }

    fn exec(&self, command: &str) -> Output {
        let words: Vec<&str> = command.split_whitespace().collect();
        self.lab(&[&["exec", "--name", &self.fabric, "node", "--"], &words[..]].concat())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.lab(&["down", &self.fabric]);
        let _ = std::fs::remove_file(&self.file);
    }
}

fn machines(case: &str) -> [Machine; 2] {
    let machines = [1, 2].map(|number| Machine::new(case, number));
    let [one, two] = [&machines[0].namespace, &machines[1].namespace];
    netns::veth((one, "eth0"), (two, "eth0"), MTU).unwrap();
    ip(one, "addr add 192.0.2.1/24 dev eth0");
    ip(two, "addr add 192.0.2.2/24 dev eth0");
    machines
}

fn assert_ok(output: &Output) {
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
}

/// The nodes reach each other with packets of the largest size, and both machines are as before
/// after `lab down`.
fn nodes_reach_each_other(case: &str, link: impl Fn(u8) -> String, kind: &str) {
    let machines = machines(case);
    let links = |machine: &Machine| -> Vec<String> {
        let names = |rtnl: &fabric::rtnl::Rtnl| rtnl.links();
        machine.namespace.rtnl(names).unwrap().into_iter().map(|link| link.name).collect()
    };
    let before: Vec<_> = machines.iter().map(links).collect();
    for (machine, other) in machines.iter().zip([2, 1]) {
        assert_ok(&machine.up(&link(other)));
        let own = format!("10.9.0.{}/24", 3 - other);
        assert_ok(&machine.exec(&format!("ip addr add {own} dev eth1")));
    }
    let shown = machines[0].exec("ip -d link show eth1");
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(kind) && shown.contains(&format!("mtu {INNER} ")), "{shown}");
    let payload = INNER - 28;
    assert_ok(&machines[0].exec(&format!("ping -c 3 -i 0.1 -W 5 -M do -s {payload} 10.9.0.2")));
    for machine in &machines {
        assert_ok(&machine.lab(&["down", &machine.fabric]));
    }
    assert_eq!(machines.iter().map(links).collect::<Vec<_>>(), before);
    assert_eq!(netns::list(&format!("lab-vtt-{case}-")), Vec::<String>::new());
}

/// As the plugin `multiserver` of netlab writes it.
#[root_test]
fn a_vxlan_link_joins_nodes_of_two_machines() {
    let link = |other| {
        format!(
            "  - endpoints:\n    - \"node:eth1\"\n    - \"host:vx10001\"\n    type: vxlan\n    \
             remote: \"192.0.2.{other}\"\n    vni: 10001\n    udp-port: 4789\n"
        )
    };
    nodes_reach_each_other("machines-vxlan", link, "vxlan id 10001");
}

#[root_test]
fn a_stitched_link_joins_nodes_of_two_machines() {
    let link = |other| {
        format!(
            "  - type: vxlan-stitch\n    endpoint: {{node: node, interface: eth1}}\n    \
             remote: 192.0.2.{other}\n    vni: 7\n"
        )
    };
    nodes_reach_each_other("machines-stitch", link, "veth");
}

#[root_test]
fn a_link_that_does_not_fit_is_refused_with_what_fits() {
    let machines = machines("machines-mtu");
    for (keys, why) in [
        (
            "remote: 192.0.2.2, mtu: 1451",
            "an MTU of 1451 does not fit into that of eth0: set 'mtu: 1450' or less",
        ),
        ("remote: 198.51.100.1", "cannot find a route to 198.51.100.1"),
        ("remote: 192.0.2.2, parent-interface: eth7", "no interface 'eth7' (parent-interface)"),
    ] {
        let link = format!("  - {{type: vxlan, endpoint: 'node:eth1', vni: 7, {keys}}}\n");
        let refused = machines[0].up(&link);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && said.contains(why), "{said}");
        assert!(said.contains("the link of node:eth1: "), "{said}");
    }
    assert_eq!(netns::list("lab-vtt-machines-mtu-"), Vec::<String>::new());
}
