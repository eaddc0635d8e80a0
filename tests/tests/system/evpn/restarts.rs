//! Everything is restarted in random order. Afterwards vtepd's tables equal the kernel's, entry by
//! entry.
//!
//! The compared normal form is that of `vtepd_tests::canonical`: MAC addresses, flood lists, next
//! hops with their weights, bindings of MAC and IP addresses.

use experiment::random::{Random, SEED};
use fabric::process::wait_until;
use nix::sys::signal::Signal;
use root_test::root_test;

use super::fixture::{LEAVES, ScaleAcross, TIMEOUT, Vtepd, frr};
use super::hosts::host;
use super::stream::Stream;
use super::tables::agree;

/// The leaf on which everything is restarted. It offers FPM.
const LEAF: &str = "leaf1";
const ROUNDS: usize = 20;

#[derive(Debug, Clone, Copy)]
enum Restart {
    Zebra(Signal),
    Bgpd(Signal),
    /// The FPM connection alone.
    Fpm,
    /// vtepd, ended with a signal.
    Vtepd(Signal),
    /// vtepd, with `--replace`.
    Replace,
    /// An uplink goes down and up.
    Uplink(&'static str),
    /// A vxlan netdev goes down and up.
    NetdevDown,
    /// A vxlan netdev is deleted and created again, with another ifindex.
    NetdevNew,
    /// A bridge and its vxlan netdev are deleted and created again.
    BridgeNew,
}

const RESTARTS: [Restart; 12] = [
    Restart::Zebra(Signal::SIGTERM),
    Restart::Zebra(Signal::SIGKILL),
    Restart::Bgpd(Signal::SIGTERM),
    Restart::Bgpd(Signal::SIGKILL),
    Restart::Fpm,
    Restart::Vtepd(Signal::SIGTERM),
    Restart::Vtepd(Signal::SIGKILL),
    Restart::Replace,
    Restart::Uplink("up1"),
    Restart::NetdevDown,
    Restart::NetdevNew,
    Restart::BridgeNew,
];

fn restart(fabric: &ScaleAcross, vtepd: &mut Option<Vtepd>, what: Restart) {
    let zebra = |command: &str| {
        fabric.node(LEAF).run(&["vtysh", "-c", "configure terminal", "-c", command]).unwrap();
    };
    // Repeats the topology's commands for these links.
    let again = |links: &[&str]| {
        let lines = &fabric.fabric.topology().nodes[LEAF].exec;
        for words in
            lines.iter().filter(|words| words.iter().any(|word| links.contains(&word.as_str())))
        {
            fabric.run(LEAF, &words.join(" "));
        }
    };
    match what {
        Restart::Zebra(signal) => {
            // The other daemons restart too, as with watchfrr. Otherwise bgpd 10.3 waits for a bfdd
            // that has lost zebra.
            fabric.node(LEAF).restart_frr("zebra", signal).unwrap();
            for daemon in ["staticd", "bfdd", "bgpd"] {
                fabric.node(LEAF).restart_frr(daemon, Signal::SIGTERM).unwrap();
            }
        }
        Restart::Bgpd(signal) => fabric.node(LEAF).restart_frr("bgpd", signal).unwrap(),
        Restart::Fpm => {
            zebra("no fpm address");
            zebra("fpm address 127.0.0.1");
        }
        Restart::Vtepd(signal) => {
            vtepd.take().expect("vtepd runs").end_by(signal);
            *vtepd = Some(fabric.spawn(LEAF, &[]));
        }
        Restart::Replace => {
            let old = vtepd.take().expect("vtepd runs");
            // A vtepd that has just started does not accept the request yet.
            old.wait_until_ready();
            let new = fabric.spawn(LEAF, &["--replace"]);
            assert!(wait_until(TIMEOUT, || !old.alive()), "{}", new.log());
            *vtepd = Some(new);
        }
        Restart::Uplink(name) => {
            fabric.run(LEAF, &format!("ip link set {name} down"));
            fabric.run(LEAF, &format!("ip link set {name} up"));
        }
        Restart::NetdevDown => {
            fabric.run(LEAF, "ip link set vx10010 down");
            fabric.run(LEAF, "ip link set vx10010 up");
        }
        Restart::NetdevNew => {
            fabric.run(LEAF, "ip link del vx10010");
            again(&["vx10010"]);
        }
        Restart::BridgeNew => {
            fabric.run(LEAF, "ip link del vx10020");
            fabric.run(LEAF, "ip link del br10020");
            again(&["br10020", "vx10020"]);
        }
    }
}

#[root_test(needs = frr)]
#[ignore = "takes over a minute: tests/run --all"]
fn everything_restarts_in_random_order_and_the_tables_are_the_kernels() {
    let fabric = ScaleAcross::up("evpn-restarts");
    // Hosts whose IP addresses are known: one here, in the bridge that is never recreated, and two
    // elsewhere.
    for (leaf, host, netdev) in [
        ("leaf1", "192.168.10.1 lladdr 02:00:00:00:01:01", "br10010"),
        ("leaf4", "192.168.10.4 lladdr 02:00:00:00:04:01", "br10010"),
        ("leaf4", "192.168.20.4 lladdr 02:00:00:00:04:02", "br10020"),
    ] {
        fabric.run(leaf, &format!("ip neigh replace {host} dev {netdev} nud reachable"));
    }
    let others = LEAVES[1..].iter().map(|leaf| (*leaf, fabric.vtepd(leaf))).collect::<Vec<_>>();
    let mut vtepd = Some(fabric.vtepd(LEAF));
    let mut random = Random::new(SEED);
    for round in 0..ROUNDS {
        let what = RESTARTS[usize::try_from(random.below(RESTARTS.len() as u64)).unwrap()];
        println!("everything_restarts: {round}: {what:?}");
        restart(&fabric, &mut vtepd, what);
        // Half of the time the next restart follows immediately.
        if random.below(2) == 0 {
            fabric.converge();
            let vtepd = vtepd.as_ref().unwrap();
            vtepd.wait_until_ready();
            agree(&fabric, LEAF, vtepd);
        }
    }
    fabric.converge();
    let vtepd = vtepd.unwrap();
    vtepd.wait_until_ready();
    for source in ["kernel", "fpm"] {
        vtepd.wait_for("all sources", |metrics| metrics.is_state(source, "live"));
    }
    let lines = agree(&fabric, LEAF, &vtepd);
    for host in ["host br10010 192.168.10.4 ", "host br10020 192.168.20.4 "] {
        assert!(lines.iter().any(|line| line.starts_with(host)), "{host}: {lines:#?}");
    }
    for (leaf, vtepd) in &others {
        agree(&fabric, leaf, vtepd);
    }
    let (near, far) = (host(&fabric, "host1"), host(&fabric, "host4"));
    let stream = Stream::start(&near.namespace, (&far.namespace, far.address), 2000);
    stream.goes_on(2000);
    stream.finish_whole("after all restarts");
    assert_eq!(vtepd.metrics().dropped(), 0, "{}", vtepd.metrics().0);
}
