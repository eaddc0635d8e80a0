//! What a failure does to a fabric, and how it is undone.

use experiment::failure::{Failure, FailureKind};
use nix::sys::signal::Signal;

use super::super::circuits::{apply, changes, end_of, far_end};
use super::super::{Bench, RunError, run_before_others};
use crate::daemon::Daemon;
use fabric::deployed::Deployed;
use fabric::netns::Namespace;
use fabric::node::Node;
use fabric::topology::Endpoint;
use wan::{CUT, Change};

/// What is no longer as it was before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing: a link returned.
    None,
    /// The settings of a variant: a router has read its configuration file.
    Variant,
    /// vtepd on a leaf.
    Dataplane,
}

/// A failure that can begin and end. Dropping it ends it.
pub(super) struct Action {
    what: What,
    begun: bool,
}

enum What {
    /// The interface of a circuit is renamed, so that `lab wan` does not find it.
    Silent { namespace: Namespace, interface: String },
    /// Interfaces are set down.
    Links(Vec<(Namespace, String)>),
    /// FRR is killed, and the router's interfaces are set down.
    Router { node: Node, links: Vec<(Namespace, String)> },
    /// FRR is ended.
    Frr(Node),
    /// vtepd is killed.
    Vtepd(Node),
    /// Circuits change: for each namespace the changes, and once they were made what undoes them.
    Circuits(Vec<(Namespace, Vec<Change>)>),
}

impl Action {
    /// The failure, if the link with the highest load begins at `fullest`.
    pub(super) fn new(
        bench: &Bench<'_>,
        failure: &Failure,
        fullest: &Endpoint,
    ) -> Result<Self, RunError> {
        let deployed = &bench.deployed;
        let near = match &failure.link {
            Some(link) => end_of(deployed, &link.to_string())?,
            None => fullest.clone(),
        };
        let node = |default: &str| {
            bench.fabric.node(failure.node.as_ref().map_or(default, |name| name.as_str()))
        };
        let own = |name| match bench.fabric.has_containers() {
            true => Err(RunError::NeedsLab(name)),
            false => Ok(()),
        };
        let what = match failure.kind {
            FailureKind::Silent => {
                let port = far_end(deployed, &near);
                if !deployed.topology().circuits().flatten().any(|end| end == port) {
                    return Err(RunError::NoCircuit);
                }
                let namespace = deployed.namespace(&port.node)?;
                What::Silent { namespace, interface: port.interface }
            }
            FailureKind::Carrier => What::Links(wire_of(deployed, &near)?),
            FailureKind::Router => {
                own("router")?;
                let node = node(&near.node)?;
                let ends = deployed.topology().links.iter().flat_map(|link| &link.ends);
                let own = ends.filter(|end| end.node == node.name());
                let links = own.map(|end| interface(deployed, end)).collect::<Result<_, _>>()?;
                What::Router { node, links }
            }
            FailureKind::Frr => {
                own("frr")?;
                What::Frr(node(&near.node)?)
            }
            FailureKind::Vtepd => What::Vtepd(node(&bench.from.leaf)?),
            FailureKind::Circuits => {
                let near = failure.link.as_ref().map(|_| &near);
                What::Circuits(changes(deployed, &failure.circuits, near, failure.direction)?)
            }
        };
        Ok(Self { what, begun: false })
    }

    /// What the failure leaves behind when it has ended.
    pub(super) const fn effect(&self) -> Effect {
        match self.what {
            What::Silent { .. } | What::Links(_) | What::Circuits(_) => Effect::None,
            What::Router { .. } | What::Frr(_) => Effect::Variant,
            What::Vtepd(_) => Effect::Dataplane,
        }
    }

    /// Whether it ends and starts a program of a node.
    pub(super) fn restarts(&self, node: &str, program: &str) -> bool {
        match &self.what {
            What::Silent { .. } | What::Links(_) | What::Circuits(_) => false,
            What::Router { node: own, .. } | What::Frr(own) => own.name() == node,
            What::Vtepd(own) => own.name() == node && program == "vtepd",
        }
    }

    pub(super) fn begin(&mut self, bench: &Bench<'_>) -> Result<(), RunError> {
        self.begun = true;
        match &mut self.what {
            What::Silent { namespace, interface } => {
                namespace.rtnl(|rtnl| rtnl.rename(interface, CUT))?;
            }
            What::Circuits(all) => apply(all)?,
            What::Links(links) => set_up(links, false)?,
            What::Router { node, links } => {
                set_up(links, false)?;
                node.end_frr(Signal::SIGKILL)?;
            }
            What::Frr(node) => node.end_frr(Signal::SIGTERM)?,
            What::Vtepd(node) => {
                let records = bench.fabric.processes()?;
                let own = |name: &str| name == node.name();
                for record in records.iter().filter(|r| r.name == "vtepd" && own(&r.node)) {
                    record.identity.signal(Signal::SIGKILL)?;
                }
            }
        }
        Ok(())
    }

    /// Undoes it, if it has begun.
    pub(super) fn end(&mut self, bench: &Bench<'_>) -> Result<(), RunError> {
        if !std::mem::take(&mut self.begun) {
            return Ok(());
        }
        match &mut self.what {
            What::Silent { namespace, interface } => {
                namespace.rtnl(|rtnl| rtnl.rename(CUT, interface))?;
            }
            What::Circuits(all) => apply(all)?,
            What::Links(links) => set_up(links, true)?,
            What::Router { node, links } => {
                set_up(links, true)?;
                node.start_frr()?;
                run_before_others(&bench.fabric)?;
            }
            What::Frr(node) => {
                node.start_frr()?;
                run_before_others(&bench.fabric)?;
            }
            What::Vtepd(node) => {
                if let Some(Some(settings)) = &bench.current {
                    Daemon::start(node, &bench.settings.vtepd, settings.clone(), &[])?;
                }
            }
        }
        Ok(())
    }
}

/// Sets interfaces up or down.
fn set_up(links: &[(Namespace, String)], up: bool) -> Result<(), RunError> {
    for (namespace, interface) in links {
        namespace.rtnl(|rtnl| rtnl.set_up(interface, up))?;
    }
    Ok(())
}

fn interface(deployed: &Deployed, end: &Endpoint) -> Result<(Namespace, String), RunError> {
    Ok((deployed.namespace(&end.node)?, end.interface.clone()))
}

/// What is set down so that both ends of a link lose their carrier: the far end, or both ends of the
/// circuit that it leads into.
fn wire_of(deployed: &Deployed, near: &Endpoint) -> Result<Vec<(Namespace, String)>, RunError> {
    let wire = deployed.topology().wire_at(near);
    let ends = wire.as_ref().map_or_else(|| vec![near], |wire| wire.cut_at(near));
    ends.into_iter().map(|end| interface(deployed, end)).collect()
}
