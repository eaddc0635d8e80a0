//! Faults of `lab wan`: sockets that fail, and interfaces that go while they are opened.

use std::time::{Duration, Instant};

use fabric::netns::{self, Namespace, veth};
use root_test::root_test;
use wan::{Impairment, Settings, Wan};

/// Runs `f` with a circuit whose interfaces both connect to the same host.
fn with_a_circuit(story: &str, f: impl FnOnce(&mut Wan, &Namespace) + Send) {
    let name = |end: &str| format!("lab-wan-{}-{story}-{end}", std::process::id());
    let [host, between] = ["h", "w"].map(|end| Namespace::create(name(end)).unwrap());
    for end in [&host, &between] {
        end.run(&["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"]).unwrap();
    }
    veth((&host, "eth1"), (&between, "a1"), 1500).unwrap();
    veth((&host, "eth2"), (&between, "b1"), 1500).unwrap();
    let impairment = Impairment {
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        loss: 0.0,
        rate: None,
        queue: 0,
        ecn: None,
    };
    let circuits = vec!["a1:b1".parse().unwrap()];
    let settings = Settings { circuits, impairment, seed: 1, carrier: false };
    let run = || {
        let mut wan = Wan::new(&settings).unwrap();
        assert!(wan.missing().is_empty());
        assert!(wan.is_bound("a1").unwrap(), "it would be opened again each time");
        // A failing socket must be detected without a notification of the kernel.
        wan.lose_notifications();
        f(&mut wan, &host);
    };
    between.enter(run).unwrap();
}

fn turn_until_whole(wan: &mut Wan) {
    let start = Instant::now();
    while !wan.missing().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", wan.missing());
        wan.poll().unwrap();
    }
}

#[root_test]
fn a_read_error_costs_no_circuit() {
    with_a_circuit("read", |wan, _| {
        for _ in 0..3 {
            // `/dev/null` is not a socket, so every socket call on it fails.
            let wrong = std::fs::File::open("/dev/null").unwrap();
            wan.replace_socket("a1", wrong.into());
            wan.poll().unwrap();
            assert!(wan.missing()[0].starts_with("a1 (cannot receive: "), "{:?}", wan.missing());
            turn_until_whole(wan);
        }
    });
}

#[root_test]
fn an_interface_that_goes_while_it_is_opened_ends_nothing() {
    with_a_circuit("goes", |wan, host| {
        wan.find_ports_late(|| drop(host.run(&["ip", "link", "del", "eth2"]).unwrap())).unwrap();
        assert!(
            wan.missing()[0].starts_with("b1 (cannot open a packet socket: "),
            "{:?}",
            wan.missing()
        );
        let add = format!("ip link add b1 type veth peer eth2 netns {}", host.name());
        netns::run(&add.split(' ').collect::<Vec<_>>()).unwrap();
        turn_until_whole(wan);
    });
}
