//! `lab new`: writes the files of a fabric.

use std::process::ExitCode;
use std::time::Duration;

use fabric::new::{Plan, Written};

use crate::arguments::Output;
use crate::fabric_arguments::New;
use crate::output::{Outcome, print, print_json, word};

pub(super) fn run(arguments: &New, output: Output) -> Outcome {
    let usual = Plan::usual_bfd(arguments.sites, arguments.leaves, arguments.spines);
    let bfd = (!arguments.no_bfd).then_some(arguments.bfd.unwrap_or(usual));
    let range = Duration::from_millis(10)..=Duration::from_secs(60);
    if bfd.is_some_and(|bfd| !range.contains(&bfd)) {
        return Err("--bfd is 10ms to 60s; --no-bfd leaves BFD out".into());
    }
    let jitter = if arguments.delay.is_zero() { Duration::ZERO } else { arguments.jitter };
    if jitter > arguments.delay {
        return Err(
            "--jitter is larger than --delay: a frame cannot leave before it arrives".into()
        );
    }
    let directory = std::path::absolute(&arguments.directory)?;
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => {
            let own = directory.file_name().unwrap_or_default().to_string_lossy();
            own.parse().map_err(|error| format!("{error}; give the fabric a name with --name"))?
        }
    };
    let plan = Plan {
        name,
        sites: arguments.sites,
        leaves: arguments.leaves,
        spines: arguments.spines,
        hosts: arguments.hosts,
        bfd,
        circuit: (arguments.delay, jitter),
        vtepd: !arguments.no_vtepd,
    };
    let written = plan.write(&arguments.directory)?;
    if output == Output::Json {
        return print_json(&written);
    }
    let Written { topology, leaves, spines, hosts, links, paths, .. } = written;
    let far = paths.get(1).map_or_else(String::new, |far| format!(", {far} between sites"));
    let near = paths.first().copied().unwrap_or_default();
    print(format_args!(
        "{} has {leaves} leaves, {spines} spines, {hosts} hosts, {links} links; {near} paths between \
         leaves of a site{far}\nNext: lab up {}",
        topology.display(),
        word(&topology)
    ))?;
    Ok(ExitCode::SUCCESS)
}
