//! What nodes get as containers of ContainerLab do.

use super::*;
use crate::model::Stage;

#[test]
fn env_labels_and_sysctls_are_text_as_the_file_has_it() {
    let text = "
name: x
topology:
  defaults: &all {kind: Linux, env: &env {A: 1.10, B: yes, C: , D: 0x10, E: ~, F: '1'}}
  nodes:
    r1: {labels: {role.of-node/x: 010, 'a b': on}, sysctls: {net.ipv4.ip_forward: 01}}
    r2: {<<: *all, env: {A: 2.20}}
    r3: {kind: linux, env: {<<: *env, A: 3.30, 1: one}, hostname: 0x1F, cmd: echo}
    r4: {<<: {hostname: 010, cmd: ls 1.10, sysctls: {net.ipv4.ip_default_ttl: 0x40}}}
  links:
    - endpoints: ['r1:eth1', 'r2:eth1']
    - {type: Dummy, endpoint: {node: r1, interface: eth2}}
";
    let topology = parsed(text).unwrap();
    let r1 = &topology.nodes["r1"];
    for (name, value) in [
        ("A", "1.10"),
        ("B", "yes"),
        ("C", ""),
        ("D", "0x10"),
        ("E", ""),
        ("F", "1"),
        ("CLAB_LABEL_ROLE_OF_NODE_X", "010"),
        ("CLAB_LABEL_AB", "on"),
        ("CLAB_LABEL_CLAB_NODE_LONGNAME", "clab-x-r1"),
        ("CLAB_LABEL_CLAB_NODE_KIND", "linux"),
        ("CLAB_INTFS", "2"),
    ] {
        assert_eq!(r1.env.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(r1.sysctls["net.ipv4.ip_forward"], "01");
    let r2 = &topology.nodes["r2"];
    assert_eq!((r2.env["A"].as_str(), r2.env["B"].as_str()), ("2.20", "yes"));
    // A merge key brings the text, too.
    let (r3, r4) = (&topology.nodes["r3"], &topology.nodes["r4"]);
    assert_eq!(["A", "B", "D", "1"].map(|name| &r3.env[name]), ["3.30", "yes", "0x10", "one"]);
    assert_eq!([&r3.hostname, &r4.hostname].map(Option::as_deref), [Some("0x1F"), Some("010")]);
    assert_eq!(r4.sysctls["net.ipv4.ip_default_ttl"], "0x40");
}

#[test]
fn keys_are_text_also_if_they_are_numbers_or_truths() {
    let text = "
name: 7
topology:
  kinds: {linux: {labels: {1: one, true: two}}}
  groups: {2: {exec: [ls]}}
  nodes: {1: {kind: linux, group: 2}, 0x1F: {kind: linux}, yes: {kind: linux}}
  links: [{endpoints: ['1:eth1', '0x1F:eth1']}, {endpoints: [{node: 1, interface: 2}, 'yes:a']}]
";
    let topology = parsed(text).unwrap();
    assert_eq!(topology.nodes.keys().collect::<Vec<_>>(), ["0x1F", "1", "yes"]);
    let first = &topology.nodes["1"];
    assert_eq!(first.exec, [["ls"]]);
    assert_eq!((&*first.env["CLAB_LABEL_1"], &*first.env["CLAB_LABEL_TRUE"]), ("one", "two"));
    assert_eq!(topology.links[1].ends[0].to_string(), "1:2");
    let error = parsed("{name: x, topology: {nodes: {1: {kind: srl}}}}").unwrap_err();
    assert!(error.starts_with("topology.nodes.1.kind: not supported"), "{error}");
}

#[test]
fn keys_without_a_value_are_not_set() {
    let keys = "exec binds env env-files stages tmpfs dns healthcheck aliases labels ports sysctls \
                startup-config startup-delay cmd entrypoint user hostname image group privileged \
                network-mode pid-mode mgmt-ipv4 volumes cpu devices";
    let keys: String = keys.split_whitespace().map(|key| format!(", {key}: ")).collect();
    let text = format!(
        "{{name: x, mgmt: , prefix: , settings: , topology: {{kinds: , groups: , links: , nodes: \
         {{r1: {{kind: linux{keys}}}}}}}}}"
    );
    let plain = parsed("{name: x, topology: {nodes: {r1: {kind: linux}}}}").unwrap();
    assert_eq!(parsed(&text).unwrap(), plain);

    assert_eq!(parsed("# empty\n").unwrap_err(), "name: missing");

    // The next level counts, also for the empty text and the delay 0.
    let text = "
name: x
mgmt: {ipv4-subnet: , mtu: }
topology:
  defaults: {kind: linux, cmd: ls, entrypoint: env, startup-delay: 3, exec: , labels: {a: }}
  nodes:
    r1:
      {cmd: '', entrypoint: '', startup-delay: 0, exec: [id], stages: {create: {wait-for: , exec: }}}
    r2: {stages: {create: , configure: {exec: {on-enter: }}}, dns: {servers: }, tmpfs: {/x: }}
  links: [{endpoints: ['r1:a', 'r2:a'], mtu: , ipv4: , labels: , type: }]
";
    let topology = parsed(text).unwrap();
    let r1 = &topology.nodes["r1"];
    assert_eq!((&r1.program[..], r1.startup_delay), (&["env", "ls"].map(String::from)[..], 3));
    assert_eq!((&r1.exec[..], &*r1.env["CLAB_LABEL_A"]), (&[vec!["id".to_owned()]][..], ""));
}

#[test]
fn the_only_file_of_a_directory_is_taken() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let load = || Topology::load(directory).map(|topology| topology.name.to_string());
    let error = || load().unwrap_err().to_string();
    assert!(error().ends_with("has 0 files *.clab.yml: name one"), "{}", error());
    let text = "{name: x, topology: {nodes: {r1: {kind: linux}}}}";
    let file = directory.join("one.clab.yaml");
    std::fs::write(&file, text).unwrap();
    std::fs::write(directory.join("other.yml"), "").unwrap();
    assert_eq!(load().unwrap(), "x");
    let of_file =
        Topology::load(directory).unwrap().nodes["r1"].env["CLAB_LABEL_CLAB_TOPO_FILE"].clone();
    assert_eq!(Path::new(&of_file), file.canonicalize().unwrap());
    std::fs::write(directory.join("two.clab.yml"), text).unwrap();
    assert!(error().ends_with("has 2 files *.clab.yml: name one"), "{}", error());
}

#[test]
fn a_program_that_only_an_image_has_is_missed() {
    let topology = parsed(
        "{name: x, topology: {defaults: {kind: linux, image: 'docker.io/alpine:3'}, nodes: {h1: , \
         r1: {image: 'quay.io/frrouting/frr:10', binds: ['a:/etc/frr/daemons']}, \
         web1: {image: 'nginx@sha256:0'}, web2: {image: nginx, cmd: nginx}}}}",
    );
    let note = "image (lab starts no program of images; name it as cmd): has no effect on web1";
    assert_eq!(topology.unwrap().notes, [note]);
}

#[test]
fn a_group_may_have_the_kind_and_a_kind_the_group() {
    let topology = parsed(
        "{name: x, prefix: __lab-name, topology: {defaults: {kind: linux}, kinds: {linux: {group: all}}, \
         groups: {all: {env: {A: 1}}, mine: {kind: bridge}}, nodes: {r1: , b1: {group: mine}}}}",
    );
    let topology = topology.unwrap();
    let r1 = &topology.nodes["r1"];
    assert_eq!((r1.group.as_deref(), r1.env["A"].as_str()), (Some("all"), "1"));
    assert_eq!(r1.env["CLAB_LABEL_CLAB_NODE_LONGNAME"], "x-r1");
    assert_eq!(topology.nodes["b1"].kind, Kind::Bridge);
}

#[test]
fn commands_of_levels_are_joined_and_have_variables() {
    let text = "
name: x
topology:
  defaults:
    kind: linux
    exec: ['echo __clabLabName__ __clabNodeName__', 'ip link']
    stages:
      create-links: {exec: [{command: ls}], wait-for: [{node: r2, stage: create}]}
  nodes:
    r1:
      exec: [ip link, ip route]
      stages:
        create-links:
          exec: [{command: pwd, target: container}, {command: id, phase: on-exit}]
          wait-for: [{node: r2, stage: create}]
    r2: {stages: {configure: {exec: {on-enter: [ls __clabNodeName__]}}}, position: top}
";
    let topology = parsed(text).unwrap();
    let r1 = &topology.nodes["r1"];
    assert_eq!(r1.exec, [vec!["echo", "clab-x", "r1"], vec!["ip", "link"], vec!["ip", "route"]]);
    let stage = &r1.stages[&Stage::CreateLinks];
    assert_eq!(
        (&stage.on_enter[..], &stage.on_exit[..]),
        (&[vec!["ls".to_owned()], vec!["pwd".to_owned()]][..], &[vec!["id".to_owned()]][..])
    );
    assert_eq!(stage.wait_for, [("r2".to_owned(), Stage::Create)]);
    assert_eq!(topology.nodes["r2"].stages[&Stage::Configure].on_enter, [["ls", "r2"]]);
}

#[test]
fn directories_of_the_lab_are_beside_the_file() {
    let text = "
name: x
prefix: other
topology:
  nodes:
    r1:
      kind: linux
      type: a1
      exec: [ls __clabNodeDir__ __clabDir__/b]
      binds: ['__clabNodeDir__/a:/a', '__clabDir__/b:/b']
";
    let topology = parsed(text).unwrap();
    let r1 = &topology.nodes["r1"];
    let sources = r1.binds.iter().map(|bind| &bind.source);
    assert!(sources.eq([Path::new("/labs/clab-x/r1/a"), Path::new("/labs/clab-x/b")]));
    assert_eq!(r1.exec, [["ls", "/labs/clab-x/r1", "/labs/clab-x/b"]]);
    assert_eq!(r1.env["CLAB_LABEL_CLAB_NODE_TYPE"], "a1");
    for (base, directory) in [("/srv", "/srv/clab-x"), ("sub", "/labs/sub/clab-x")] {
        let lab = placeholders::lab_directory(Path::new("/labs"), Some(base), "x");
        assert_eq!(lab, Path::new(directory));
    }
}

#[test]
fn another_name_replaces_that_of_the_file_everywhere() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("named.clab.yml");
    let name = "other".parse().unwrap();
    for own in ["name: x, ", ""] {
        let node = "{kind: linux, exec: [echo __clabLabName__]}";
        std::fs::write(&file, format!("{{{own}topology: {{nodes: {{r1: {node}}}}}}}")).unwrap();
        let topology = Topology::load_as(&file, Some(&name)).unwrap();
        let r1 = &topology.nodes["r1"];
        assert_eq!((&topology.name, &r1.exec[0][1][..]), (&name, "clab-other"));
        assert_eq!(r1.env["CLAB_LABEL_CONTAINERLAB"], "other");
        assert_eq!(r1.env["CLAB_LABEL_CLAB_NODE_LONGNAME"], "clab-other-r1");
    }
}

#[test]
fn a_file_with_variables_beside_it_is_a_template() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let file = directory.join("x.clab.yml");
    std::fs::write(
        &file,
        "name: x\ntopology:\n  nodes: {r1: {kind: linux, exec: ['ls {{ .ip }}']}}\n",
    )
    .unwrap();
    let exec = Topology::load(&file).unwrap().nodes["r1"].exec.clone();
    assert_eq!(exec, [["ls", "{{", ".ip", "}}"]]);
    std::fs::write(directory.join("x.clab_vars.more.json"), "{}").unwrap();
    let error = Topology::load(&file).unwrap_err().to_string();
    assert!(error.starts_with("line 3: the file is a Go template"), "{error}");
    // A format for a command is not why another line is wrong.
    let error = parsed("name: x\nprefix: '{{.Names}}'\nother: 1\n").unwrap_err();
    assert!(error.starts_with("other: not supported"), "{error}");
}

#[test]
fn kinds_and_groups_without_nodes_may_say_anything() {
    let text = "
name: x
topology:
  kinds:
    nokia_srlinux: {startup-delay: soon, extras: {}}
    linux: {group: of-kind}
  groups: {none: {kind: nokia_srlinux, volumes: [a]}, of-kind: {env: {A: 1}}}
  nodes: {r1: {kind: linux}}
";
    assert_eq!(parsed(text).unwrap().nodes["r1"].env["A"], "1");
    let used = text.replace("{r1: {", "{r1: {group: none, ");
    let error = parsed(&used).unwrap_err();
    assert!(error.starts_with("topology.groups.none.volumes: not supported"), "{error}");
    let used = text.replace("{r1: {kind: linux", "{r1: {kind: nokia_srlinux");
    let error = parsed(&used).unwrap_err();
    assert!(error.starts_with("topology.nodes.r1.kind: not supported"), "{error}");
}

#[test]
fn names_that_the_kernel_cannot_have_are_beside_one_of_lab() {
    let text = "
name: x
topology:
  defaults: {kind: linux}
  nodes: {r1: , r2: }
  links:
    - endpoints: ['r1:to-spine1-rack12-a', 'r2:eth1/1 b']
    - endpoints: ['r1:fifteen-letters', 'r2:to-spine1-rack12-a']
";
    let topology = parsed(text).unwrap();
    let [first, second] = &topology.links[..] else { panic!("two links") };
    let names = |link: &crate::model::Link| {
        let both = link.ends.iter().zip(&link.settings);
        both.map(|(end, settings)| (end.interface.clone(), settings.alternative.clone()))
            .collect::<Vec<_>>()
    };
    let [(r1, long), (r2, slash)] = &names(first)[..] else { panic!("two ends") };
    assert_eq!(long.as_deref(), Some("to-spine1-rack12-a"));
    assert_eq!(slash.as_deref(), Some("eth1-1-b"));
    assert_eq!(names(second)[0], ("fifteen-letters".to_owned(), None));
    let all = [r1, r2, &names(second)[1].0];
    assert!(all.iter().all(|name| name.len() == 13 && name.starts_with("clab-")), "{all:?}");
    assert!(r1 != r2 && r2 != all[2] && r1 != all[2], "{all:?}");
    let text = text.replace("to-spine1", &"x".repeat(128));
    let error = parsed(&text).unwrap_err();
    assert_eq!(error, "topology.links[0]: expected an interface name of 1 to 127 characters");
    let two = |links: &str, cmd: &str| {
        let node = format!("{{kind: linux, cmd: '{cmd}'}}");
        parsed(&format!(
            "{{name: x, topology: {{nodes: {{a: {node}, b: {node}}}, links: [{links}]}}}}"
        ))
        .unwrap_err()
    };
    let links = "{endpoints: ['a:eth1/1', 'b:x']}, {endpoints: ['a:eth1 1', 'b:y']}";
    assert_eq!(two(links, "ls"), "topology.links[1]: interface 'a:eth1-1' is used twice");
    let error = two("", "lab wan dc1-circuit-port-a:b1");
    assert!(
        error.starts_with("topology.nodes.a.cmd: dc1-circuit-port-a: not supported"),
        "{error}"
    );
}

#[test]
fn settings_without_effect_are_named() {
    let text = "
name: x
topology:
  defaults: {kind: linux, mgmt-ipv4: 172.20.20.9, aliases: [all]}
  nodes:
    r1: {config: {vars: {a: 1}}, startup-config: a.cfg, license: key}
    r2: {aliases: [own], sysctls: {net.ipv6.conf.all.disable_ipv6: 1}}
    b1: {kind: bridge, exec: [ls], cmd: sleep 1, binds: ['a:/etc/frr/daemons'], stages: {configure: {exec: {on-enter: [ls]}}}}
  links: [{endpoints: [{node: r1, interface: a, mac: 0200.0000.0001, vars: {a: 1}}, {node: r2, interface: a, mac: 02-00-00-00-00-02}], mtu: 0}]
";
    let topology = parsed(text).unwrap();
    let notes = [
        "links: vars have no effect: lab has no configuration engine",
        "aliases of a kind, a group or the defaults: has no effect on b1, r1, r2",
        "binds: has no effect on b1",
        "cmd: has no effect on b1",
        "config: has no effect on r1",
        "exec: has no effect on b1",
        "license: has no effect on r1",
        "mgmt-ipv4 of a kind, a group or the defaults: has no effect on b1, r1, r2",
        "stages (exec): has no effect on b1",
        "startup-config: has no effect on r1",
        "sysctls: net.ipv6.conf.all.disable_ipv6: has no effect on r2",
    ];
    assert_eq!(topology.notes, notes);
    let node = |name: &str| &topology.nodes[name];
    assert_eq!(node("r2").sysctls["net.ipv6.conf.all.disable_ipv6"], "0");
    assert_eq!(node("r2").aliases, ["own"]);
    assert_eq!(node("r1").management.unwrap().to_string(), "172.20.20.2");
    let bridge = node("b1");
    assert!(bridge.exec.is_empty() && bridge.program.is_empty() && bridge.binds.is_empty());
    assert!(bridge.stages[&Stage::Configure].on_enter.is_empty());
    let macs = topology.links[0].settings.each_ref().map(|settings| settings.mac.clone().unwrap());
    assert_eq!(macs, ["02:00:00:00:00:01", "02:00:00:00:00:02"]);
    assert_eq!(topology.links[0].mtu, crate::model::LINK_MTU);
}

#[test]
fn magic_variables_are_replaced_in_sources_of_binds_and_commands_only() {
    let topology = node(
        "binds: ['__clabNodeName__:/__clabNodeName__']\n      exec: [ls __clabNodeName__]\n      \
         healthcheck: {test: [CMD, ls, __clabNodeName__]}",
    );
    let topology = topology.unwrap();
    let r1 = &topology.nodes["r1"];
    let bind = &r1.binds[0];
    assert_eq!((&*bind.source, &*bind.target), ("/labs/r1".as_ref(), "/__clabNodeName__".as_ref()));
    assert_eq!(r1.exec, [["ls", "r1"]]);
    assert_eq!(r1.healthcheck.as_ref().unwrap().test, ["ls", "__clabNodeName__"]);
}
