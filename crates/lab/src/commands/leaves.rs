//! `lab status` and `lab policy`: vtepd on all leaves. `lab link`: links of a running fabric.

use std::process::ExitCode;

use lab::topology::Endpoint;
use lab::{daemon, leaves};

use super::open::open;
use crate::arguments::{Link, LinkAction, Output, Policy, Which};
use crate::output::{Outcome, print, print_json};

pub(super) fn status(which: &Which, output: Output) -> Outcome {
    let all = leaves::status(&open(which.name.as_deref())?)?;
    if output == Output::Json {
        return print_json(&all);
    }
    print(format_args!("{:<10} {:>8}  {:<10} policy", "leaf", "VNI", "datapath"))?;
    for leaf in all {
        print(format_args!(
            "{:<10} {:>8}  {:<10} {}",
            leaf.leaf, leaf.vni, leaf.datapath, leaf.policy
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn policy(arguments: &Policy, output: Output) -> Outcome {
    let fabric = open(arguments.which.name.as_deref())?;
    let own = std::env::current_exe()?;
    let vtepd = arguments.vtepd.clone().unwrap_or_else(|| own.with_file_name("vtepd"));
    let settings = (arguments.policy != experiment::file::KERNEL).then(|| daemon::Settings {
        policy: arguments.policy.clone(),
        datapath: arguments.datapath.clone(),
        bins: arguments.bins,
        seed: arguments.seed,
    });
    leaves::set(&fabric, &std::path::absolute(vtepd)?, settings.as_ref())?;
    status(&arguments.which, output)
}

pub(super) fn link(arguments: &Link) -> Outcome {
    let fabric = open(arguments.which.name.as_deref())?;
    let found = fabric.topology().links.iter().find_map(|link| {
        let named = |end: &&Endpoint| end.to_string() == arguments.end;
        link.ends.iter().find(named).cloned()
    });
    let Some(end) = found else {
        return Err(format!(
            "no link ends at '{}': name an end as NODE:INTERFACE, as 'lab counters' lists them",
            arguments.end
        )
        .into());
    };
    let up = arguments.action == LinkAction::Up;
    fabric.node(&end.node)?.namespace()?.rtnl(|rtnl| rtnl.set_up(&end.interface, up))?;
    Ok(ExitCode::SUCCESS)
}
