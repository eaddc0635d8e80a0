//! What the parser uses, ignores and refuses, and the error messages.

use super::*;
use crate::model::{Bind, Endpoint, LINK_MTU};
use crate::model::{FarEnd, Tunnel};

mod containers;

fn parsed(text: &str) -> core::result::Result<Topology, String> {
    Topology::parse(text, Path::new("/labs"), |_| None).map_err(|error| error.to_string())
}

fn node(settings: &str) -> core::result::Result<Topology, String> {
    parsed(&format!("name: x\ntopology:\n  nodes:\n    r1:\n      kind: linux\n      {settings}\n"))
}

#[test]
fn levels_join_lists_and_replace_single_values() {
    let text = "
name: x
prefix: ''
topology:
  defaults: {kind: linux, image: a, env: {A: 1, B: 1}}
  kinds: {linux: {exec: [first]}}
  groups:
    router: {sysctls: {net.ipv4.ip_forward: 1}, binds: ['all:/etc/frr/daemons', 'v:/etc/frr/vtysh.conf']}
  nodes:
    r1: {group: router, env: {B: 2}, exec: ['sh -c \"echo a b\"'], binds: ['own:/etc/frr/daemons:ro']}
    h1:
    s1: {network-mode: 'container:r1'}
  links:
    - endpoints: ['r1:up1', 'h1:eth1']
    - {type: veth, mtu: 1500, endpoints: [{node: r1, interface: up2}, {node: h1, interface: eth2}]}
";
    let mut topology = parsed(text).unwrap();
    // Whoever runs the test.
    topology.nodes.values_mut().for_each(|node| drop(node.env.remove("CLAB_LABEL_CLAB_OWNER")));
    let r1 = &topology.nodes["r1"];
    assert_eq!(r1.exec, [vec!["first"], vec!["sh", "-c", "echo a b"]]);
    assert_eq!((r1.env["A"].as_str(), r1.env["B"].as_str()), ("1", "2"));
    assert_eq!(r1.sysctls["net.ipv4.ip_forward"], "1");
    let bind = |source: &str, target: &str, read_only| Bind {
        source: Path::new("/labs").join(source),
        target: target.into(),
        read_only,
    };
    assert_eq!(
        r1.binds,
        [bind("v", "/etc/frr/vtysh.conf", false), bind("own", "/etc/frr/daemons", true)]
    );
    assert_eq!(
        topology.nodes["h1"],
        Node {
            management: Some([172, 20, 20, 2].into()),
            exec: vec![vec!["first".into()]],
            env: [
                ("A", "1"),
                ("B", "1"),
                ("CLAB_INTFS", "2"),
                ("CLAB_LABEL_CLAB_NODE_GROUP", ""),
                ("CLAB_LABEL_CLAB_NODE_KIND", "linux"),
                ("CLAB_LABEL_CLAB_NODE_LAB_DIR", "/labs/clab-x/h1"),
                ("CLAB_LABEL_CLAB_NODE_LONGNAME", "h1"),
                ("CLAB_LABEL_CLAB_NODE_NAME", "h1"),
                ("CLAB_LABEL_CLAB_NODE_TYPE", ""),
                ("CLAB_LABEL_CONTAINERLAB", "x"),
            ]
            .map(|(a, b)| (a.into(), b.into()))
            .into(),
            ..Node::default()
        }
    );
    assert_eq!(topology.nodes["s1"].shares.as_deref(), Some("r1"));
    assert_eq!(topology.links.iter().map(|link| link.mtu).collect::<Vec<_>>(), [LINK_MTU, 1500]);
    let up2 = Endpoint { node: "r1".into(), interface: "up2".into() };
    assert_eq!(topology.peer(&up2).unwrap().to_string(), "h1:eth2");
}

#[test]
fn what_namespaces_cannot_do_is_refused_by_name() {
    for (settings, named) in [
        ("volumes: ['a:/b']", "topology.nodes.r1.volumes: not supported"),
        ("cmd: --metrics-listen 0.0.0.0:9472", "topology.nodes.r1.cmd: not supported"),
        ("impairments: {delay: 5ms}", "topology.nodes.r1.impairments: not supported"),
        ("stages: {started: {}}", "topology.nodes.r1.stages.started: expected create"),
        (
            "stages: {create: {exec: [{command: ls, target: host, phase: on-enter}]}}",
            "topology.nodes.r1.stages.create.exec.target: host: not supported",
        ),
        ("healthcheck: {interval: 5}", "topology.nodes.r1.healthcheck: expected a test"),
        ("healthcheck: {test: [ls]}", "topology.nodes.r1.healthcheck.test: expected CMD and words"),
        ("startup-delay: soon", "topology.nodes.r1.startup-delay: expected a number"),
        ("startup-delay: 86401", "topology.nodes.r1.startup-delay: expected a number of seconds"),
        (
            "healthcheck: {test: [CMD, ls], interval: 18446744073709551615}",
            "topology.nodes.r1.healthcheck.interval: expected a number of seconds, 0 to 86400",
        ),
        (
            "healthcheck: {timeout: 86401}",
            "topology.nodes.r1.healthcheck.timeout: expected a number",
        ),
        (
            "healthcheck: {start-period: 86401}",
            "topology.nodes.r1.healthcheck.start-period: expected a number",
        ),
        ("cmd: /", "topology.nodes.r1.cmd: expected a program"),
        ("cmd: .. up", "topology.nodes.r1.cmd: expected a program"),
        ("entrypoint: /bin/..", "topology.nodes.r1.entrypoint: expected a program"),
        ("env-files: [none]", "cannot read /labs/none"),
        ("nonsense: 1", "topology.nodes.r1.nonsense: not supported"),
        ("sysctls: {vm.swappiness: 1}", "topology.nodes.r1.sysctls.vm.swappiness: not supported"),
        ("network-mode: host", "topology.nodes.r1.network-mode: not supported"),
        ("network-mode: container:r9", "topology.nodes.r1.network-mode: no node 'r9'"),
        ("binds: ['/a']", "topology.nodes.r1.binds: expected source:target"),
        ("exec: ['echo \"']", "topology.nodes.r1.exec: expected a command with closed quotes"),
        ("exec: echo", "topology.nodes.r1.exec: expected a list"),
    ] {
        let error = node(settings).unwrap_err();
        assert!(error.starts_with(named), "{settings}: {error}");
    }
    let srl = parsed("{name: x, topology: {nodes: {r1: {kind: nokia_srlinux}}}}").unwrap_err();
    assert!(srl.starts_with("topology.nodes.r1.kind: not supported"), "{srl}");
    assert_eq!(
        parsed("{name: x, topology: {nodes: {r1: }}}").unwrap_err(),
        "topology.nodes.r1.kind: missing"
    );
    assert!(
        parsed("{name: x, setting: {}, topology: {nodes: {}}}")
            .unwrap_err()
            .starts_with("setting:")
    );
    assert_eq!(parsed("{topology: {nodes: {}}}").unwrap_err(), "name: missing");
}

#[test]
fn a_refusal_names_what_stands_in_the_way() {
    for (text, named) in [
        (
            "topology:\n  defaults: {kind: ceos}\n  nodes: {r1: {startup-config: a, user: x}}",
            "topology.nodes.r1.kind: not supported",
        ),
        (
            "topology:\n  groups: {g: {kind: srl}}\n  nodes: {r1: {group: g, license: a}}",
            "topology.nodes.r1.kind: not supported",
        ),
        (
            "topology:\n  nodes:\n{{- range $i := seq 1 2 }}\n    r{{ $i }}: {kind: linux}\n{{- end }}",
            "line 4: the file is a Go template",
        ),
        (
            "topology:\n  nodes: {a: {kind: linux}}\n  links:\n    - endpoints: ['a:{{ if .x }}e1{{ end }}', 'b:x']",
            "line 5: the file is a Go template",
        ),
        (
            "topology:\n  nodes: {a: {kind: linux, exec: [\"ip addr add 10.0.0.{{ add 1 2 }}/24 dev e\"]}}",
            "line 3: the file is a Go template",
        ),
        (
            "topology:\n  nodes: {r1: {kind: linux, user: frr}}",
            "topology.nodes.r1.user: not supported by lab (commands are run as root)",
        ),
        ("topology:\n  nodes: {'a|b': {kind: linux}}", "topology.nodes.a|b: expected kind bridge"),
        (
            "topology:\n  nodes: {a: {kind: linux}}\n  links: [{type: dummy, endpoints: ['a:x', 'a:y']}]",
            "topology.links[0].endpoint: expected one endpoint",
        ),
        (
            "topology:\n  nodes: {a: {kind: linux}}\n  links: [{endpoints: ['b:x', 'dummy']}]",
            "the link of b:x: no node 'b'",
        ),
    ] {
        let error = parsed(&format!("name: x\n{text}\n")).unwrap_err();
        assert!(error.starts_with(named), "{text}: {error}");
    }
    // Formats belong to a command; root runs every command.
    for user in ["root", "0:0"] {
        let exec = "exec: ['docker ps --format \"{{.Names}} {{json .}}\"'] # as {{ this }}";
        node(&format!("{exec}\n      user: {user}")).unwrap();
    }
}

#[test]
fn a_node_may_have_the_name_of_a_word() {
    for word in ["dummy", "vxlan", "vxlan-stitch", "host", "mgmt-net", "macvlan"] {
        let text = format!(
            "{{name: x, topology: {{links: [{{endpoints: ['r1:eth1', '{word}:eth1']}}], \
             defaults: {{kind: linux}}, nodes: {{r1: , {word}: }}}}}}"
        );
        let topology = parsed(&text).unwrap();
        assert!(topology.half_links.is_empty(), "{word}");
        assert_eq!(topology.links[0].ends[1].to_string(), format!("{word}:eth1"));
    }
}

#[test]
fn links_that_lead_nowhere_are_refused() {
    for (link, named) in [
        ("endpoints: ['r1:a']", "topology.links[0].endpoints: expected two endpoints"),
        ("endpoints: ['r1:a', 'r2:b']", "topology.links[0]: no node 'r2'"),
        (
            "endpoints: ['r1:a', 'host:b']",
            "topology.links[0].endpoints: host:b: not supported by lab (a link joins two nodes",
        ),
        ("endpoints: ['r1:a', 'r1:a']", "topology.links[0]: interface 'r1:a' is used twice"),
        ("endpoints: ['r1:a', 'r1:a\tb']", "topology.links[0]: expected an interface name"),
        ("type: mgmt-net", "topology.links[0].type: mgmt-net: not supported"),
        ("mtu: 9", "topology.links[0].mtu: expected 68 to 65535"),
        ("endpoint: 'r1:a', type: vxlan, vni: 1", "topology.links[0].remote: missing"),
        ("endpoint: 'r1:a', type: vxlan, remote: 10.0.0.1", "topology.links[0].vni: missing"),
        ("remote: server1", "topology.links[0].remote: expected an IP address"),
        ("vni: 16777216", "topology.links[0].vni: expected 1 to 16777215"),
        (
            "endpoints: ['r1:a', 'r1:b'], vni: 1",
            "topology.links[0].vni: not supported by lab (only",
        ),
    ] {
        let text = format!(
            "{{name: x, topology: {{nodes: {{r1: {{kind: linux}}}}, links: [{{{link}}}]}}}}"
        );
        let error = parsed(&text).unwrap_err();
        assert!(error.starts_with(named), "{link}: {error}");
    }
}

#[test]
fn links_lead_to_other_machines() {
    let link = "endpoint: 'r1:a', type: vxlan, remote: 'fd00::1', vni: 9";
    let text =
        format!("{{name: x, topology: {{nodes: {{r1: {{kind: linux}}}}, links: [{{{link}}}]}}}}");
    let topology = parsed(&text).unwrap();
    let remote = "fd00::1".parse().unwrap();
    let tunnel = Tunnel { remote, vni: 9, port: 14789, parent: None };
    assert_eq!(topology.half_links[0].to, FarEnd::Vxlan(tunnel));
    assert!(topology.links.is_empty() && topology.half_links[0].mtu.is_none());
}

/// Forms that public FRR labs use. ContainerLab accepts all of them.
mod labs_of_others {
    use super::*;
    use crate::model::{Kind, Stage};

    #[test]
    fn a_clos_with_a_management_network_kinds_and_binds_by_name() {
        let topology = parsed(
            "
name: clos
mgmt: {network: statics, ipv4-subnet: 172.20.20.0/24}
topology:
  kinds:
    linux:
      image: quay.io/frrouting/frr:10.3.1
      binds:
        - conf/__clabNodeName__/frr.conf:/etc/frr/frr.conf:ro,z
        - conf/daemons:/etc/frr/daemons:Z
  defaults: {kind: linux, labels: {owner: me}}
  nodes:
    spine1: {mgmt-ipv4: 172.20.20.11, labels: {tier: spine}}
    leaf1: {mgmt-ipv4: 172.20.20.21}
  links:
    - endpoints: ['spine1:eth1', 'leaf1:eth1']
",
        )
        .unwrap();
        let binds = &topology.nodes["leaf1"].binds;
        assert_eq!(binds[0].source, Path::new("/labs/conf/leaf1/frr.conf"));
        assert!(binds[0].read_only && !binds[1].read_only);
        let address = |node: &str| topology.nodes[node].management.unwrap().to_string();
        assert_eq!(["spine1", "leaf1"].map(address), ["172.20.20.11", "172.20.20.21"]);
        assert!(topology.notes.is_empty(), "{:?}", topology.notes);
    }

    #[test]
    fn nodes_have_addresses_in_the_management_network() {
        let file = |mgmt: &str, of_a: &str| {
            format!(
                "name: m\nprefix: own\nmgmt: {{{mgmt}}}\ntopology:\n  defaults: {{kind: linux}}\n  nodes:\n    \
                 a: {{{of_a}}}\n    b: {{aliases: [ntp.example]}}\n    c: {{network-mode: none}}\n    \
                 d: {{network-mode: 'container:a'}}\n    e: {{kind: bridge}}\n    f:\n  links:\n    \
                 - endpoints: ['f:eth0', 'b:eth1']\n"
            )
        };
        let of = |mgmt: &str, of_a: &str| {
            let topology = parsed(&file(mgmt, of_a)).unwrap();
            let addresses = topology.nodes.values().filter_map(|node| node.management);
            addresses.map(|address| address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of("", ""), ["172.20.20.2", "172.20.20.3"]);
        assert_eq!(of("", "mgmt-ipv4: 172.20.20.2"), ["172.20.20.2", "172.20.20.3"]);
        assert_eq!(of("ipv4-subnet: 10.9.0.0/16, ipv4-gw: 10.9.0.2", ""), ["10.9.0.1", "10.9.0.3"]);
        let range = "ipv4-subnet: 10.9.0.0/16, ipv4-range: 10.9.7.0/24";
        assert_eq!(of(range, "mgmt-ipv4: 10.9.0.9"), ["10.9.0.9", "10.9.7.0"]);
        let topology = parsed(&file("ipv4_subnet: 10.9.0.0/30, ipv6-subnet: '::/64'", "")).unwrap();
        assert_eq!(topology.nodes["a"].management.unwrap().to_string(), "10.9.0.2");
        assert_eq!(topology.nodes["b"].management, None);
        assert!(topology.notes[0].contains("ipv6-subnet"), "{:?}", topology.notes);
        assert!(topology.notes[1].ends_with("no address for b"), "{:?}", topology.notes);
        assert_eq!(topology.management.container("x", "b"), "own-x-b");
        for (mgmt, of_a, place) in [
            ("ipv4-subnet: 10.9.0.0", "", "mgmt.ipv4-subnet: expected a subnet"),
            (
                "ipv4-subnet: 10.9.0.0/24, ipv4-gw: 10.8.0.1",
                "",
                "mgmt.ipv4-gw: expected an address of",
            ),
            ("ipv4-gw: 172.20.20.255", "", "mgmt.ipv4-gw: expected an address of the subnet"),
            ("", "mgmt-ipv4: 10.0.0.1", "topology.nodes.a.mgmt-ipv4: expected an address of"),
            ("", "mgmt-ipv4: 172.20.20.1", "topology.nodes.a.mgmt-ipv4: expected an address of"),
            ("", "mgmt-ipv4: here", "topology.nodes.a.mgmt-ipv4: expected an IPv4 address"),
        ] {
            let error = parsed(&file(mgmt, of_a)).unwrap_err().to_string();
            assert!(error.contains(place), "{error}");
        }
    }

    #[test]
    fn hosts_whose_container_only_stays_and_addresses_of_links_without_effect() {
        let topology = parsed(
            "
name: hosts
topology:
  nodes:
    r1: {kind: linux, image: frr, cmd: 'sleep infinity', memory: 1Gb, cpu: 1, cap-add: [NET_ADMIN]}
    h1:
      kind: linux
      image: alpine:3.20
      entrypoint: sh -c
      cmd: '\"ip route add default via 10.0.0.1; sleep infinity\"'
  links:
    - {endpoints: ['r1:eth1', 'h1:eth1'], ipv4: [10.0.0.1/24, 10.0.0.2/24], ipv6: ['', '2001:db8::2/64']}
    - type: veth
      endpoints:
        - {node: r1, interface: eth2, mac: '02:00:00:00:00:01', ipv4: 10.0.1.1/31}
        - {node: h1, interface: eth2}
",
        )
        .unwrap();
        assert_eq!(topology.nodes["r1"].program, ["sleep", "infinity"]);
        let script = "ip route add default via 10.0.0.1; sleep infinity";
        assert_eq!(topology.nodes["h1"].program, ["sh", "-c", script]);
        let [link, extended] = &topology.links[..] else { panic!("two links") };
        assert!(link.settings.iter().all(|settings| settings.mac.is_none()));
        assert_eq!(extended.settings[0].mac.as_deref(), Some("02:00:00:00:00:01"));
        let note = "links: ipv4 and ipv6 have no effect on linux nodes; set them by exec";
        assert_eq!(topology.notes[0], note);
    }

    /// The parser would be busy for minutes.
    #[test]
    fn a_file_of_brackets_is_refused_at_once() {
        let lines = "[\n".repeat(200_000);
        let texts = ["[".repeat(200_000), "- ".repeat(200_000), "{a: ".repeat(200_000), lines];
        for text in texts {
            let error = parsed(&text).unwrap_err();
            assert!(error.starts_with("more than 256 levels"), "{error}");
        }
    }

    #[test]
    fn a_bridge_between_and_yaml_that_repeats_itself() {
        let topology = parsed(
            "
name: shared
topology:
  nodes:
    r1: &router {kind: linux, image: frr, sysctls: {net.ipv4.ip_forward: 1}}
    r2: {<<: *router, env: {SITE: two}}
    lan: {kind: bridge}
  links:
    - endpoints: ['r1:eth1', 'lan:p1']
    - endpoints: ['r2:eth1', 'lan:p2']
",
        )
        .unwrap();
        assert_eq!(topology.nodes["lan"].kind, Kind::Bridge);
        assert_eq!(topology.nodes["r2"].sysctls["net.ipv4.ip_forward"], "1");
        assert_eq!(topology.nodes["r2"].env["SITE"], "two");
        for kind in ["ovs-bridge", "host", "nokia_srlinux"] {
            let error =
                parsed(&format!("{{name: x, topology: {{nodes: {{b: {{kind: {kind}}}}}}}}}"))
                    .unwrap_err();
            assert!(error.starts_with("topology.nodes.b.kind: not supported"), "{error}");
        }
    }

    #[test]
    fn one_after_the_other_with_health_checks_and_environment_files() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("site.env"), "# of the site\nSITE=one\nASN=65001\n")
            .unwrap();
        let text = "
name: staged
topology:
  defaults: {kind: linux, env-files: [site.env]}
  nodes:
    controller:
      healthcheck: {test: [CMD-SHELL, 'test -e /tmp/ready'], interval: 1, retries: 9, start-period: 2}
    leaf1:
      env: {ASN: 65011}
      startup-delay: 3
      stages:
        create: {wait-for: [{node: controller, stage: healthy}]}
        configure:
          exec: {on-enter: ['ip link set eth1 up'], on-exit: ['echo \"done now\"']}
    leaf2:
      stages:
        create-links:
          wait-for: [{node: leaf1, stage: configure}]
          exec: [{command: ip link, target: container, phase: on-exit}]
  links:
    - endpoints: ['leaf1:eth1', 'leaf2:eth1']
";
        let topology = Topology::parse(text, directory.path(), |_| None).unwrap();
        let leaf1 = &topology.nodes["leaf1"];
        assert_eq!((leaf1.env["SITE"].as_str(), leaf1.env["ASN"].as_str()), ("one", "65011"));
        assert_eq!(leaf1.startup_delay, 3);
        assert_eq!(
            leaf1.stages[&Stage::Create].wait_for,
            [("controller".to_owned(), Stage::Healthy)]
        );
        assert_eq!(leaf1.stages[&Stage::Configure].on_exit, [["echo", "done now"]]);
        assert_eq!(topology.nodes["leaf2"].stages[&Stage::CreateLinks].on_exit, [["ip", "link"]]);
        let check = topology.nodes["controller"].healthcheck.as_ref().unwrap();
        assert_eq!(check.test, ["sh", "-c", "test -e /tmp/ready"]);
        assert_eq!(
            (check.retries, check.interval.as_secs(), check.start_period.as_secs()),
            (9, 1, 2)
        );
    }

    #[test]
    fn settings_of_a_container_are_carried_out_named_or_refused() {
        let of = |setting: &str| {
            let node = format!("{{kind: linux, {setting}}}");
            parsed(&format!("{{name: x, topology: {{nodes: {{r1: {node}}}}}}}"))
        };
        let topology =
            of("tmpfs: {/run: 'size=64m,exec', /tmp/x: }, cpu: 2, pid-mode: host").unwrap();
        let node = &topology.nodes["r1"];
        assert_eq!(topology.notes, ["cpu: has no effect on r1"]);
        assert_eq!(of("ports: ['80:80']").unwrap().notes, ["ports: has no effect on r1"]);
        let of_group = parsed(
            "{name: x, topology: {groups: {g: {memory: 1Gb}}, defaults: {memory: 2Gb}, nodes: \
             {r1: {kind: linux, group: g}, r2: {kind: linux}}}}",
        );
        assert_eq!(of_group.unwrap().notes, ["memory: has no effect on r1, r2"]);
        let note = "privileged: false: has no effect on r1";
        assert_eq!(of("privileged: No").unwrap().notes, [note]);
        assert!(of("privileged: true").unwrap().notes.is_empty());
        assert!(of("privileged: false, cap-add: [NET_ADMIN]").unwrap().notes.is_empty());
        assert!(node.machine_pids);
        let (run, other) = (&node.tmpfs[Path::new("/run")], &node.tmpfs[Path::new("/tmp/x")]);
        // MS_NOSUID, MS_NODEV and MS_NOEXEC are 2, 4 and 8.
        assert_eq!((run.flags, run.data.as_str(), other.flags), (6, "size=64m", 14));
        for (wrong, message) in [
            ("tmpfs: ['run']", "absolute paths"),
            ("tmpfs: ['/run/../etc']", "absolute paths"),
            ("tmpfs: ['/']", "absolute paths"),
            ("tmpfs: ['/run:huge=always']", "options of tmpfs(5)"),
            ("pid-mode: 'container:r2'", "host is"),
            ("dns: {servers: ['192.0.2.1 x']}", "single words"),
            ("dns: {server: [192.0.2.1]}", "servers, search or options"),
        ] {
            let error = of(wrong).unwrap_err();
            assert!(error.contains(message), "{wrong}: {error}");
        }
    }
}
