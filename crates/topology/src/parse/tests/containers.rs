//! What nodes get as containers of ContainerLab do.

use super::*;
use crate::model::Stage;

#[test]
fn env_labels_and_sysctls_are_text_as_the_file_has_it() {
    let text = "
name: x
topology:
  defaults: &all {kind: Linux, env: {A: 1.10, B: yes, C: , D: 0x10, E: ~, F: '1'}}
  nodes:
    r1: {labels: {role.of-node/x: 010, 'a b': on}, sysctls: {net.ipv4.ip_forward: 01}}
    r2: {<<: *all, env: {A: 2.20}}
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
}

#[test]
fn the_only_file_of_a_directory_is_taken() {
    let directory = std::env::temp_dir().join(format!("lab-only-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let load = || Topology::load(&directory).map(|topology| topology.name.to_string());
    let error = || load().unwrap_err().to_string();
    assert!(error().ends_with("has 0 files *.clab.yml: name one"), "{}", error());
    let text = "{name: x, topology: {nodes: {r1: {kind: linux}}}}";
    std::fs::write(directory.join("one.clab.yaml"), text).unwrap();
    std::fs::write(directory.join("other.yml"), "").unwrap();
    assert_eq!(load().unwrap(), "x");
    std::fs::write(directory.join("two.clab.yml"), text).unwrap();
    assert!(error().ends_with("has 2 files *.clab.yml: name one"), "{}", error());
    std::fs::remove_dir_all(directory).unwrap();
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
