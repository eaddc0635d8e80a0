//! What a file may not say, although each of its values is valid.

use std::collections::BTreeSet;
use std::fmt::Display;

use super::{Dataplane, Experiment, FileError, KERNEL, Source};
use crate::job;
use crate::plan::fabric_name;
use crate::units::Name;

/// The policy that has a number of ports.
const BINS_POLICY: &str = "qp-bins";
/// The policy that has a scheme.
const SCHEME_POLICY: &str = "spray";

/// Names the first value that contradicts another one.
pub(super) fn check(experiment: &Experiment, source: Source<'_>) -> Result<(), FileError> {
    dataplanes(experiment, source)?;
    topologies(experiment, source)?;
    variants(experiment, source)?;
    published(experiment, source)?;
    experiment.sweep.check(experiment, "sweep", source)?;
    if let Some(sweep) = &experiment.quick.sweep {
        sweep.check(experiment, "quick.sweep", source)?;
    }
    if experiment.workload.is_some() && experiment.traffic.sites.iter().flatten().count() < 2 {
        let message = "a workload needs hosts: set sites = [[\"host1\"], [\"host2\"]] in [traffic]";
        return Err(source.error_at("workload", message));
    }
    sites("traffic.sites", &experiment.traffic.sites, source)?;
    for (at, variant) in experiment.variants.iter().enumerate() {
        sites(
            &format!("variant.{at}.sites"),
            variant.sites.as_deref().unwrap_or_default(),
            source,
        )?;
        if experiment.workload.is_none() && !variant.workload.is_empty() {
            let message = "a variant changes keys of [workload], which is missing";
            return Err(source.error_at(&format!("variant.{at}.workload"), message));
        }
        if variant.sites.as_ref().is_some_and(|sites| sites.iter().flatten().count() < 2) {
            let message = "sites have two hosts or more, such as [[\"host1\"], [\"host2\"]]";
            return Err(source.error_at(&format!("variant.{at}.sites"), message));
        }
    }
    for (at, job) in experiment.jobs.iter().enumerate() {
        sites(&format!("job.{at}.sites"), &job.get_ref().sites, source)?;
    }
    if experiment.workload.is_none() && !experiment.quick.workload.is_empty() {
        let message = "the short form changes keys of [workload], which is missing";
        return Err(source.error_at("quick.workload", message));
    }
    for (place, of) in [
        ("repetitions", Some(&experiment.repetitions)),
        ("quick.repetitions", experiment.quick.repetitions.as_ref()),
    ] {
        let has_min = source.has(&format!("{place}.min"));
        if has_min && of.is_some_and(|repetitions| repetitions.min > repetitions.max) {
            let message = "'min' is larger than 'max', which is 100 by default";
            return Err(source.error_at(&format!("{place}.min"), message));
        }
    }
    let of_variants = experiment.variants.iter().flat_map(|variant| &variant.failures);
    for failure in experiment.failures.iter().chain(of_variants.flatten()) {
        let wrong = |message| source.error(Some(failure.span().start), message);
        failure.get_ref().check().map_err(wrong)?;
    }
    let can_run = experiment.workload.is_some() && !experiment.has_failures();
    let names: Vec<&Name> = experiment.variants.iter().map(|variant| &variant.name).collect();
    job::check(&experiment.jobs, can_run, &names)
        .map_err(|(offset, message)| source.error(Some(offset), message))
}

fn dataplanes(experiment: &Experiment, source: Source<'_>) -> Result<(), FileError> {
    let labels: Vec<String> = experiment.dataplanes.iter().map(Dataplane::label).collect();
    if let Some(baseline) = &experiment.baseline
        && !labels.contains(&baseline.get_ref().to_string())
    {
        let expected = labels.join(", ");
        let name = baseline.get_ref();
        let message = format!("baseline '{name}' is no dataplane: expected {expected}");
        return Err(source.error(Some(baseline.span().start), message));
    }
    if let Some((at, label)) = twice(&labels) {
        let message = format!("two dataplanes are called '{label}': give one a name");
        return Err(source.error_at(&format!("dataplane.{at}"), message));
    }
    for (at, dataplane) in experiment.dataplanes.iter().enumerate() {
        let policy = dataplane.policy.as_str();
        if dataplane.bins.is_some() && policy != BINS_POLICY {
            let message = format!("'bins' is for the policy {BINS_POLICY}, not {policy}");
            return Err(source.error_at(&format!("dataplane.{at}.bins"), message));
        }
        if dataplane.scheme.is_some() && policy != SCHEME_POLICY {
            let message = format!("'scheme' is for the policy {SCHEME_POLICY}, not {policy}");
            return Err(source.error_at(&format!("dataplane.{at}.scheme"), message));
        }
        if dataplane.datapath.is_some() && policy == KERNEL {
            let message = "'datapath' is vtepd's, and the policy kernel runs without vtepd";
            return Err(source.error_at(&format!("dataplane.{at}.datapath"), message));
        }
    }
    Ok(())
}

/// A host is at one site, once.
fn sites(place: &str, sites: &[Vec<Name>], source: Source<'_>) -> Result<(), FileError> {
    let hosts: Vec<&Name> = sites.iter().flatten().collect();
    match twice(&hosts) {
        Some((_, host)) => Err(source.error_at(place, format!("the host '{host}' is there twice"))),
        None => Ok(()),
    }
}

/// Results name a fabric by its file.
fn topologies(experiment: &Experiment, source: Source<'_>) -> Result<(), FileError> {
    let quick = experiment.quick.topologies.iter();
    let all = [("topologies", &experiment.topologies)].into_iter();
    for (place, files) in all.chain(quick.map(|files| ("quick.topologies", files))) {
        let names: Vec<String> = files.iter().map(|file| fabric_name(file)).collect();
        for (at, name) in names.iter().enumerate() {
            let message = |error| format!("{error}: rename the file");
            let name = name.parse::<Name>().map(drop);
            name.map_err(|error| source.error_at(&format!("{place}.{at}"), message(error)))?;
        }
        if let Some((at, name)) = twice(&names) {
            let message = format!("two topologies are called '{name}': rename one of the files");
            return Err(source.error_at(&format!("{place}.{at}"), message));
        }
    }
    Ok(())
}

fn variants(experiment: &Experiment, source: Source<'_>) -> Result<(), FileError> {
    let names: Vec<&Name> = experiment.variants.iter().map(|variant| &variant.name).collect();
    if let Some((at, name)) = twice(&names) {
        let message = format!("two variants are called '{name}': give one another name");
        return Err(source.error_at(&format!("variant.{at}.name"), message));
    }
    if experiment.quick.variants.as_ref().is_some_and(Vec::is_empty) {
        let message = "the list is empty: leave it out for all variants";
        return Err(source.error_at("quick.variants", message));
    }
    let wanted = experiment.quick.variants.iter().flatten();
    match wanted.enumerate().find(|(_, name)| !names.contains(name)) {
        Some((at, name)) => {
            let message = unknown(name, "[[variant]]", &names);
            Err(source.error_at(&format!("quick.variants.{at}"), message))
        }
        None => Ok(()),
    }
}

/// Published figures are shown beside those of dataplanes and variants of the file.
fn published(experiment: &Experiment, source: Source<'_>) -> Result<(), FileError> {
    let labels: Vec<String> = experiment.dataplanes.iter().map(Dataplane::label).collect();
    let names: Vec<&Name> = experiment.variants.iter().map(|variant| &variant.name).collect();
    for (at, published) in experiment.published.iter().enumerate() {
        let Some(measured) = &published.measured else { continue };
        let place = |key: &str| format!("published.{at}.measured.{key}");
        if !labels.contains(&measured.dataplane.to_string()) {
            let message = unknown(&measured.dataplane, "[[dataplane]]", &labels);
            return Err(source.error_at(&place("dataplane"), message));
        }
        if let Some(name) = measured.variant.as_ref().filter(|name| !names.contains(name)) {
            let message = unknown(name, "[[variant]]", &names);
            return Err(source.error_at(&place("variant"), message));
        }
    }
    Ok(())
}

/// The first value that is there a second time, and its index.
pub(super) fn twice<T: Ord>(values: &[T]) -> Option<(usize, &T)> {
    let mut seen = BTreeSet::new();
    values.iter().enumerate().find(|(_, value)| !seen.insert(*value))
}

fn unknown(name: &Name, what: &str, expected: &[impl Display]) -> String {
    let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
    format!("'{name}' is no {what} of the file: expected {}", expected.join(", "))
}
