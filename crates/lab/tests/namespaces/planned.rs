//! A plan that is run over a circuit takes as long as `lab plan` says.

use std::path::Path;
use std::time::Duration;

use root_test::root_test;
use serde::Deserialize;
use study::plan::{PlanFile, Settings, plan, traffic_file};
use traffic::workload::{Job, Workload};
use wan::Impairment;

use super::workload::{Sites, results};

/// A small model on two hosts, whose circuit takes longer than they compute.
const JOB: &str = include_str!("../../../../deploy/plans/emulated.toml");

#[derive(Deserialize)]
struct Emulation {
    workload: Workload,
}

#[root_test(alone)]
fn an_iteration_takes_as_long_as_planned() {
    let sites = Sites::new("plan");
    let circuit = Impairment {
        delay: Duration::from_millis(5),
        jitter: Duration::ZERO,
        loss: 0.0,
        rate: Some(100_000_000),
        queue: 8 << 20,
        ecn: None,
    };
    for (boundary, stages) in [("pipeline", 2), ("data", 1)] {
        let both = "boundary = [\"data\", \"pipeline\"]";
        assert!(JOB.contains(both), "{JOB}");
        let one = format!("boundary = [\"{boundary}\"]\npipeline = [{stages}]");
        // Packets of 4096 bytes, and no VXLAN.
        let packets = "packet = 1024\nheaders = 108";
        assert!(JOB.contains(packets), "{JOB}");
        let text = JOB.replace(both, &one).replace(packets, "packet = 4096\nheaders = 58");
        let (file, job) = PlanFile::parse(Path::new("job.toml"), &text).unwrap();
        let settings =
            Settings { top: 1, threads: 1, explain: false, sweep: false, measured: Vec::new() };
        let best = plan(&file, &job, &settings, &|_| Ok(())).unwrap().found.plans.remove(0);
        let text = traffic_file(Path::new("run.toml"), &job, &best.plan).unwrap();
        let Emulation { workload } = toml::from_str(&text).unwrap();
        let transport = roce::Settings { mtu: 4096, ..workload.transport };
        let queue_pairs = best.plan.technology.queue_pairs;
        let workload = Workload { iterations: 3, queue_pairs, transport, ..workload };
        // A host at each end of the circuit.
        let mut run = sites.job(workload);
        let all = std::mem::take(&mut run.hosts).into_iter();
        let hosts = all.filter(|host| ["host0", "host2"].contains(&&*host.name)).collect();
        let run = Job { hosts, ..run };
        let (results, outcome) = sites.with_circuit(circuit, || results(&[run]));
        outcome.unwrap();
        let mut times: Vec<u64> =
            results.iter().filter(|one| !one.warm_up).map(|one| one.nanoseconds).collect();
        times.sort_unstable();
        let (measured, predicted) = (times[1] as f64 / 1e9, best.iteration.seconds);
        println!("{boundary}-out: predicted {predicted:.3} s, measured {measured:.3} s\n{text}");
        assert!(best.iteration.across > 0.5 * predicted, "the circuit is the limit");
        assert!((measured / predicted - 1.0).abs() < 0.1, "{measured} s, not {predicted} s");
    }
}
