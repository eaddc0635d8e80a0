//! `lab status` and `lab policy`: vtepd on all leaves.

use std::process::ExitCode;

use lab::{daemon, leaves};

use super::open::open;
use crate::arguments::{Output, Policy, Which};
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
