//! Faults of `lab wan`: sockets that fail, and interfaces that go while they are opened.

use std::time::{Duration, Instant};

use fabric::netns::{self, Namespace, veth};
use root_test::root_test;
use wan::{Impairment, Settings, Wan};

use crate::namespaces;
use crate::wan::as_nobody;

/// Runs `f` with a circuit whose interfaces both connect to the same host, the namespace of that
/// host and its own.
fn with_a_circuit(story: &str, f: impl FnOnce(&mut Wan, [&Namespace; 2]) + Send) {
    let [host, between] = namespaces(&format!("wan-{story}"), ["h", "w"]);
    for end in [&host, &between] {
        end.run(&["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"]).unwrap();
        end.run(&["sysctl", "-qw", "net.unix.max_dgram_qlen=100"]).unwrap();
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
        f(&mut wan, [&host, &between]);
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
    with_a_circuit("goes", |wan, [host, _]| {
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

#[root_test]
fn a_flood_of_messages_keeps_no_frame_waiting() {
    with_a_circuit("flood", |wan, [host, between]| {
        host.run(&["ip", "addr", "add", "192.0.2.1/24", "dev", "eth1"]).unwrap();
        let (_nobody, said) = as_nobody(
            between,
            r#"socket(S, PF_UNIX, SOCK_DGRAM, 0) or die;
            for (1..40) { send(S, '"counts"', 0, pack("Sa*", 1, "\0lab-wan")) or die }
            print "sent\n"; sleep"#,
        );
        assert_eq!(said, "sent\n");
        // Nobody answers, so it only asks for the address.
        host.output(&["ping", "-c", "1", "-w", "1", "192.0.2.2"]).unwrap();
        for read in [16, 32, 40] {
            wan.poll().unwrap();
            assert_eq!(wan.strangers(), read);
            assert!(wan.report().0[0].counts.sent > 0, "{}", wan.report());
        }
    });
}
