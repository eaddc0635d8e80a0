//! Workloads between hosts on two switches with a circuit between them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use experiment::random::SEED;
use fabric::netns::{Namespace, veth};
use fabric::topology::Circuit;
use roce::Status;
use root_test::root_test;
use traffic::endpoint::{Kind, Requests, Session, Side, connect, serve};
use traffic::workload::{Collective, Dealing, Host, Iteration, Job, Workload, WorkloadError, run};
use wan::{Impairment, Settings, Wan};

const MTU: u32 = 9000;

/// Four hosts: two on each switch.
pub(crate) struct Sites {
    pub(crate) hosts: Vec<Namespace>,
    switches: Namespace,
}

impl Sites {
    pub(crate) fn new(story: &str) -> Self {
        let name = |end: &str| format!("lab-work-{}-{story}-{end}", std::process::id());
        let switches = Namespace::create(name("s")).unwrap();
        for site in 0..2 {
            let (bridge, port) = (format!("br{site}"), format!("port{site}"));
            switches.rtnl(|rtnl| rtnl.add_bridge(&bridge, false)).unwrap();
            switches.run(&["ip", "link", "set", &bridge, "mtu", "9000", "up"]).unwrap();
            veth((&switches, &format!("wan{site}")), (&switches, &port), MTU).unwrap();
            switches.rtnl(|rtnl| rtnl.set_master(&port, Some(&bridge))).unwrap();
            switches.rtnl(|rtnl| rtnl.set_up(&format!("wan{site}"), true)).unwrap();
        }
        let host = |number: usize| {
            let host = Namespace::create(name(&number.to_string())).unwrap();
            let port = format!("host{number}");
            veth((&host, "eth1"), (&switches, &port), MTU).unwrap();
            let bridge = format!("br{}", number / 2);
            switches.rtnl(|rtnl| rtnl.set_master(&port, Some(&bridge))).unwrap();
            let address = format!("192.0.2.{}/24", number + 1);
            host.run(&["ip", "address", "add", &address, "dev", "eth1"]).unwrap();
            host
        };
        Self { hosts: (0..4).map(host).collect(), switches }
    }

    pub(crate) fn job(&self, workload: Workload) -> Job {
        let host = |(number, namespace): (usize, &Namespace)| Host {
            name: format!("host{number}"),
            namespace: Some(namespace.name().to_owned()),
            interface: "eth1".into(),
            site: number as u32 / 2,
        };
        let hosts = self.hosts.iter().enumerate().map(host).collect();
        Job { name: "job".into(), hosts, workload }
    }

    /// Runs `f` while the circuit has these properties.
    pub(crate) fn with_circuit<T>(&self, impairment: Impairment, f: impl FnOnce() -> T) -> T {
        let settings = Settings {
            circuits: vec!["wan0:wan1".parse::<Circuit>().unwrap()],
            impairment,
            seed: SEED,
            carrier: false,
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let circuit = || {
                    let mut wan = Wan::new(&settings).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        wan.poll().unwrap();
                    }
                };
                self.switches.enter(circuit).unwrap();
            });
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            stop.store(true, Ordering::Relaxed);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

pub(crate) fn impairment(loss: f64) -> Impairment {
    let delay = Duration::from_millis(1);
    Impairment { delay, jitter: Duration::ZERO, loss, rate: None, queue: 1 << 20, ecn: None }
}

pub(crate) fn results(jobs: &[Job]) -> (Vec<Iteration>, Result<(), WorkloadError>) {
    let results = Mutex::new(Vec::new());
    let on_iteration = |result: &Iteration| results.lock().unwrap().push(result.clone());
    let outcome = run(jobs, &AtomicBool::new(false), &on_iteration);
    (results.into_inner().unwrap(), outcome)
}

#[root_test(alone)]
fn every_collective_completes_with_all_its_bytes() {
    let sites = Sites::new("all");
    let all = [
        (Collective::AllReduceRing, Dealing::RoundRobin, 6 << 20),
        (Collective::AllReduceHalvingDoubling, Dealing::Split, 6 << 20),
        (Collective::AllReduceHierarchical, Dealing::RoundRobin, 6 << 20),
        (Collective::ReduceScatter, Dealing::RoundRobin, 3 << 20),
        (Collective::AllGather, Dealing::Split, 3 << 20),
        (Collective::AllToAll, Dealing::RoundRobin, 3 << 20),
        (Collective::ParameterServer, Dealing::RoundRobin, 6 << 20),
        (Collective::Permutation, Dealing::RoundRobin, 4 << 20),
        // Eight micro-batches over three borders between stages, and back.
        (Collective::Pipeline, Dealing::Split, 48 << 20),
    ];
    sites.with_circuit(impairment(0.0), || {
        for (collective, dealing, total) in all {
            let workload = Workload {
                collective,
                dealing,
                bytes: 1 << 20,
                message: 100_000,
                iterations: 2,
                ..Workload::default()
            };
            let (results, outcome) = results(&[sites.job(workload)]);
            outcome.unwrap();
            assert_eq!(results.len(), 3);
            for (result, iteration) in results.iter().zip(0..) {
                assert_eq!((result.iteration, result.warm_up), (iteration, iteration == 0));
                assert_eq!(result.scheduled_bytes, total, "{collective:?}");
                assert_eq!((result.received_bytes, result.mismatches), (total, 0), "{result:?}");
            }
        }
    });
}

#[root_test(alone)]
fn an_all_reduce_survives_loss_intact() {
    let sites = Sites::new("loss");
    // Slow enough that no queue grows: then only the circuit loses frames.
    let transport = roce::Settings {
        timeout: roce::timeout(13),
        retries: 20,
        window: 64 << 10,
        rate: 200_000_000,
        ..roce::Settings::default()
    };
    let workload = Workload { bytes: 2 << 20, iterations: 2, transport, ..Workload::default() };
    // A second job runs at the same time on the same hosts.
    let jobs = [sites.job(workload.clone()), Job { name: "other".into(), ..sites.job(workload) }];
    let (results, outcome) = sites.with_circuit(impairment(0.01), || results(&jobs));
    outcome.unwrap();
    assert_eq!(results.len(), 6);
    for result in &results {
        assert_eq!((result.received_bytes, result.mismatches), (12 << 20, 0), "{result:?}");
    }
    let sum = |of: fn(&Iteration) -> u64| results.iter().map(of).sum::<u64>();
    // The circuit lost about 1 % of 18,000 frames.
    let naks = sum(|result| result.counters.packet_seq_err);
    assert!(naks > 20, "{naks}");
    assert!(sum(|result| result.counters.retransmitted_packets) > naks);
    assert_eq!(sum(|result| result.counters.rx_icrc_errors), 0);
}

#[root_test(alone)]
fn a_connection_that_breaks_is_named() {
    let sites = Sites::new("broken");
    let transport =
        roce::Settings { timeout: roce::timeout(15), retries: 5, ..roce::Settings::default() };
    let workload = Workload { iterations: 1_000_000, transport, ..Workload::default() };
    let job = sites.job(workload);
    let host = &sites.hosts[0];
    let down = Mutex::new(false);
    let outcome = sites.with_circuit(impairment(0.0), || {
        let on_iteration = |_: &Iteration| {
            let mut down = down.lock().unwrap();
            if !std::mem::replace(&mut *down, true) {
                host.run(&["ip", "route", "flush", "table", "main"]).unwrap();
                sites.switches.run(&["ip", "link", "set", "host0", "nomaster"]).unwrap();
            }
        };
        run(std::slice::from_ref(&job), &AtomicBool::new(false), &on_iteration)
    });
    let error = outcome.unwrap_err();
    assert!(
        matches!(&error, WorkloadError::Connection { status: Status::RetryExceeded, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("host0"), "{error}");
}

#[root_test]
fn a_host_that_cannot_be_reached_is_named() {
    let sites = Sites::new("gone");
    let job = sites.job(Workload::default());
    let (_, outcome) = results(&[Job {
        hosts: job
            .hosts
            .iter()
            .take(1)
            .cloned()
            .chain([Host { namespace: Some("no-such-namespace".into()), ..job.hosts[1].clone() }])
            .collect(),
        ..job
    }]);
    assert!(outcome.unwrap_err().to_string().contains("no-such-namespace"));
}

#[root_test(alone)]
fn two_endpoints_on_one_cpu_send_and_receive_without_errors() {
    let settings = roce::Settings::default();
    let time = Duration::from_millis(300);
    // In a thread of its own, because it is pinned to the CPU.
    let result =
        std::thread::spawn(move || traffic::endpoint::bench(&settings, (4, 100_000), 0, time));
    let result = result.join().unwrap().unwrap();
    assert_eq!((result.mismatches, result.requester.rx_icrc_errors), (0, 0));
    assert!(result.responder.rx_packets > 98 && result.goodput > 0.0, "{result:?}");
}

#[root_test(alone)]
fn a_passive_side_serves_every_kind_of_request() {
    let sites = Sites::new("serve");
    let [server, client] = [&sites.hosts[0], &sites.hosts[1]];
    let side = |seed, mtu| Side {
        interface: "eth1".into(),
        settings: roce::Settings { mtu, ..roce::Settings::default() },
        source_port: roce::SourcePort::SoftRoce,
        seed,
    };
    let stop = AtomicBool::new(false);
    for kind in [Kind::Write, Kind::Send, Kind::Read] {
        let bind = || std::net::TcpListener::bind("192.0.2.1:0").unwrap();
        let listener = server.enter(bind).unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Requests { kind, message: 5000, count: 100, depth: 8, queue_pairs: 3 };
        let (served, sent) = std::thread::scope(|scope| {
            let passive = scope.spawn(|| {
                server.enter(|| serve(&listener, &side(1, 4096), &stop).unwrap()).unwrap()
            });
            let to = ("192.0.2.1".parse().unwrap(), port);
            let sent = client.enter(|| connect(to, &side(2, 1024), requests, &stop).unwrap());
            (passive.join().unwrap().unwrap(), sent.unwrap())
        });
        assert_eq!((served.mtu, sent.mtu, served.queue_pairs), (1024, 1024, 3), "{kind:?}");
        assert_eq!((sent.messages, sent.bytes, sent.latencies.count), (300, 1_500_000, 300));
        assert_eq!((served.mismatches, sent.mismatches), (0, 0), "{kind:?}");
        let received = if kind == Kind::Send { (300, 1_500_000) } else { (0, 0) };
        assert_eq!((served.messages, served.bytes), received, "{kind:?}");
        assert!(sent.counters.rx_packets >= 3 && served.counters.rx_packets >= 300);
    }
}

/// Requests from a host on one switch to a host on the other, over the circuit: what both did.
fn over_the_circuit(
    sites: &Sites,
    impairment: Impairment,
    settings: &roce::Settings,
    requests: Requests,
) -> [Session; 2] {
    let [server, client] = [&sites.hosts[0], &sites.hosts[2]];
    let side = |seed| Side {
        interface: "eth1".into(),
        settings: settings.clone(),
        source_port: roce::SourcePort::PerQueuePair,
        seed,
    };
    let stop = AtomicBool::new(false);
    let bind = || std::net::TcpListener::bind("192.0.2.1:0").unwrap();
    let listener = server.enter(bind).unwrap();
    let to = ("192.0.2.1".parse().unwrap(), listener.local_addr().unwrap().port());
    sites.with_circuit(impairment, || {
        std::thread::scope(|scope| {
            let passive =
                scope.spawn(|| server.enter(|| serve(&listener, &side(1), &stop)).unwrap());
            let sent = client.enter(|| connect(to, &side(2), requests, &stop).unwrap()).unwrap();
            [passive.join().unwrap().unwrap().unwrap(), sent]
        })
    })
}

/// Bandwidth and round trips are those of the circuit, within 3 %.
#[root_test(alone)]
fn what_an_endpoint_measures_is_what_the_circuit_was_set_to() {
    let sites = Sites::new("set");
    let delay = Duration::from_millis(20);
    let circuit = Impairment { delay, rate: Some(100_000_000), ..impairment(0.0) };
    // The window is wider than the bandwidth times the round trip, 500 kB, so that a late
    // acknowledgement costs nothing, and fits the circuit's queue.
    let bulk =
        Requests { kind: Kind::Write, message: 1 << 20, count: 12, depth: 4, queue_pairs: 1 };
    let settings = roce::Settings { window: 768 << 10, ..roce::Settings::default() };
    let [_, session] = over_the_circuit(&sites, circuit, &settings, bulk);
    assert_eq!(session.counters.retransmitted_packets, 0);
    // The first and last half of a round trip are not part of the transfer.
    let rate = session.counters.tx_bytes as f64 * 8.0 / (session.seconds - 0.04);
    assert!((0.97e8..1.03e8).contains(&rate), "{rate} bit/s in {} s", session.seconds);

    let circuit = Impairment { delay, ..impairment(0.0) };
    let ping = Requests { kind: Kind::Read, message: 8, count: 30, depth: 1, queue_pairs: 1 };
    // On a busy machine, timers of both ends are late now and then.
    let is_as_set = |_| {
        let [_, session] = over_the_circuit(&sites, circuit, &settings, ping);
        let median = session.latencies.p50 as f64 / 1e6;
        println!("median: {median} ms");
        (40.0..41.2).contains(&median)
    };
    assert!((0..3).any(is_as_set), "in three attempts");
}

/// Both ends of the circuit lose frames. A receiver that keeps what follows a gap gets only the lost
/// packets again.
#[root_test(alone)]
fn a_receiver_that_places_packets_gets_only_lost_ones_again() {
    let sites = Sites::new("place");
    let requests =
        Requests { kind: Kind::Write, message: 256 << 10, count: 20, depth: 4, queue_pairs: 2 };
    let session = |order, reth_in_each| {
        let settings = roce::Settings {
            order,
            reth_in_each,
            rate: 200_000_000,
            window: 128 << 10,
            timeout: roce::timeout(13),
            retries: 20,
            ..roce::Settings::default()
        };
        let [served, sent] = over_the_circuit(&sites, impairment(0.02), &settings, requests);
        assert_eq!((sent.messages, served.mismatches), (40, 0), "{order:?}");
        (served.counters, sent.counters)
    };
    // 10,240 packets, of which about 205 are lost.
    let (_, back) = session(roce::Order::Drop, false);
    assert!(back.packet_seq_err > 50 && back.retransmitted_packets > 1000, "{back:?}");
    for each in [false, true] {
        let (served, sent) = session(roce::Order::Place, each);
        assert!((100..500).contains(&sent.retransmitted_packets), "{sent:?}");
        assert!(sent.selective_acks_received > 50 && sent.packet_seq_err == 0, "{sent:?}");
        assert!(served.kept_out_of_order > 500, "{served:?}");
        assert_eq!(served.kept_out_of_order, served.out_of_sequence, "{served:?}");
    }
}

/// A window of NSCC follows the marks of a circuit: its queue does not overflow again and again.
#[root_test(alone)]
fn nscc_loses_fewer_packets_at_a_slow_circuit() {
    let sites = Sites::new("nscc");
    let circuit = Impairment {
        rate: Some(100_000_000),
        queue: 100 << 10,
        ecn: Some(20 << 10),
        ..impairment(0.0)
    };
    let requests =
        Requests { kind: Kind::Write, message: 256 << 10, count: 32, depth: 4, queue_pairs: 1 };
    let session = |order, nscc| {
        let settings = roce::Settings {
            order,
            nscc,
            acknowledge_marked: true,
            rate: 200_000_000,
            window: 256 << 10,
            timeout: roce::timeout(13),
            retries: 20,
            ..roce::Settings::default()
        };
        let [served, sent] = over_the_circuit(&sites, circuit, &settings, requests);
        assert_eq!((sent.messages, served.mismatches), (32, 0), "{order:?}");
        (served.counters, sent.counters)
    };
    let nscc = Some(roce::nscc::Parameters { round_trip: 2_000_000 });
    for order in [roce::Order::Drop, roce::Order::Place] {
        let (with, without) = (session(order, nscc), session(order, None));
        assert!(with.0.np_ecn_marked_roce_packets > 10 && with.0.np_cnp_sent == 0, "{with:?}");
        let [with, without] = [with, without].map(|(_, sent)| sent.retransmitted_packets);
        assert!(without > 100 && with < without / 4, "{order:?}: {with} {without}");
    }
}

/// Without DCQCN, the queue of a circuit overflows again and again.
#[root_test(alone)]
fn dcqcn_loses_fewer_packets_at_a_slow_circuit() {
    let sites = Sites::new("dcqcn");
    let circuit = Impairment {
        rate: Some(100_000_000),
        queue: 200 << 10,
        ecn: Some(20 << 10),
        ..impairment(0.0)
    };
    // At least one host of each site sends over the circuit, at twice its rate.
    let iteration = |dcqcn| {
        let transport = roce::Settings {
            rate: 200_000_000,
            window: 512 << 10,
            dcqcn,
            ..roce::Settings::default()
        };
        let workload = Workload {
            collective: Collective::Permutation,
            // Long enough for the queue that the first windows fill, or a busy machine, to matter
            // little.
            bytes: 16 << 20,
            message: 64 << 10,
            queue_pairs: 1,
            iterations: 1,
            warm_up: 0,
            transport,
            ..Workload::default()
        };
        let (mut results, outcome) =
            sites.with_circuit(circuit, || results(&[sites.job(workload)]));
        outcome.unwrap();
        results.remove(0)
    };
    // The step of additive increase fits the rate of the circuit.
    let parameters = roce::dcqcn::Parameters {
        additive_increase: 1e6,
        hyper_increase: 10e6,
        ..roce::dcqcn::Parameters::default()
    };
    let (with, without) = (iteration(Some(parameters)), iteration(None));
    let (with, without) = (with.counters, without.counters);
    assert!(with.np_ecn_marked_roce_packets > 10, "{with:?}");
    assert!(with.np_cnp_sent > 0 && with.rp_cnp_handled > 0, "{with:?}");
    assert_eq!((without.np_ecn_marked_roce_packets, without.rp_cnp_handled), (0, 0));
    assert!(without.retransmitted_packets > 100, "{without:?}");
    assert!(with.retransmitted_packets < without.retransmitted_packets / 4, "{with:?} {without:?}");
}
