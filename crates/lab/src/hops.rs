//! The path of a flow between two hosts, router by router, from the routers' own answers: vtepd's
//! explanation on the leaf, and `ip route get` in each router's namespace.

mod back;
mod show;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use api::v1;
use fabric::deployed::{Deployed, DeployedError, Host, Overlay};
use fabric::netns::NetnsError;
use fabric::topology::{Endpoint, Topology};
use study::ask::{AskError, ask};

pub use back::partner;

/// UDP in an IP header, the discard port (RFC 863), and payload bytes of a frame that is asked about.
const PROTOCOL_UDP: u32 = 17;
const PORT_DISCARD: u32 = 9;
const PAYLOAD: u32 = 64;
/// The most routers on a path. More means that it goes in a circle.
const MOST_ROUTERS: usize = 32;

/// The path could not be found.
#[derive(Debug, thiserror::Error)]
pub enum HopsError {
    /// The overlay could not be read.
    #[error(transparent)]
    Deployed(#[from] DeployedError),
    /// A router did not answer.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// There is no such host.
    #[error("no host '{name}' with an IPv4 address at a leaf: there are {known}")]
    NoHost {
        /// The name.
        name: String,
        /// The hosts that exist.
        known: String,
    },
    /// The hosts have no VNI in common.
    #[error("{from} and {to} are not in one VNI")]
    Apart {
        /// The sender.
        from: String,
        /// The receiver.
        to: String,
    },
    /// vtepd does not answer on the leaf.
    #[error(
        "{leaf} does not say which outer source port it chooses: start vtepd ('lab policy qp-hash'), or name the port with --outer-port"
    )]
    NoAnswer {
        /// The leaf.
        leaf: String,
        /// Why.
        source: AskError,
    },
    /// The kernel chooses the port.
    #[error(
        "on {leaf} the kernel's own hash chooses the outer source port, which cannot be asked for: name the port with --outer-port"
    )]
    KernelsPort {
        /// The leaf.
        leaf: String,
    },
    /// An answer does not have the expected form.
    #[error("cannot read the answer of '{command}' on {node}: {text}")]
    Answer {
        /// The router.
        node: String,
        /// The command.
        command: String,
        /// The answer.
        text: String,
    },
    /// No leaf knows the other queue pair of the connection.
    #[error(
        "the other queue pair of the connection is not known: qp-pin learns it from traffic in both \
         directions; name it: --reverse NUMBER"
    )]
    NoPartner,
    /// The frame is dropped, or there is no way on.
    #[error("the frame does not get past {node}: {reason}")]
    Ends {
        /// The router.
        node: String,
        /// Why.
        reason: String,
    },
}

/// A flow between two hosts.
#[derive(Debug, Clone)]
pub struct Flow {
    /// The name of the sending host.
    pub from: String,
    /// The name of the receiving host.
    pub to: String,
    /// The destination queue pair; `None` for a UDP flow to the discard port.
    pub queue_pair: Option<u32>,
    /// The inner source port.
    pub source_port: u16,
    /// The outer source port, if vtepd is not asked for it.
    pub outer_port: Option<u16>,
}

/// A router on the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hop {
    /// The router.
    pub node: String,
    /// The interface by which the packet arrives.
    pub arrives: String,
    /// The interface by which it leaves.
    pub leaves: String,
    /// The next hop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// The circuit that follows, as `NODE A:B`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit: Option<String>,
}

/// A path that a queue pair can get, or one over which its packets are sprayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// The outer source port.
    pub outer_port: u32,
    /// The packets that were sprayed over it, of all queue pairs to the VTEP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sprayed: Option<v1::SprayedPath>,
    /// The routers in their order, with both leaves.
    pub hops: Vec<Hop>,
}

/// The path of a flow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hops {
    /// The sending host's interface, and the receiving host's.
    pub from: String,
    /// The receiving host's interface.
    pub to: String,
    /// The VNI.
    pub vni: u32,
    /// The addresses of the two VTEPs.
    pub local: IpAddr,
    /// The receiving leaf's VTEP.
    pub vtep: IpAddr,
    /// The outer UDP destination port, that of the sending leaf's netdev.
    pub udp_port: u16,
    /// Whether the path is decided. `qp-pin` places a queue pair when it sends its first frame.
    pub placed: bool,
    /// Whether the queue pair's sends and writes take all of [`Self::paths`] in turns.
    pub sprayed: bool,
    /// The outer source port; `None` if both hosts are at one leaf, or there is no single path.
    pub outer_port: Option<u32>,
    /// The policy that chose it, and the fields that it looked at.
    pub decision: Option<String>,
    /// The routers in their order, with both leaves; empty if there is no single path.
    pub hops: Vec<Hop>,
    /// The paths that a queue pair can get that is not placed, or over which it is sprayed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<Candidate>,
    /// vtepd's explanation.
    pub explanation: Option<v1::Explanation>,
    /// The way back, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reverse: Option<Box<Hops>>,
}

/// The fields of `ip -j route get` that are used.
#[derive(Deserialize)]
struct Answer {
    #[serde(default, rename = "type")]
    kind: Option<String>,
    gateway: Option<String>,
    via: Option<Via>,
    dev: String,
}

#[derive(Deserialize)]
struct Via {
    host: String,
}

/// Follows a flow through the routers.
///
/// # Errors
/// [`HopsError`].
pub fn follow(deployed: &Deployed, flow: &Flow) -> Result<Hops, HopsError> {
    let overlay = deployed.overlay()?;
    let (from, to) = hosts(&overlay, flow)?;
    let trace = Trace { deployed, flow, from, to };
    let (near, far) = (from.port.clone(), to.port.clone());
    let mut hops = Hops {
        from: from.end.to_string(),
        to: to.end.to_string(),
        vni: from.vni,
        local: from.vtep,
        vtep: to.vtep,
        udp_port: from.udp_port,
        placed: true,
        sprayed: false,
        outer_port: None,
        decision: None,
        hops: Vec::new(),
        paths: Vec::new(),
        explanation: None,
        reverse: None,
    };
    if from.leaf == to.leaf {
        // The leaf's bridge forwards it.
        hops.hops.push(Hop::new(&from.leaf, near, far));
        return Ok(hops);
    }
    let (port, first) = match flow.outer_port {
        Some(port) => (port.into(), None),
        None => match trace.explain(&mut hops)? {
            Chosen::Port(port, route) => (port, route.map(Answer::from)),
            Chosen::OneOf(paths) => {
                hops.placed = false;
                hops.paths = trace.candidates(paths, &near, &far)?;
                return Ok(hops);
            }
            Chosen::All(paths) => {
                hops.sprayed = true;
                hops.paths = trace.candidates(paths, &near, &far)?;
                let counted = trace.sprayed()?;
                for path in &mut hops.paths {
                    let is_own = |of: &&v1::SprayedPath| of.source_port == path.outer_port;
                    path.sprayed = counted.iter().find(is_own).cloned();
                }
                return Ok(hops);
            }
        },
    };
    let first = first.map_or_else(|| trace.ask(&from.leaf, None, port), Ok)?;
    hops.outer_port = Some(port);
    hops.hops = trace.through(port, &near, first, &far)?;
    Ok(hops)
}

/// What the sending leaf's vtepd has chosen for a flow.
enum Chosen {
    /// The outer source port, and the next hop if vtepd chooses that, too.
    Port(u32, Option<v1::CopyRoute>),
    /// Nothing yet. The queue pair gets one of these paths.
    OneOf(Vec<v1::Path>),
    /// These paths in turns for the packets of the queue pair.
    All(Vec<v1::Path>),
}

impl From<v1::CopyRoute> for Answer {
    fn from(v1::CopyRoute { uplink, gateway, .. }: v1::CopyRoute) -> Self {
        Self { kind: None, gateway: Some(gateway), via: None, dev: uplink }
    }
}

impl Hop {
    fn new(node: &str, arrives: String, leaves: String) -> Self {
        Self { node: node.to_owned(), arrives, leaves, gateway: None, circuit: None }
    }
}

/// The two hosts of the flow, in one VNI.
fn hosts<'a>(overlay: &'a Overlay, flow: &Flow) -> Result<(&'a Host, &'a Host), HopsError> {
    let named = |name: &str| {
        let found: Vec<&Host> = overlay.hosts.iter().filter(|host| host.end.node == name).collect();
        if found.is_empty() {
            let known: Vec<&str> =
                overlay.hosts.iter().map(|host| host.end.node.as_str()).collect();
            return Err(HopsError::NoHost { name: name.to_owned(), known: known.join(", ") });
        }
        Ok(found)
    };
    let (from, to) = (named(&flow.from)?, named(&flow.to)?);
    let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to)));
    let mut pairs = pairs.filter(|(from, to)| from.vni == to.vni && from.end != to.end);
    pairs.next().ok_or_else(|| HopsError::Apart { from: flow.from.clone(), to: flow.to.clone() })
}

struct Trace<'a> {
    deployed: &'a Deployed,
    flow: &'a Flow,
    from: &'a Host,
    to: &'a Host,
}

impl Trace<'_> {
    /// A frame of the flow, as vtepd takes it: UDP to the discard port, or a RoCE packet.
    fn flow(&self) -> v1::Flow {
        let Self { flow, from, to, .. } = self;
        v1::Flow {
            destination_mac: Some(to.mac.to_string()),
            source_mac: Some(from.mac.to_string()),
            source: Some(from.address.to_string()),
            destination: Some(to.address.to_string()),
            queue_pair: flow.queue_pair,
            protocol: Some(PROTOCOL_UDP),
            source_port: Some(flow.source_port.into()),
            destination_port: Some(PORT_DISCARD),
            payload: Some(PAYLOAD),
        }
    }

    /// Asks the sending leaf's vtepd what it has chosen.
    fn explain(&self, hops: &mut Hops) -> Result<Chosen, HopsError> {
        let Self { from, to, .. } = self;
        let leaf = || from.leaf.clone();
        let request =
            v1::ExplainRequest { vni: from.vni, frame: Vec::new(), flow: Some(self.flow()) };
        let asked = ask(&self.deployed.namespace(&from.leaf)?, async |mut vtepd| {
            Ok(vtepd.explain(request).await?.into_inner())
        });
        let said = asked.map_err(|source| HopsError::NoAnswer { leaf: leaf(), source })?;
        let ends = |reason: String| HopsError::Ends { node: leaf(), reason };
        let dropped = |drop: &v1::Drop| Err(ends(format!("{}: {}", drop.reason, drop.sentence)));
        hops.explanation = Some(said.clone());
        if let Some(drop) = &said.dropped {
            return dropped(drop);
        }
        let Some(copy) = said.copies.into_iter().next() else {
            return Err(match said.ports.as_slice() {
                [] => HopsError::KernelsPort { leaf: leaf() },
                ports => ends(format!("the bridge has {} at {}", to.mac, ports.join(", "))),
            });
        };
        if let Some(drop) = &copy.dropped {
            return dropped(drop);
        }
        if copy.source_port == 0 {
            return Err(HopsError::KernelsPort { leaf: leaf() });
        }
        let (decision, chosen) = chosen(copy);
        hops.decision = Some(decision);
        Ok(chosen)
    }

    /// Follows each of these paths.
    fn candidates(
        &self,
        paths: Vec<v1::Path>,
        near: &str,
        far: &str,
    ) -> Result<Vec<Candidate>, HopsError> {
        let mut candidates = Vec::new();
        for v1::Path { uplink, source_ports, .. } in paths {
            let Some(outer_port) = source_ports.first().copied() else { continue };
            let first = Answer { kind: None, gateway: None, via: None, dev: uplink };
            let hops = self.through(outer_port, near, first, far)?;
            candidates.push(Candidate { outer_port, sprayed: None, hops });
        }
        Ok(candidates)
    }

    /// Asks the sending leaf's vtepd what became of the packets on each path.
    fn sprayed(&self) -> Result<Vec<v1::SprayedPath>, HopsError> {
        let Self { from, to, .. } = self;
        let request = v1::ListPathsRequest { vtep: Some(to.vtep.to_string()) };
        let local = from.vtep.to_string();
        let asked = ask(&self.deployed.namespace(&from.leaf)?, async |mut vtepd| {
            let mut vteps = vtepd.list_paths(request).await?.into_inner();
            while let Some(of) = vteps.message().await? {
                if of.local == local {
                    return Ok(of.sprayed);
                }
            }
            Ok(Vec::new())
        });
        asked.map_err(|source| HopsError::NoAnswer { leaf: from.leaf.clone(), source })
    }

    /// Asks a router for its next hop. `arrives` is the interface by which the packet arrives;
    /// `None` at the sending leaf.
    fn ask(&self, node: &str, arrives: Option<&str>, port: u32) -> Result<Answer, HopsError> {
        let (vtep, local, udp_port) = (self.to.vtep, self.from.vtep, self.from.udp_port);
        let arrives = arrives.map_or_else(String::new, |name| format!(" iif {name}"));
        let command = format!(
            "ip -j route get {vtep} from {local}{arrives} ipproto udp sport {port} dport {udp_port}"
        );
        let words: Vec<&str> = command.split_ascii_whitespace().collect();
        let output = self.deployed.namespace(node)?.output(&words)?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(HopsError::Ends { node: node.to_owned(), reason });
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let answers: Vec<Answer> = serde_json::from_str(&said).unwrap_or_default();
        answers.into_iter().next().ok_or_else(|| HopsError::Answer {
            node: node.to_owned(),
            command,
            text: said.trim().to_owned(),
        })
    }

    /// Goes from router to router, until one has the VTEP's address. `near` and `far` are the
    /// leaves' ports of the hosts.
    fn through(
        &self,
        port: u32,
        near: &str,
        mut answer: Answer,
        far: &str,
    ) -> Result<Vec<Hop>, HopsError> {
        let mut hops: Vec<Hop> = Vec::new();
        let (mut node, mut arrives) = (self.from.leaf.clone(), near.to_owned());
        while answer.kind.as_deref() != Some("local") {
            let ends = |reason: &str| HopsError::Ends { node: node.clone(), reason: reason.into() };
            if hops.len() >= MOST_ROUTERS {
                return Err(ends("the packet goes in a circle"));
            }
            let end = Endpoint { node: node.clone(), interface: answer.dev.clone() };
            let (far, circuit) = far_end(self.deployed.topology(), &end)
                .ok_or_else(|| ends(&format!("no link of the topology ends at {end}")))?;
            let gateway = answer.gateway.or(answer.via.map(|via| via.host));
            hops.push(Hop { gateway, circuit, ..Hop::new(&node, arrives, answer.dev) });
            (node, arrives) = (far.node, far.interface);
            answer = self.ask(&node, Some(&arrives), port)?;
        }
        let to = self.to;
        if node != to.leaf {
            let reason =
                format!("{} is its own address, but {} is at {}", to.vtep, to.end.node, to.leaf);
            return Err(HopsError::Ends { node, reason });
        }
        hops.push(Hop::new(&node, arrives, far.to_owned()));
        Ok(hops)
    }
}

/// The policy with the fields that it looked at, and what it has chosen.
fn chosen(copy: v1::Copy) -> (String, Chosen) {
    let v1::Copy { policy, key, source_port, route, placement, .. } = copy;
    let decision = format!("{policy} by {key}");
    match placement {
        Some(v1::Placement { state, paths, .. }) if state == "new" => {
            (decision, Chosen::OneOf(paths))
        }
        Some(v1::Placement { state, paths, .. }) if state == "sprayed" => {
            (decision, Chosen::All(paths))
        }
        Some(v1::Placement { state, reason, .. }) if state == "hashed" => {
            let decision = format!("{decision}, as qp-hash: {reason}");
            (decision, Chosen::Port(source_port, route))
        }
        _ => (decision, Chosen::Port(source_port, route)),
    }
}

/// The other end of a wire, and the circuit in between.
fn far_end(topology: &Topology, end: &Endpoint) -> Option<(Endpoint, Option<String>)> {
    let wire = topology.wire_at(end)?;
    Some((wire.far(end)?.clone(), wire.circuit_name()))
}

#[cfg(test)]
mod tests;
