//! What a plan sends between sites in an iteration.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::cost;
use crate::job::Job;
use crate::memory::Parameters;
use crate::model::HALF;
use crate::order::Shape;
use crate::placement::{Infeasible, Placement};
use crate::plan::{Boundary, Plan, Sharding};

/// Why bytes are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Outputs of a stage, on their way to the next.
    Activation,
    /// Gradients of a stage's input, on their way back.
    Gradient,
    /// Gradients of parameters, and parameters, between replicas.
    Parameters,
}

/// What a GPU sends to a GPU of another site in an iteration.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Flow {
    /// Why.
    pub purpose: Purpose,
    /// The sender, numbered as Megatron does: tensor parts first, then parts of the sequence,
    /// replicas and stages.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// Bytes of a message.
    pub bytes: u64,
    /// Messages of an iteration.
    pub messages: u32,
}

/// Numbers of the parts of a plan.
struct Ranks<'a> {
    plan: &'a Plan,
}

impl Ranks<'_> {
    /// The GPU of a stage, by its number within the stage.
    fn of(&self, stage: usize, within: u32) -> u32 {
        stage as u32 * self.within() + within
    }

    /// GPUs of a stage.
    fn within(&self) -> u32 {
        self.plan.tensor * self.plan.context * self.plan.data
    }
}

/// The number of a GPU if those of the first site come first. Of replicas at different sites, each
/// stage has some at each site.
fn host(job: &Job, plan: &Plan, rank: u32) -> u32 {
    let sites = (job.sites.gpus.len() as u32).max(1);
    if plan.boundary != Boundary::Data || !plan.data.is_multiple_of(sites) {
        return rank;
    }
    let (each, part) = (plan.data / sites, plan.tensor * plan.context);
    let (stage, replica) = (rank / part / plan.data, rank / part % plan.data);
    let of_site = stage * each + replica % each;
    (replica / each * plan.pipeline * each + of_site) * part + rank % part
}

/// What a plan sends between sites. Exchanges inside layers, whose groups span sites only in plans
/// that are much slower, are left out.
///
/// # Errors
///
/// If the plan cannot be laid out.
pub fn flows(job: &Job, plan: &Plan) -> Result<Vec<Flow>, Infeasible> {
    let placement = Placement::new(job, plan)?;
    Ok(match plan.boundary {
        Boundary::Pipeline => messages(job, plan, &placement),
        Boundary::Data => synchronisation(job, plan, &placement),
        Boundary::Context | Boundary::Expert | Boundary::Tensor => Vec::new(),
    })
}

/// Messages between stages at different sites.
fn messages(job: &Job, plan: &Plan, placement: &Placement) -> Vec<Flow> {
    let shape = Shape::new(plan.schedule, plan.pipeline as usize, 1);
    let stream = cost::tokens(job, plan) * f64::from(job.model.hidden) * HALF;
    let bytes = (stream / f64::from(plan.tensor)).ceil() as u64;
    let site = |stage: usize| placement.stages.get(stage).copied().unwrap_or_default();
    let ranks = Ranks { plan };
    let mut flows = Vec::new();
    for chunk in 1..shape.total() {
        let (from, to) = (shape.stage(chunk - 1), shape.stage(chunk));
        if site(from) == site(to) {
            continue;
        }
        for within in 0..ranks.within() {
            let (from, to) = (ranks.of(from, within), ranks.of(to, within));
            let messages = placement.micro_batches;
            flows.push(Flow { purpose: Purpose::Activation, from, to, bytes, messages });
            let purpose = Purpose::Gradient;
            flows.push(Flow { purpose, from: to, to: from, bytes, messages });
        }
    }
    flows
}

/// Gradients and parameters between replicas at different sites: along rings of the members with
/// the same part, or, with FSDP, along one ring over all.
fn synchronisation(job: &Job, plan: &Plan, placement: &Placement) -> Vec<Flow> {
    let sites = job.sites.gpus.len() as u32;
    if sites < 2 {
        return Vec::new();
    }
    let shape = Shape::new(plan.schedule, plan.pipeline as usize, 1);
    let ranks = Ranks { plan };
    let (each, part) = (plan.data / sites, plan.tensor * plan.context);
    let gradient = f64::from(job.model.gradient_bytes);
    let times = f64::from(if plan.pipeline == 1 { placement.micro_batches } else { 1 });
    let mut flows = Vec::new();
    for stage in 0..shape.stages {
        let layers: u32 = (placement.layers.iter().enumerate())
            .filter(|(chunk, _)| shape.stage(*chunk) == stage)
            .map(|(_, layers)| layers)
            .sum();
        let ends = u32::from(stage == 0) + u32::from(shape.stage(shape.total() - 1) == stage);
        let all = Parameters::new(&job.model, plan, layers, ends).total();
        let replicas = f64::from(plan.data * plan.context);
        let share = f64::from(sites - 1) / f64::from(sites);
        let (members, bytes) = match plan.sharding {
            Sharding::Ddp | Sharding::Hsdp => {
                let part = all * gradient / f64::from(each * plan.context);
                ((0..each).collect::<Vec<_>>(), 2.0 * share * part)
            }
            Sharding::Fsdp => {
                let gathers = if plan.pipeline == 1 { 2.0 } else { 1.0 };
                // Embedding and output stay in half precision.
                let ends = Parameters::new(&job.model, plan, 0, ends).total();
                let gathered = (all - ends) * f64::from(job.model.gather_bytes) + ends * HALF;
                let moved = (gathers * gathered + all * gradient) * times;
                (vec![each - 1], moved * (replicas - 1.0) / replicas / f64::from(plan.context))
            }
        };
        for site in 0..sites {
            for (member, within) in members.iter().flat_map(|m| (0..part).map(move |w| (*m, w))) {
                let next = if plan.sharding == Sharding::Fsdp { 0 } else { member };
                let rank = |site: u32, member: u32| {
                    ranks.of(stage, (site % sites * each + member) * part + within)
                };
                flows.push(Flow {
                    purpose: Purpose::Parameters,
                    from: rank(site, member),
                    to: rank(site + 1, next),
                    bytes: bytes.ceil() as u64,
                    messages: 1,
                });
            }
        }
    }
    flows
}

/// Seconds until the last of some flows ends, if all start at once and nothing is computed: those
/// from a site to another share the link, and a GPU sends at most at its own rate. 0 without flows.
///
/// # Errors
///
/// If the balance of the plan's technology is not known.
pub fn seconds(job: &Job, plan: &Plan, flows: &[Flow]) -> Result<f64, Infeasible> {
    let wire = job.wire(plan).ok_or(Infeasible::Technology(plan.technology))?;
    let site = |rank: u32| {
        let host = host(job, plan, rank);
        let mut ends = job.sites.gpus.iter().scan(0_u32, |end, gpus| {
            *end = end.saturating_add(*gpus);
            Some(*end)
        });
        ends.position(|end| host < end)
    };
    let mut links = BTreeMap::<_, f64>::new();
    let mut senders = BTreeMap::<_, f64>::new();
    for flow in flows {
        let bytes = flow.bytes as f64 * f64::from(flow.messages);
        *links.entry((site(flow.from), site(flow.to))).or_default() += bytes;
        *senders.entry(flow.from).or_default() += bytes;
    }
    let own = senders.into_values().fold(0.0, f64::max) / job.machine.ring_rate(1.0, false);
    let link = links.into_values().fold(0.0, f64::max) / wire.bandwidth;
    Ok(if flows.is_empty() { 0.0 } else { own.max(link) + wire.latency })
}

/// Flows as a connection matrix, the text that packet-level simulators of the htsim family read:
/// one connection for each flow, which starts at once. GPUs of the first site come first.
#[must_use]
pub fn connection_matrix(job: &Job, plan: &Plan, flows: &[Flow]) -> String {
    let mut text = format!("Nodes {}\nConnections {}\n", job.sites.total(), flows.len());
    for (at, flow) in flows.iter().enumerate() {
        let size = flow.bytes * u64::from(flow.messages);
        let [from, to] = [flow.from, flow.to].map(|rank| host(job, plan, rank));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{from}->{to} id {} start 0 size {size}", at + 1);
    }
    text
}
