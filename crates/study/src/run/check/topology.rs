//! What an experiment file says of a fabric, compared with the topology.

use std::collections::BTreeSet;
use std::path::Path;

use experiment::failure::FailureKind;
use experiment::file::{Experiment, FileError, Source};
use experiment::units::Name;
use fabric::topology::{Kind, Node, Topology};

/// The target of the file that makes a node a router.
const DAEMONS: &str = "/etc/frr/daemons";

/// What names of nodes and links in an experiment file may be.
pub(super) struct Fabric<'a> {
    name: &'a str,
    hosts: BTreeSet<&'a str>,
    routers: BTreeSet<&'a str>,
    nodes: BTreeSet<&'a str>,
    ends: BTreeSet<String>,
    has_circuits: bool,
}

impl<'a> Fabric<'a> {
    pub(super) fn new(topology: &'a Topology) -> Self {
        let own = || topology.nodes.iter().filter(|(_, node)| node.shares.is_none());
        let is_router = |node: &Node| {
            node.binds.iter().any(|bind| Path::new(DAEMONS).starts_with(&bind.target))
        };
        let is_host =
            |node: &Node| !is_router(node) && node.program.is_empty() && node.kind == Kind::Linux;
        let names = |is: &dyn Fn(&Node) -> bool| {
            own().filter(|(_, node)| is(node)).map(|(name, _)| name.as_str()).collect()
        };
        let ends = topology.links.iter().flat_map(|link| &link.ends);
        Self {
            name: &topology.name,
            hosts: names(&is_host),
            routers: names(&is_router),
            nodes: names(&|_| true),
            ends: ends.map(ToString::to_string).collect(),
            has_circuits: topology.circuits().next().is_some(),
        }
    }

    /// Names the first node, link or circuit that the fabric does not have. `quick`: the topology is
    /// that of the short form.
    pub(super) fn check(
        &self,
        experiment: &Experiment,
        quick: bool,
        source: Source<'_>,
    ) -> Result<(), FileError> {
        let one = |place: &str, name: &str, what: &str, known: &BTreeSet<&str>| {
            if known.contains(name) {
                return Ok(());
            }
            let expected: Vec<&str> = known.iter().copied().collect();
            let (fabric, expected) = (self.name, expected.join(", "));
            let message = format!("'{name}' is no {what} of {fabric}: expected {expected}");
            Err(source.error_at(place, message))
        };
        let sites = |place: &str, sites: &[Vec<Name>]| {
            for (site, names) in sites.iter().enumerate() {
                for (at, name) in names.iter().enumerate() {
                    let place = format!("{place}.{site}.{at}");
                    one(&place, name.as_str(), "host", &self.hosts)?;
                }
            }
            Ok::<_, FileError>(())
        };
        let traffic = &experiment.traffic;
        for (key, host) in [("from", &traffic.from), ("to", &traffic.to)] {
            if let Some(host) = host {
                one(&format!("traffic.{key}"), host.as_str(), "host", &self.hosts)?;
            }
        }
        sites("traffic.sites", &traffic.sites)?;
        for (at, job) in experiment.jobs.iter().enumerate() {
            sites(&format!("job.{at}.sites"), &job.get_ref().sites)?;
        }
        for (at, variant) in experiment.variants.iter().enumerate() {
            sites(&format!("variant.{at}.sites"), variant.sites.as_deref().unwrap_or_default())?;
            for (index, router) in variant.routers.iter().enumerate() {
                let place = format!("variant.{at}.routers.{index}");
                one(&place, router.as_str(), "router", &self.routers)?;
            }
        }
        let own = experiment.failures.iter().enumerate();
        let own = own.map(|(at, failure)| (format!("failure.{at}"), failure));
        let variants = experiment.variants.iter().enumerate().flat_map(|(variant, of)| {
            let failures = of.failures.iter().flatten().enumerate();
            failures.map(move |(at, failure)| (format!("variant.{variant}.failure.{at}"), failure))
        });
        for (place, failure) in own.chain(variants) {
            let failure = failure.get_ref();
            let of_circuits = [FailureKind::Silent, FailureKind::Circuits].contains(&failure.kind);
            if of_circuits && !self.has_circuits {
                return Err(self.no_circuits(&format!("{place}.kind"), source));
            }
            if let Some(node) = &failure.node {
                one(&format!("{place}.node"), node.as_str(), "node", &self.nodes)?;
            }
            if let Some(link) = &failure.link {
                self.end(&format!("{place}.link"), &link.to_string(), source)?;
            }
        }
        for (at, circuit) in experiment.single_circuits.iter().enumerate() {
            self.end(&format!("circuit.{at}.link"), &circuit.link.to_string(), source)?;
        }
        self.circuits(experiment, quick, source)
    }

    /// Properties of circuits would be without effect where there are none.
    fn circuits(
        &self,
        experiment: &Experiment,
        quick: bool,
        source: Source<'_>,
    ) -> Result<(), FileError> {
        let variants = experiment.variants.iter().enumerate();
        let variants = variants.filter(|(_, variant)| !variant.circuits.is_empty());
        let sweep = if quick && source.has("quick.sweep") { "quick.sweep" } else { "sweep" };
        let swept = ["delay", "jitter", "loss", "rate"].map(|key| format!("{sweep}.{key}"));
        let of_file = (!experiment.circuits.is_empty()).then(|| "circuits".to_owned());
        let variants = variants.map(|(at, _)| format!("variant.{at}.circuits"));
        let mut places = of_file.into_iter().chain(variants).chain(swept);
        match places.find(|place| !self.has_circuits && source.has(place)) {
            Some(place) => Err(self.no_circuits(&place, source)),
            None => Ok(()),
        }
    }

    fn no_circuits(&self, place: &str, source: Source<'_>) -> FileError {
        let message = format!("{} has no circuits of lab wan, which this changes", self.name);
        source.error_at(place, message)
    }

    fn end(&self, place: &str, name: &str, source: Source<'_>) -> Result<(), FileError> {
        if self.ends.contains(name) {
            return Ok(());
        }
        let (node, _) = name.split_once(':').unwrap_or_default();
        let near = self.ends.iter().filter(|end| end.split(':').next() == Some(node));
        let near: Vec<&str> = near.map(String::as_str).collect();
        let expected = match near.as_slice() {
            [] => "the NODE:INTERFACE of a link, as 'lab counters' lists them".to_owned(),
            near => near.join(", "),
        };
        let message = format!("no link of {} ends at '{name}': expected {expected}", self.name);
        Err(source.error_at(place, message))
    }
}
