//! `lab doctor`: what this machine and a fabric can and cannot do for an experiment.

use std::path::Path;

use experiment::units::Name;
use fabric::Fabric;
use fabric::deployed::Deployed;
use fabric::topology::Topology;
use lab::doctor::{self, Finding, State};

use super::open::open;
use crate::arguments::Output;
use crate::fabric_arguments::Doctor;
use crate::output::{Outcome, note, print, print_json, status};

pub(super) fn run(arguments: &Doctor, output: Output) -> Outcome {
    let (own, deployed) = match &arguments.file {
        Some(file) => {
            let topology = Topology::load(file)?;
            (Some(topology.name.clone()), Some(Deployed::find(topology)?))
        }
        None if arguments.name.is_some() || Fabric::list().len() == 1 => {
            let fabric = open(arguments.name.as_ref())?;
            (Some(fabric.name().clone()), Some(fabric.deployed()))
        }
        None => (None, None),
    };
    let mut findings = doctor::conditions(Path::new("."), own.as_ref());
    findings.extend(doctor::abilities());
    if let Some(deployed) = &deployed {
        findings.extend(doctor::fabric(deployed)?);
    }
    let has_fault = findings.iter().any(|finding| finding.state == State::Fault);
    if output == Output::Json {
        print_json(&findings)?;
    } else {
        findings.iter().try_for_each(|finding| print(line(finding)))?;
    }
    Ok(status(!has_fault))
}

/// Says what may disturb an experiment with the fabric `own`, before it starts.
pub(super) fn before(results: &Path, own: Option<&Name>) {
    let findings = doctor::conditions(results, own);
    for finding in findings.iter().filter(|finding| finding.state != State::Ok) {
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
