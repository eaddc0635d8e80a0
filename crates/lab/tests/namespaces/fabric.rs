//! Small fabrics without FRR: everything in the file is created, and everything is removed again.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use experiment::units::Name;
use fabric::netns;
use fabric::progress::Interrupted;
use fabric::state::StateError;
use fabric::topology::Topology;
use fabric::{Fabric, FabricError};
use root_test::root_test;

const FILE: &str = "
name: small
topology:
  defaults: {kind: linux}
  nodes:
    r1:
      sysctls: {net.ipv4.ip_forward: 1, net.ipv4.fib_multipath_hash_seed: 7}
      env: {GREETING: hello there}
      binds: ['greeting:/etc/hostname:ro']
      exec: ['ip addr add 192.0.2.1/24 dev up1', 'sh -c \"ip link set up1 alias \\\"$GREETING\\\"\"']
    h1: {exec: [ip addr add 192.0.2.2/24 dev eth1]}
    side: {network-mode: 'container:r1'}
  links:
    - {endpoints: ['r1:up1', 'h1:eth1'], mtu: 1400}
";

#[root_test]
fn a_fabric_comes_up_as_written_and_leaves_nothing() {
    let name: Name = format!("small{}", std::process::id()).parse().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("greeting"), "bound").unwrap();
    let topology = Topology::parse(FILE, directory, |variable| {
        (variable == "GREETING").then(|| "$GREETING".into())
    });
    let topology = topology.unwrap();
    let report = |_: &str| Ok(());
    let fabric = Fabric::up(topology.clone(), Some(&name), &report).unwrap();

    let r1 = fabric.node("r1").unwrap();
    assert_eq!(r1.run(&["cat", "/proc/sys/net/ipv4/ip_forward"]).unwrap(), "1\n");
    let link = r1.run(&["ip", "link", "show", "up1"]).unwrap();
    assert!(link.contains("mtu 1400") && link.contains("alias hello there"), "{link}");
    assert!(fabric.node("h1").unwrap().run(&["ping", "-c", "1", "-W", "5", "192.0.2.1"]).is_ok());
    let host = fabric.node("h1").unwrap().namespace().unwrap();
    let cut = || ports::ethtool::is_off("eth1", "tx-udp-segmentation").unwrap();
    assert!(host.enter(cut).unwrap(), "frames leave a host one by one");
    assert!(fabric.node("side").unwrap().run(&["ip", "link", "show", "up1"]).is_ok());

    // The bind and `/sys` are visible only in the node.
    assert_eq!(r1.run(&["cat", "/etc/hostname"]).unwrap(), "bound");
    assert_ne!(std::fs::read_to_string("/etc/hostname").unwrap(), "bound");
    assert!(r1.run(&["sh", "-c", "echo changed > /etc/hostname"]).is_err(), "it is read-only");
    assert!(r1.run(&["ls", "/sys/class/net/up1"]).is_ok());
    assert!(!Path::new("/sys/class/net/up1").exists());
    assert!(matches!(fabric.node("r9"), Err(FabricError::NoSuchNode(_))));

    // Another process cannot rebuild the fabric while it is locked.
    let busy = Fabric::up(topology.clone(), Some(&name), &report);
    assert!(matches!(busy, Err(FabricError::State(StateError::Busy(_)))), "{busy:?}");

    // The fabric is to stay after its process.
    let process = r1.spawn("sleep", Command::new("sleep").arg("100")).unwrap();
    assert!(Fabric::list().contains(&name));
    assert!(!Fabric::is_kept(&name));
    drop(fabric.keep().unwrap());
    assert!(process.identity.alive() && Fabric::is_kept(&name));

    // If another process runs in a node, `down` changes nothing.
    let stranger = netns::Namespace::open(format!("lab-{name}-r1")).unwrap();
    let stranger = stranger.spawn(Command::new("sleep").arg("101")).unwrap();
    let error = Fabric::open(&name).unwrap().down().unwrap_err();
    let said = error.to_string();
    assert!(said.contains(&format!("kill {}   # sleep 101, in r1", stranger.pid())), "{said}");
    assert!(matches!(error, FabricError::Occupied { foreign, .. } if foreign.len() == 1), "{said}");
    assert!(process.identity.alive() && Fabric::is_kept(&name));
    drop(stranger);

    // A fabric that is to stay is not overwritten.
    let error = Fabric::up(topology.clone(), Some(&name), &report).unwrap_err();
    assert!(error.to_string().contains(&format!("'lab down {name}'")), "{error}");
    assert!(process.identity.alive() && Fabric::is_kept(&name));
    std::fs::remove_file(Path::new("/run/vtepd-lab").join(&name).join("kept")).unwrap();

    let fabric = Fabric::up(topology, Some(&name), &report).unwrap();
    assert!(!Fabric::is_kept(&name));
    assert!(!process.identity.alive());
    assert_eq!(fabric.processes().unwrap(), []);

    let process =
        fabric.node("h1").unwrap().spawn("sleep", Command::new("sleep").arg("100")).unwrap();
    assert_eq!(Fabric::open(&name).unwrap().processes().unwrap(), std::slice::from_ref(&process));
    fabric.down().unwrap();
    assert!(!process.identity.alive());
    assert_eq!(netns::list(&format!("lab-{name}-")), Vec::<String>::new());
    assert!(matches!(Fabric::open(&name), Err(FabricError::NotUp(_))));
    assert!(!std::path::Path::new("/run/vtepd-lab").join(&name).exists());
}

const STAGED: &str = "
name: staged
topology:
  defaults: {kind: linux, binds: ['DIRECTORY:DIRECTORY']}
  nodes:
    lan: {kind: bridge}
    first:
      exec: ['ip addr add 192.0.2.1/24 dev eth1']
      entrypoint: sh -c
      cmd: '\"sleep 1; touch $READY; sleep 1000\"'
      env: {READY: DIRECTORY/ready}
      healthcheck: {test: [CMD, test, -e, DIRECTORY/ready], interval: 1, retries: 20}
    second:
      exec: ['ip addr add 192.0.2.2/24 dev eth1']
      stages:
        create-links: {wait-for: [{node: first, stage: healthy}]}
        configure: {exec: {on-enter: ['ls DIRECTORY/ready'], on-exit: ['touch DIRECTORY/left']}}
    near: {entrypoint: /usr/bin/lab, cmd: 'wan a1:b1 --delay 5ms'}
  links:
    - endpoints: ['first:eth1', 'lan:p1']
    - endpoints: ['second:eth1', 'near:a1']
    - endpoints: ['near:b1', 'lan:p2']
";

#[root_test]
fn nodes_wait_for_each_other_and_a_circuit_runs_through_one() {
    let name: Name = format!("staged{}", std::process::id()).parse().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let text = STAGED.replace("DIRECTORY", directory.to_str().unwrap());
    let topology =
        Topology::parse(&text, directory, |variable| Some(format!("${variable}"))).unwrap();
    let report = |_: &str| Ok(());
    let fabric = Fabric::up(topology, Some(&name), &report).unwrap();
    assert!(directory.join("left").exists(), "the last stage's commands have run");
    // From one host through the circuit and the bridge to the other, 5 ms in each direction.
    let second = fabric.node("second").unwrap();
    let answered = fabric::process::wait_until(std::time::Duration::from_secs(20), || {
        second.run(&["ping", "-c", "1", "-W", "1", "192.0.2.1"]).is_ok()
    });
    assert!(
        answered,
        "{}",
        std::fs::read_to_string(fabric.node("near").unwrap().log("lab")).unwrap()
    );
    let said = second.run(&["ping", "-c", "1", "-W", "5", "192.0.2.1"]).unwrap();
    let (_, time) = said.split_once("time=").unwrap();
    assert!(time.split_once(' ').unwrap().0.parse::<f64>().unwrap() >= 10.0, "{said}");
    let mut running: Vec<_> =
        fabric.processes().unwrap().into_iter().map(|process| process.name).collect();
    running.sort();
    assert_eq!(running, ["lab", "sh"]);
    fabric.down().unwrap();

    // A program that cannot run ends the whole fabric. A health check that fails is told, and the
    // others wait until somebody interrupts that.
    let told = Mutex::new(String::new());
    let until_sick = |said: &str| {
        *told.lock().unwrap() += said;
        if told.lock().unwrap().contains("is not healthy") { Err(Interrupted) } else { Ok(()) }
    };
    for (old, new, named) in [
        ("--delay 5ms", "--delay five", "near: lab has ended"),
        ("touch $READY;", "", "interrupted"),
    ] {
        let _ = std::fs::remove_file(directory.join("ready"));
        let text = text.replace("retries: 20", "retries: 2");
        let topology =
            Topology::parse(&text.replace(old, new), directory, |name| Some(format!("${name}")));
        let up = Fabric::up(topology.unwrap(), Some(&name), &until_sick);
        let error = up.unwrap_err().to_string();
        assert!(error.starts_with(named), "{error}");
        assert_eq!(netns::list(&format!("lab-{name}-")), Vec::<String>::new());
    }
    assert!(told.into_inner().unwrap().contains("first is not healthy"));
}
