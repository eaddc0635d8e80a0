//! Files of `lab`: topologies, experiments, simulations and plans.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::{LazyLock, Mutex};

use fabric::Topology;
use nix::sys::memfd::{MFdFlags, memfd_create};
use planner::Evaluator;
use sim::matrix::Matrix;
use study::plan::PlanFile;

/// The experiment file, in memory.
static FILE: LazyLock<Mutex<File>> = LazyLock::new(|| {
    Mutex::new(memfd_create("experiment.toml", MFdFlags::MFD_CLOEXEC).unwrap().into())
});

/// Whether a name is one component of a path, which a terminal shows as it is.
fn is_safe(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.len() < 64 && name != "." && name != ".." && name.chars().all(allowed)
}

/// Names are components of paths, links have ends that exist, and a text is no panic.
pub fn topology(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // Files of this machine would be read.
    if text.contains("env-file") {
        return;
    }
    let lookup = |name: &str| (name.len() < 8).then(|| name.to_lowercase());
    let topology = match Topology::parse(text, Path::new("/nowhere"), lookup) {
        Ok(topology) => topology,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(is_safe(topology.name.as_str()), "{:?}", topology.name);
    assert!(topology.nodes.keys().all(|name| is_safe(name)), "{:?}", topology.nodes.keys());
    for end in topology.links.iter().flat_map(|link| &link.ends) {
        assert!(topology.nodes.contains_key(&end.node), "{end}");
        assert!((1..16).contains(&end.interface.len()), "{end}");
    }
    for shared in topology.nodes.values().filter_map(|node| node.shares.as_ref()) {
        assert!(topology.nodes[shared].shares.is_none());
    }
}

/// Both forms of an accepted experiment have names that are components of paths. Errors name the
/// file.
pub fn experiment(data: &[u8]) {
    let mut file = FILE.lock().unwrap();
    file.set_len(0).unwrap();
    file.rewind().unwrap();
    file.write_all(data).unwrap();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    for quick in [false, true] {
        match study::run::read(Path::new(&path), quick) {
            Ok((experiment, text)) => {
                assert_eq!(text.as_bytes(), data);
                let name = &experiment.name;
                assert!(is_safe(name.as_str()), "{name:?}");
                assert!(!experiment.topologies.is_empty() && !experiment.dataplanes.is_empty());
                let labels = experiment.dataplanes.iter().map(experiment::file::Dataplane::label);
                labels.for_each(|label| assert!(is_safe(&label), "{label:?}"));
            }
            Err(error) => {
                let mut explained = error.to_string();
                let mut source = std::error::Error::source(&error);
                while let Some(cause) = source {
                    explained += &cause.to_string();
                    source = cause.source();
                }
                assert!(explained.contains("/proc/self/fd/"), "the file is named: {explained}");
            }
        }
    }
}

/// The first cases of an accepted simulation are fabrics with flows that fit together, or say what
/// does not. Every file that it names has the text of its comments.
pub fn simulation(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let cases = match sim::file::cases(Path::new("simulation.toml"), text) {
        Ok(cases) => cases,
        Err(error) => return assert!(error.to_string().starts_with("simulation.toml: ")),
    };
    assert!(!cases.is_empty());
    let comments = text.lines().filter_map(|line| line.strip_prefix('#'));
    let comments = comments.collect::<Vec<_>>().join("\n");
    for case in cases.iter().take(2) {
        for variant in case.file.variants.iter().take(2) {
            let scenario = case.file.scenario(variant, 1, &|_| Ok(comments.clone()));
            assert!(scenario.err().is_none_or(|problem| !problem.is_empty()));
        }
    }
}

/// A traffic matrix that is accepted can be written and read again.
pub fn matrix(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Matrix::parse(text) {
        Ok(matrix) => {
            let again = Matrix::parse(&matrix.text()).unwrap();
            assert_eq!((again.nodes, again.flows.len()), (matrix.nodes, matrix.flows.len()));
        }
        Err(error) => assert!(!error.problem.is_empty()),
    }
}

/// The baseline of an accepted job takes a time, or says why it cannot be.
pub fn plan(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match PlanFile::parse(Path::new("job.toml"), text) {
        Ok((file, job)) => {
            let baseline = file.baseline.as_ref().map(|plan| Evaluator::new(&job).evaluate(plan));
            let Some(Ok(iteration)) = baseline else { return };
            assert!(iteration.seconds > 0.0 && iteration.seconds.is_finite(), "{iteration:?}");
        }
        Err(error) => assert!(error.to_string().starts_with("job.toml"), "{error}"),
    }
}
