//! A run of a workload of distributed training.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use experiment::plan::Key;
use experiment::record::Completion;
use experiment::units::InnerPort;
use experiment::{Experiment, Run};
use serde::Deserialize;

use super::{Bench, RunError};
use crate::stream::INNER_PORT;
use crate::workload::{Host, Iteration, Job, Workload, run};

/// Runs the iterations of a workload, and reads the load of each link.
pub(super) fn measure(
    bench: &Bench<'_>,
    key: &Key,
    attempts: u32,
    interrupted: &AtomicBool,
) -> Result<Run, RunError> {
    let job = job(bench, key)?;
    bench.observe(key, attempts, |record| {
        let iterations = Mutex::new(Vec::new());
        let keep = |iteration: &Iteration| {
            let mut all = iterations.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(iteration.clone());
        };
        run(&[job], interrupted, &keep)?;
        let all = iterations.into_inner().unwrap_or_else(PoisonError::into_inner);
        let counted: Vec<&Iteration> = all.iter().filter(|iteration| !iteration.warm_up).collect();
        let counted = &counted;
        let nanoseconds =
            |of: fn(&Iteration) -> u64| counted.iter().map(move |iteration| of(iteration) as f64);
        let mean = |values: &mut dyn Iterator<Item = f64>| {
            values.sum::<f64>() / counted.len().max(1) as f64
        };
        record.seconds = nanoseconds(|iteration| iteration.nanoseconds).sum::<f64>() / 1e9;
        record.sent = all.iter().map(|iteration| iteration.counters.tx_packets).sum();
        record.workload = Some(Completion {
            iterations: u32::try_from(counted.len()).unwrap_or(u32::MAX),
            milliseconds: mean(&mut nanoseconds(|iteration| iteration.communication)) / 1e6,
            worst: nanoseconds(|iteration| iteration.communication).fold(0.0, f64::max) / 1e6,
            bus_bandwidth: mean(&mut counted.iter().map(|i| i.bus_bandwidth)) / 1e6,
            message_p99: nanoseconds(|i| i.messages.p99).fold(0.0, f64::max) / 1e6,
            retransmitted: counted.iter().map(|i| i.counters.retransmitted_packets).sum(),
            busy: counted.iter().map(|i| i.busy).fold(0.0, f64::max),
            roofline_ratio: counted
                .iter()
                .map(|i| i.roofline_ratio)
                .sum::<Option<f64>>()
                .map(|sum| sum / counted.len().max(1) as f64),
            straggler: mean(&mut nanoseconds(|i| i.straggler_behind)) / 1e6,
        });
        Ok(())
    })
}

/// The settings of a run's workload: the keys of the file, and those of the variant.
fn settings(experiment: &Experiment, file: &Path, key: &Key) -> Result<Workload, RunError> {
    let mut table = match &experiment.workload {
        Some(table) => table.get_ref().clone(),
        None => toml::Table::new(),
    };
    let index = key.point.variant.as_ref().map(|(index, _)| *index);
    let variant = index.and_then(|index| experiment.variants.get(index));
    table.extend(variant.map(|variant| variant.workload.clone()).unwrap_or_default());
    let mut workload = Workload::deserialize(table).map_err(|error| RunError::Workload {
        file: file.to_owned(),
        message: error.message().to_owned(),
    })?;
    workload.queue_pairs = u32::try_from(key.point.queue_pairs.get()).unwrap_or(u32::MAX);
    workload.seed = key.seed;
    workload.source_port = match key.point.inner_port {
        InnerPort::Constant => roce::SourcePort::Constant(INNER_PORT),
        InnerPort::PerQueuePair => roce::SourcePort::PerQueuePair,
    };
    Ok(workload)
}

/// The job of a run.
pub(super) fn job(bench: &Bench<'_>, key: &Key) -> Result<Job, RunError> {
    let experiment = bench.experiment;
    let workload = settings(experiment, &bench.settings.file, key)?;
    let mut hosts = Vec::new();
    for (site, names) in (0..).zip(&experiment.traffic.sites) {
        for name in names {
            let namespace = bench.deployed.namespace(name.as_str())?.name().to_owned();
            hosts.push(Host {
                name: name.to_string(),
                namespace: Some(namespace),
                interface: bench.interface(name)?,
                site,
            });
        }
    }
    Ok(Job { name: experiment.name.to_string(), hosts, workload })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;
    use experiment::Plan;

    /// The experiments that are shipped, each in both forms.
    fn shipped() -> Vec<Experiment> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/experiments");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files = files.filter(|path| path.extension().is_some_and(|end| end == "toml"));
        files
            .flat_map(|path| {
                let (full, text) =
                    Experiment::load(&path).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(path.file_stem().unwrap().to_str(), Some(full.name.as_str()));
                let quick = Experiment::parse(&path, &text).unwrap().quick();
                [full, quick]
            })
            .collect()
    }

    #[test]
    fn every_shipped_experiment_can_be_run() {
        let all = shipped();
        assert!(all.len() >= 12, "{}", all.len());
        for experiment in all {
            for file in &experiment.topologies {
                Topology::load(file).unwrap_or_else(|error| panic!("{error}"));
            }
            let plan = Plan::new(&experiment);
            let keys: Vec<&Key> = plan.turns.iter().flat_map(|turn| &turn.runs).collect();
            assert!(!keys.is_empty() && !experiment.limits.is_empty(), "{}", experiment.name);
            for key in keys.iter().filter(|_| experiment.workload.is_some()) {
                let workload = settings(&experiment, Path::new("x.toml"), key)
                    .unwrap_or_else(|error| panic!("{}: {error}", experiment.name));
                let hosts = experiment.traffic.sites.iter().zip(0..).flat_map(|(names, site)| {
                    names.iter().map(move |name| Host {
                        name: name.to_string(),
                        namespace: None,
                        interface: "eth1".into(),
                        site,
                    })
                });
                let job = Job { name: "x".into(), hosts: hosts.collect(), workload };
                let schedule = job.schedule();
                let schedule =
                    schedule.unwrap_or_else(|error| panic!("{}: {error}", experiment.name));
                // The report compares with a roofline where circuits have a rate.
                let has_rate = experiment.circuits.rate.is_some();
                let fails = experiment.has_failures();
                assert_eq!(job.ideal(&schedule).is_some(), has_rate || fails, "{}", job.name);
            }
        }
    }

    #[test]
    fn a_bad_key_of_a_workload_is_named() {
        let mut experiment =
            shipped().into_iter().find(|experiment| experiment.name.as_str() == "wan").unwrap();
        let key = Plan::new(&experiment).turns[0].runs[0].clone();
        let workload = settings(&experiment, Path::new("x.toml"), &key).unwrap();
        assert_eq!(
            (workload.seed, workload.queue_pairs as usize),
            (key.seed, key.point.queue_pairs.get())
        );
        experiment.workload.as_mut().unwrap().get_mut().insert("byte".into(), 1.into());
        let error = settings(&experiment, Path::new("x.toml"), &key).unwrap_err().to_string();
        assert!(error.starts_with("x.toml, [workload]") && error.contains("`byte`"), "{error}");
    }
}
