//! What an experiment file may not say, found before a fabric is started: keys and values of
//! workloads, names of policies and datapaths, and nodes and links that no topology has.

mod topology;

use std::path::Path;

use experiment::file::{Experiment, FileError, KERNEL, Source, plain};
use experiment::units::Name;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::program::{self, Program};
use crate::daemon::{self, DATAPATHS, Policy};
use crate::error::RunError;
use fabric::topology::Topology;
use topology::Fabric;
use traffic::workload::{Host, Job, JobError, Workload};

/// Keys of a workload that the experiment sets, and where.
const OF_RUN: [(&str, &str); 3] = [
    ("queue-pairs", "[sweep] has the numbers of queue pairs"),
    ("source-port", "'inner-port' in [sweep] chooses the source ports"),
    ("seed", "'seed' of the file decides the seed of each run"),
];
/// Keys that a failure makes useless.
const OF_FAILURE: [(&str, &str); 2] = [
    ("iterations", "with a [[failure]], the workload runs again and again"),
    ("warm-up", "with a [[failure]], all iterations are looked at"),
];
/// Keys of the workload of a `[[job]]` that are set.
const OF_JOB: [(&str, &str); 4] = [
    ("iterations", "a [[job]] runs again and again"),
    ("warm-up", "all iterations of a [[job]] count"),
    ("source-port", "'inner-port' in [sweep] chooses the source ports"),
    ("seed", "'seed' of the file decides the seed of each run"),
];
/// The keys of the settings that [`roce::SettingError`] names.
const OF_TRANSPORT: [(&str, &str); 9] = [
    ("the path MTU", "mtu"),
    ("the window", "window"),
    ("the number of packets for an acknowledgement", "acknowledge-every"),
    ("the retransmission timer", "timeout"),
    ("the number of outstanding reads", "reads"),
    ("the code of the RNR timer", "rnr-timer"),
    ("the burst", "burst"),
    ("the DSCP", "dscp"),
    ("the rate", "rate"),
];

/// Reads an experiment file in its full or its short form, and checks everything that can be wrong
/// in either of them. Returns the text of the file, too.
///
/// # Errors
/// [`RunError::Experiment`], with line and column, and what is expected.
pub fn read(path: &Path, quick: bool) -> Result<(Experiment, String), RunError> {
    let (experiment, text) = whole(path)?;
    Ok((experiment.form(quick), text))
}

/// Reads an experiment file as [`read`], and finds the programs that it runs.
///
/// # Errors
/// As [`read`], and [`RunError::Program`].
pub fn read_to_run(path: &Path, quick: bool) -> Result<Experiment, RunError> {
    let (experiment, _) = read(path, quick)?;
    program::find(&experiment, path)?;
    Ok(experiment)
}

/// As [`read`], with both forms.
pub(super) fn whole(path: &Path) -> Result<(Experiment, String), FileError> {
    let (experiment, text) = Experiment::load(path)?;
    check(&experiment, Source { path, text: &text })?;
    Ok((experiment, text))
}

/// All workloads of a file. The parser names the line of a wrong key or value.
#[derive(Default, Deserialize)]
#[serde(default, bound = "W: Default + DeserializeOwned")]
struct Workloads<W> {
    workload: W,
    variant: Vec<Part<W>>,
    job: Vec<Part<Workload>>,
    quick: Part<W>,
}

/// A table of the file that may have a workload, or a part of one.
#[derive(Default, Deserialize)]
#[serde(default, bound = "W: Default + DeserializeOwned")]
struct Part<W> {
    workload: W,
}

fn check(experiment: &Experiment, source: Source<'_>) -> Result<(), FileError> {
    names(experiment, source)?;
    keys(experiment, source)?;
    let parsed = match experiment.is_program() {
        true => toml::from_str::<Workloads<Program>>(source.text).map(drop),
        false => toml::from_str::<Workloads<Workload>>(source.text).map(drop),
    };
    parsed.map_err(|error| source.parse_error(&error))?;
    for quick in [false, true] {
        let form = experiment.clone().form(quick);
        workloads(experiment, &form, quick, source)?;
        let place = match quick && experiment.quick.topologies.is_some() {
            true => "quick.topologies",
            false => "topologies",
        };
        for (at, file) in form.topologies.iter().enumerate() {
            let topology = Topology::load(file)
                .map_err(|error| source.error_at(&format!("{place}.{at}"), error.to_string()))?;
            Fabric::new(&topology).check(experiment, quick, source)?;
        }
    }
    Ok(())
}

/// Names of policies, datapaths and schemes.
fn names(experiment: &Experiment, source: Source<'_>) -> Result<(), FileError> {
    let policies: Vec<&str> = Policy::ALL.map(Policy::name).into_iter().chain([KERNEL]).collect();
    for (at, dataplane) in experiment.dataplanes.iter().enumerate() {
        let policy = dataplane.policy.as_str();
        if !policies.contains(&policy) {
            let message = format!("'{policy}' is no policy: expected {}", policies.join(", "));
            return Err(source.error_at(&format!("dataplane.{at}.policy"), message));
        }
        let datapath = dataplane.datapath.as_ref().map(Name::as_str);
        if let Some(datapath) = datapath.filter(|name| !DATAPATHS.contains(name)) {
            let expected = DATAPATHS.join(", ");
            let message = format!("'{datapath}' is no datapath: expected {expected}");
            return Err(source.error_at(&format!("dataplane.{at}.datapath"), message));
        }
        if let Some(name) = &dataplane.scheme {
            daemon::scheme(name.as_str())
                .map_err(|error| source.error_at(&format!("dataplane.{at}.scheme"), error))?;
        }
        if policy == Policy::Spray.name() && datapath == Some("kernel") {
            let message = "kernel VXLAN cannot spray: 'spray' is 'qp-pin' in the datapath kernel";
            return Err(source.error_at(&format!("dataplane.{at}.datapath"), message));
        }
    }
    Ok(())
}

/// Keys of a workload that would be without effect.
fn keys(experiment: &Experiment, source: Source<'_>) -> Result<(), FileError> {
    if experiment.is_program() && experiment.has_failures() {
        let message =
            "with a [[failure]], the workload is a collective operation: remove 'command'";
        return Err(source.error_at("workload.command", message));
    }
    let variants = experiment.variants.len();
    let mut all = (0..variants.max(1)).map(Some);
    let always_fails = all.all(|variant| !experiment.failures(variant).is_empty());
    let variants = (0..variants).map(|at| format!("variant.{at}.workload"));
    let tables: Vec<String> =
        variants.chain(["workload".to_owned(), "quick.workload".to_owned()]).collect();
    let failure = if always_fails { OF_FAILURE.as_slice() } else { &[] };
    let of_workload = tables.iter().map(|table| (table.clone(), [&OF_RUN, failure].concat()));
    let jobs = (0..experiment.jobs.len()).map(|at| (format!("job.{at}.workload"), OF_JOB.to_vec()));
    for (table, keys) in of_workload.chain(jobs) {
        for (key, why) in keys {
            let place = format!("{table}.{key}");
            if source.has(&place) {
                let message = format!("'{key}' would be without effect: {why}");
                return Err(source.error_at(&place, message));
            }
        }
    }
    Ok(())
}

/// The values of all workloads of a form, with the hosts that they run on.
fn workloads(
    experiment: &Experiment,
    form: &Experiment,
    quick: bool,
    source: Source<'_>,
) -> Result<(), FileError> {
    let variants = (0..form.variants.len()).map(Some);
    let variants = variants.chain(form.variants.is_empty().then_some(None));
    for variant in variants.filter(|_| form.workload.is_some()) {
        // The short form has fewer variants. Those of a sweep begin with the name of the file's.
        let name = variant.and_then(|index| form.variants.get(index)).map(|of| of.base());
        let own = experiment.variants.iter().position(|of| name == Some(&of.name));
        let own = own.map(|at| format!("variant.{at}.workload"));
        let quick = quick.then(|| "quick.workload".to_owned());
        let places: Vec<String> =
            own.into_iter().chain(quick).chain(["workload".to_owned()]).collect();
        match experiment.is_program() {
            true => program(form.workload(variant), &places, source)?,
            false => job(form.workload(variant), form.sites(variant), &places, source)?,
        }
    }
    for (at, of) in form.jobs.iter().enumerate() {
        let of = of.get_ref();
        job(of.workload.clone(), &of.sites, &[format!("job.{at}.workload")], source)?;
    }
    Ok(())
}

/// An error at a key of a workload. Its keys are in the tables at `places`; the first that has a key
/// wins.
fn at(places: &[String], source: Source<'_>, key: &str, message: String) -> FileError {
    let mut all = places.iter().map(|place| format!("{place}.{key}"));
    let place = all.clone().find(|place| source.has(place)).or_else(|| all.next_back());
    source.error_at(&place.unwrap_or_default(), message)
}

/// Checks a program of the user.
fn program(table: toml::Table, places: &[String], source: Source<'_>) -> Result<(), FileError> {
    let program = Program::deserialize(table)
        .map_err(|error| at(places, source, "command", plain(error.message(), "")))?;
    program.check().map_err(|(key, message)| at(places, source, key, message))
}

/// Checks a collective operation.
fn job(
    table: toml::Table,
    sites: &[Vec<Name>],
    places: &[String],
    source: Source<'_>,
) -> Result<(), FileError> {
    let at = |key: &str, message: String| at(places, source, key, message);
    let workload = Workload::deserialize(table)
        .map_err(|error| at("collective", plain(error.message(), "")))?;
    let host = |(site, name): (u32, &Name)| Host {
        name: name.to_string(),
        namespace: None,
        interface: String::new(),
        site,
    };
    let sites = (0..).zip(sites);
    let hosts = sites.flat_map(|(site, names)| names.iter().map(move |name| (site, name)));
    let job = Job { name: String::new(), hosts: hosts.map(host).collect(), workload };
    let key = |error: &JobError| match error {
        JobError::Schedule(_) => "collective".to_owned(),
        JobError::Transport(error) => {
            let key = OF_TRANSPORT.iter().find(|(name, _)| *name == error.name);
            format!("transport.{}", key.map_or("", |(_, key)| key))
        }
        JobError::Setting { name, .. } => (*name).to_owned(),
    };
    job.schedule().map(drop).map_err(|error| at(&key(&error), error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/experiments")
    }

    /// The error for a shipped file after a change.
    fn refused(name: &str, from: &str, to: &str) -> String {
        let path = folder().join(name);
        let good = std::fs::read_to_string(&path).unwrap();
        assert!(good.contains(from), "{from}");
        let text = good.replacen(from, to, 1);
        let line = text.find(to).map(|at| text[..at].matches('\n').count()).unwrap();
        let lines = to.matches('\n').count();
        let source = Source { path: &path, text: &text };
        let experiment = match Experiment::parse(&path, &text) {
            Ok(experiment) => experiment,
            Err(error) => return error.to_string(),
        };
        let error = check(&experiment, source).expect_err(to).to_string();
        let near = (line..=line + lines).any(|at| error.contains(&format!(", line {}, ", at + 1)));
        assert!(near, "line {}: {error}", line + 1);
        error
    }

    #[test]
    fn what_is_shipped_is_accepted() {
        for entry in std::fs::read_dir(folder()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|end| end == "toml") {
                read(&path, false).unwrap_or_else(|error| panic!("{error}"));
                read(&path, true).unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }

    #[test]
    fn workloads_are_checked_with_their_lines() {
        for (file, from, to, message) in [
            ("wan.toml", "bytes = 4000000", "byte = 4000000", "unknown field `byte`, expected one"),
            ("wan.toml", "\"permutation\"", "\"permutate\"", "unknown variant `permutate`"),
            ("wan.toml", "bytes = 4000000", "bytes = \"4Mbit\"", "with B, kB, MB"),
            ("wan.toml", "bytes = 4000000", "bytes = 0", "use 1 byte to 1 TiB"),
            ("wan.toml", "retries = 1000", "retry = 1000", "unknown field `retry`"),
            ("wan.toml", "retries = 1000", "mtu = 1500", "256, 512, 1024"),
            ("wan.toml", "warm-up = 0", "seed = 1", "'seed' of the file"),
            ("wan.toml", "warm-up = 0", "queue-pairs = 4", "[sweep] has the numbers"),
            ("wan.toml", "warm-up = 0", "source-port = \"per-queue-pair\"", "'inner-port'"),
            (
                "neighbours.toml",
                "[job.workload]\n",
                "[job.workload]\nwarm-up = 1\n",
                "all iterations",
            ),
            ("collectives.toml", "roofline = 75000000", "rooflin = 75000000", "`rooflin`"),
            ("collectives.toml", "roofline = 75000000", "skew = 11", "use 0 to 10"),
            ("scaleacross-training.toml", "iterations = 2 }", "iteration = 2 }", "`iteration`"),
            ("scaleacross-training.toml", "iterations = 2 }", "iterations = 0 }", "at least 1"),
            ("scaleacross-failover.toml", "message = 4096", "iterations = 3", "again and again"),
        ] {
            let error = refused(file, from, to);
            assert!(error.contains(message), "{message}: {error}");
        }
    }

    #[test]
    fn names_are_checked_with_their_lines() {
        for (file, from, to, message) in [
            (
                "wan.toml",
                "policy = \"qp-hash\"",
                "policy = \"qp-hsh\"\nname = \"qp-hash\"",
                "no policy: expected five-tuple, qp-hash, qp-bins, qp-pin, spray, kernel",
            ),
            (
                "wan.toml",
                "policy = \"qp-hash\"",
                "policy = \"qp-hash\"\nname = \"qp-hash\"\ndatapath = \"user\"",
                "expected auto, kernel, offload, userspace",
            ),
            (
                "wan.toml",
                "policy = \"qp-hash\"",
                "policy = \"spray\"\nname = \"qp-hash\"\nscheme = \"ecmp\"",
                "'ecmp' is no scheme: expected oblivious, reps, bitmap, mixed, prime-like",
            ),
            (
                "wan.toml",
                "policy = \"qp-hash\"",
                "policy = \"spray\"\nname = \"qp-hash\"\ndatapath = \"kernel\"",
                "kernel VXLAN cannot spray",
            ),
            (
                "wan.toml",
                "policy = \"qp-hash\"",
                "policy = \"qp-hash\"\nname = \"qp-hash\"\nscheme = \"bitmap\"",
                "'scheme' is for the policy spray, not qp-hash",
            ),
            (
                "wan.toml",
                "[\"host4\"]",
                "[\"host9\"]",
                "no host of scaleacross: expected host1, host2",
            ),
            ("wan.toml", "[\"host4\"]", "[\"spine1\"]", "no host of"),
            ("neighbours.toml", "[\"host5\"]", "[\"hots5\"]", "no host of"),
            (
                "scaleacross-failover.toml",
                "routers = [\"spine1\"",
                "routers = [\"spin1\"",
                "no router of scaleacross: expected leaf1",
            ),
            (
                "scaleacross-failover.toml",
                "kind = \"silent\"",
                "kind = \"silent\"\nlink = \"spine1:dci9\"",
                "expected spine1:dci1",
            ),
            (
                "scaleacross-failover.toml",
                "kind = \"silent\"",
                "kind = \"router\"\nnode = \"spine9\"",
                "no node of",
            ),
            (
                "wan.toml",
                "[traffic]\n",
                "[[circuit]]\nlink = \"spine1:eth9\"\ncircuits = { loss = 1 }\n\n[traffic]\n",
                "expected spine1:dci1",
            ),
            ("wan.toml", "scaleacross.clab.yml", "scalecross.clab.yml", "scalecross.clab.yml"),
            ("entropy.toml", "[sweep]", "[sweep]\nloss = [0, 1]", "no circuits of lab wan"),
            ("entropy.toml", "[sweep]", "[circuits]\nrate = 9\n[sweep]", "no circuits of lab wan"),
            (
                "entropy.toml",
                "[sweep]",
                "[[failure]]\nkind = \"silent\"\n[sweep]",
                "no circuits of",
            ),
        ] {
            let error = refused(file, from, to);
            assert!(error.contains(message), "{message}: {error}");
        }
    }
}
