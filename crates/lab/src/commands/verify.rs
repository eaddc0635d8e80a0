//! `lab verify`: checks a running fabric.

use std::time::Duration;

use fabric::deployed::Deployed;
use fabric::topology::Topology;
use lab::{demo, verify};

use crate::arguments::{Output, Verify};
use crate::output::{Outcome, Progress, interrupt, show, status, write};

pub(super) fn run(arguments: &Verify, output: Output) -> Outcome {
    let topology = Topology::load_as(&arguments.file, arguments.name.as_ref())?;
    let deployed = Deployed::find(topology)?;
    let settings = verify::Settings {
        vtepd: !arguments.kernel,
        queue_pairs: arguments.queue_pairs.into(),
        rate: arguments.rate,
        frames: arguments.frames,
        failover: !arguments.no_failover,
        figures: arguments.figures.as_deref().map(demo::Figures::load).transpose()?,
        limit: Duration::from_secs(arguments.timeout),
    };
    let progress = Progress::new();
    let outcome = verify::run(&deployed, &settings, &|text| progress.report(text), interrupt())?;
    drop(progress);
    if let Some(path) = &arguments.json {
        write(path, &serde_json::to_vec_pretty(&outcome)?)?;
    }
    show(&outcome, output)?;
    Ok(status(outcome.faults.is_empty()))
}
