//! `lab path`: the path of a flow, router by router.

use std::process::ExitCode;

use lab::hops::{Flow, follow, partner};

use super::open::open;
use crate::arguments::Output;
use crate::fabric_arguments::Path;
use crate::output::{Outcome, print, print_json};

pub(super) fn run(arguments: &Path, output: Output) -> Outcome {
    let fabric = open(arguments.which.name.as_ref())?;
    let flow = Flow {
        from: arguments.from.clone(),
        to: arguments.to.clone(),
        queue_pair: arguments.qp,
        source_port: arguments.inner_port,
        outer_port: arguments.outer_port,
    };
    let deployed = fabric.deployed();
    let mut hops = follow(&deployed, &flow)?;
    if let Some(named) = arguments.reverse {
        let queue_pair = named.map_or_else(|| partner(&deployed, &flow), Ok)?;
        let Flow { from, to, .. } = flow.clone();
        let back = Flow { from: to, to: from, queue_pair: Some(queue_pair), ..flow };
        hops.reverse = Some(Box::new(follow(&deployed, &back)?));
    }
    if output == Output::Json {
        return print_json(&hops);
    }
    print(hops.to_string().trim_end())?;
    Ok(ExitCode::SUCCESS)
}
