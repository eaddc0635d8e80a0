//! `lab doctor`: what this machine and a fabric can and cannot do for an experiment.

use std::path::Path;
use std::process::ExitCode;

use fabric::Fabric;
use fabric::deployed::Deployed;
use fabric::topology::Topology;
use lab::doctor::{self, Finding, State};

use super::open::open;
use crate::arguments::Output;
use crate::fabric_arguments::Doctor;
use crate::output::{Outcome, note, print, print_json};

pub(super) fn run(arguments: &Doctor, output: Output) -> Outcome {
    let mut findings = doctor::machine(Path::new("."));
    let deployed = match &arguments.file {
        Some(file) => Some(Deployed::find(Topology::load(file)?)?),
        None if arguments.name.is_some() || Fabric::list().len() == 1 => {
            Some(open(arguments.name.as_ref())?.deployed())
        }
        None => None,
    };
    if let Some(deployed) = &deployed {
        // The fabric that is asked about is no other one.
        findings.retain(|finding| finding.check != "other fabrics" || Fabric::list().len() > 1);
        findings.extend(doctor::fabric(deployed)?);
    }
    let has_fault = findings.iter().any(|finding| finding.state == State::Fault);
    if output == Output::Json {
        print_json(&findings)?;
    } else {
        findings.iter().try_for_each(|finding| print(line(finding)))?;
    }
    Ok(if has_fault { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Says what may disturb an experiment, before it starts.
pub(super) fn before(results: &Path) {
    let findings = doctor::machine(results);
    // Fabrics say themselves what they need of the kernel.
    let matters = ["processors", "load", "memory", "disk", "hash seeds", "other fabrics"];
    let bad = findings.iter().filter(|finding| finding.state != State::Ok);
    for finding in bad.filter(|finding| matters.contains(&finding.check)) {
        note(format_args!("{}: {}", finding.check, finding.text));
    }
}

fn line(finding: &Finding) -> String {
    let sign = match finding.state {
        State::Ok => "✓",
        State::Limit => "○",
        State::Fault => "✗",
    };
    let mut line = format!("{sign} {:<9} {:<14} {}", finding.subject, finding.check, finding.text);
    if !finding.remedy.is_empty() {
        line.push_str(&format!("\n{:<27}→ {}", "", finding.remedy));
    }
    line
}
