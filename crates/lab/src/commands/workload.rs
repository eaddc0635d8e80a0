//! `lab workload`: collective operations between hosts.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use clap::ValueEnum as _;
use fabric::Fabric;
use traffic::completions::{Kind, Teller};
use traffic::workload::{Host, Iteration, Job, Pipeline, Workload, run as run_jobs};

use super::open::open;
use crate::arguments::Output;
use crate::output::{Outcome, interrupt, print};
use crate::workload_arguments::Workload as Arguments;

/// The name of a job without a file.
const UNNAMED: &str = "job";

pub(super) fn run(arguments: &Arguments, output: Output) -> Outcome {
    let (jobs, fabric) = jobs(arguments)?;
    let teller = fabric.map(|fabric| Teller::of(fabric.name()));
    let failed = Mutex::new(None::<io::Error>);
    let bandwidths = Mutex::new(BTreeMap::<String, Vec<f64>>::new());
    let show = |iteration: &Iteration| {
        if let Some(teller) = &teller {
            let took = Duration::from_nanos(iteration.nanoseconds);
            teller.tell(Kind::Iteration, &series(&jobs, &iteration.job), took);
        }
        if let Ok(mut all) = bandwidths.lock()
            && !iteration.warm_up
        {
            all.entry(iteration.job.clone()).or_default().push(iteration.bus_bandwidth);
        }
        if let Err(error) = row(iteration, output)
            && let Ok(mut failed) = failed.lock()
        {
            failed.get_or_insert(error);
        }
    };
    if output == Output::Table {
        print(format_args!(
            "{:<10} {:>5} {:>12} {:>12} {:>12} {:>11} {:>14} {:>11} {:>11} {:>8} {:>5} {:>5}",
            "job",
            "iter",
            "time [ms]",
            "alg [Mb/s]",
            "bus [Mb/s]",
            "of roofline",
            "straggler [ms]",
            "p50 [ms]",
            "p99.9 [ms]",
            "resent",
            "wrong",
            "busy"
        ))?;
    }
    run_jobs(&jobs, interrupt(), &show)?;
    if let Some(error) = failed.into_inner().ok().flatten() {
        return Err(error.into());
    }
    if output == Output::Table {
        for (job, all) in bandwidths.into_inner().unwrap_or_default() {
            let mean = all.iter().sum::<f64>() / all.len().max(1) as f64 / 1e6;
            let number = all.len();
            print(format_args!("{job}: mean bus bandwidth of {number} iterations {mean:.1} Mb/s"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What a live page calls the iterations of a job.
fn series(jobs: &[Job], name: &str) -> String {
    let job = jobs.iter().find(|job| job.name == name);
    let collective = job.and_then(|job| job.workload.collective.to_possible_value());
    let collective = collective.map(|value| value.get_name().to_owned()).unwrap_or_default();
    let hosts: Vec<&str> =
        job.map_or(&[][..], |job| &job.hosts).iter().map(|host| &*host.name).collect();
    let hosts = match &hosts[..] {
        [first, _, .., last] => format!("{first} … {last}"),
        few => few.join(", "),
    };
    let name = if name == UNNAMED { String::new() } else { format!("{name}: ") };
    format!("{name}{collective}, {hosts}")
}

/// Prints a result: a line of JSON, or a row.
fn row(result: &Iteration, output: Output) -> io::Result<()> {
    if output == Output::Json {
        return print(serde_json::to_string(result)?);
    }
    let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    let ratio = result.roofline_ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}"));
    let warm_up = if result.warm_up { "w" } else { "" };
    print(format_args!(
        "{:<10} {:>5} {:>12.3} {:>12.1} {:>12.1} {:>11} {:>14} {:>11.3} {:>11.3} {:>8} {:>5} {:>5.2}",
        result.job,
        format!("{}{warm_up}", result.iteration),
        ms(result.nanoseconds),
        result.algorithm_bandwidth / 1e6,
        result.bus_bandwidth / 1e6,
        ratio,
        format!("{} {:.3}", result.straggler, ms(result.straggler_behind)),
        ms(result.messages.p50),
        ms(result.messages.p999),
        result.counters.retransmitted_packets,
        result.mismatches,
        result.busy
    ))
}

/// The jobs, and the fabric that has their hosts.
fn jobs(arguments: &Arguments) -> Result<(Vec<Job>, Option<Fabric>), Box<dyn Error>> {
    if let Some(path) = &arguments.file {
        let text = experiment::input::read_text(path)
            .map_err(|error| format!("cannot read '{}': {error}", path.display()))?;
        let mut jobs: Vec<Job> = serde_json::from_str(&text)
            .map_err(|error| format!("'{}' is not a list of jobs: {error}", path.display()))?;
        let hosts = jobs.iter_mut().flat_map(|job| &mut job.hosts);
        let hosts = hosts.filter(|host| host.namespace.is_none());
        let fabric = name_namespaces(arguments, hosts)?;
        return Ok((jobs, fabric));
    }
    if !arguments.sites.is_empty() && arguments.sites.len() != arguments.hosts.len() {
        return Err("--sites needs a site for each host, such as 0,0,1,1".into());
    }
    let host = |(at, name): (usize, &String)| Host {
        name: name.clone(),
        namespace: None,
        interface: arguments.interface.clone(),
        site: arguments.sites.get(at).copied().unwrap_or_default(),
    };
    let mut hosts: Vec<Host> = arguments.hosts.iter().enumerate().map(host).collect();
    let fabric = name_namespaces(arguments, hosts.iter_mut())?;
    let workload = Workload {
        collective: arguments.collective,
        bytes: arguments.bytes,
        message: u32::try_from(arguments.message)?,
        queue_pairs: arguments.transport.queue_pairs,
        dealing: arguments.dealing,
        source_port: arguments.transport.source_port(),
        iterations: arguments.iterations,
        warm_up: arguments.warm_up,
        compute: arguments.compute,
        pipeline: Pipeline {
            micro_batches: arguments.micro_batches,
            forward: arguments.forward,
            backward: arguments.backward,
        },
        skew: arguments.skew,
        seed: arguments.transport.seed,
        limit: arguments.limit,
        roofline: arguments.roofline,
        transport: arguments.transport.settings(),
    };
    Ok((vec![Job { name: UNNAMED.to_owned(), hosts, workload }], fabric))
}

/// Fills in the namespaces of hosts: each has the name of a node of the fabric, or with
/// `--namespaces` that of its namespace. Returns the fabric.
fn name_namespaces<'a>(
    arguments: &Arguments,
    hosts: impl Iterator<Item = &'a mut Host>,
) -> Result<Option<Fabric>, Box<dyn Error>> {
    let mut hosts = hosts.peekable();
    if hosts.peek().is_none() {
        return Ok(None);
    }
    let fabric = match arguments.namespaces {
        true => None,
        false => Some(open(arguments.name.as_ref())?),
    };
    for host in hosts {
        let namespace = match &fabric {
            Some(fabric) => fabric.node(&host.name)?.namespace()?.name().to_owned(),
            None => host.name.clone(),
        };
        host.namespace = Some(namespace);
    }
    Ok(fabric)
}
