use super::*;
use fabric::netns::{Namespace, veth};

#[test]
fn a_circuit_is_two_interfaces() {
    assert_eq!("a1:b1".parse::<Circuit>().unwrap(), Circuit(["a1".into(), "b1".into()]));
    for wrong in ["a1", "a1:", ":b1", "a:a", "a:b:c", ""] {
        wrong.parse::<Circuit>().unwrap_err();
    }
}

/// Runs `f` with a circuit whose interfaces both connect to the same host.
fn with_a_circuit(story: &str, f: impl FnOnce(&mut Wan, &Namespace) + Send) {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED {story}: needs root");
        return;
    }
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
        // The socket is not opened again.
        let link = &links::all().unwrap()["a1"];
        assert!(wan.ports[0].socket.as_ref().unwrap().is_on(&link.interface));
        // A failing socket must be detected without a notification of the kernel.
        wan.watch = Watch::without_notifications().unwrap();
        f(&mut wan, &host);
    };
    between.enter(run).unwrap();
}

fn turn_until_whole(wan: &mut Wan) {
    let start = Instant::now();
    while !wan.missing().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", wan.missing());
        wan.poll().unwrap();
    }
}

#[test]
fn a_read_error_costs_no_circuit() {
    with_a_circuit("a_read_error_costs_no_circuit", |wan, _| {
        for _ in 0..3 {
            // `/dev/null` is not a socket, so every socket call on it fails.
            let wrong = std::fs::File::open("/dev/null").unwrap();
            wan.ports[0].socket.as_mut().unwrap().replace(wrong.into());
            wan.poll().unwrap();
            assert!(wan.missing()[0].starts_with("a1 (cannot receive: "), "{:?}", wan.missing());
            turn_until_whole(wan);
        }
    });
}

#[test]
fn an_interface_that_goes_while_it_is_opened_ends_nothing() {
    with_a_circuit("an_interface_that_goes_while_it_is_opened_ends_nothing", |wan, host| {
        let listed = links::all().unwrap();
        host.run(&["ip", "link", "del", "eth2"]).unwrap();
        wan.ports[1].find(listed.get("b1")).unwrap();
        assert!(
            wan.missing()[0].starts_with("b1 (cannot open a packet socket: "),
            "{:?}",
            wan.missing()
        );
        fabric::netns::run(&[
            "ip",
            "link",
            "add",
            "b1",
            "type",
            "veth",
            "peer",
            "eth2",
            "netns",
            host.name(),
        ])
        .unwrap();
        turn_until_whole(wan);
    });
}
