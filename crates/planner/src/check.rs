//! Whether the numbers of a job make sense.

use crate::Plan;
use crate::job::Job;
use crate::machine::Machine;
use crate::model::{Model, Precision};
use crate::network::Sites;
use crate::search::{self, Space};

/// A number that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: expected {expected}")]
pub struct Invalid {
    /// Its keys in a job file, such as `model.layers`. Numbers are indices of lists.
    pub key: String,
    /// What it can be.
    pub expected: String,
}

impl Invalid {
    /// A number that makes no sense, by its keys.
    #[must_use]
    pub fn new(key: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { key: key.into(), expected: expected.into() }
    }
}

/// The first number of a list that is outside of its range. Not a number is outside of all.
fn first(of: &str, numbers: &[(&str, f64, f64, f64)]) -> Result<(), Invalid> {
    match numbers.iter().find(|(_, value, least, most)| !(least..=most).contains(&value)) {
        Some((key, _, least, most)) => Err(Invalid::new(
            format!("{of}{key}"),
            format!("{} to {}", short(*least), short(*most)),
        )),
        None => Ok(()),
    }
}

fn short(number: f64) -> String {
    if number == 0.0 || (1e-3..1e7).contains(&number) {
        format!("{number}")
    } else {
        format!("{number:e}")
    }
}

/// Most GPUs, layers, sequences and the like. Products of two fit into 64 bits.
const MANY: f64 = 1_048_576.0;
/// Most technologies. Each plan tries all.
const BALANCES: usize = 256;
/// Most sites.
const SITES: usize = 64;

fn model(model: &Model) -> Result<(), Invalid> {
    let number = |number: Option<u32>| number.map_or(1.0, f64::from);
    let heads = f64::from(model.heads);
    first(
        "model.",
        &[
            ("layers", f64::from(model.layers), 1.0, 10_000.0),
            ("hidden", f64::from(model.hidden), 1.0, MANY),
            ("heads", heads, 1.0, f64::from(model.hidden)),
            ("kv-heads", number(model.kv_heads), 1.0, heads),
            ("feed-forward", number(model.feed_forward), 1.0, 16.0 * MANY),
            ("vocabulary", f64::from(model.vocabulary), 1.0, 16.0 * MANY),
            ("sequence", f64::from(model.sequence), 1.0, 16.0 * MANY),
            ("experts.count", number(model.experts.map(|of| of.count)), 1.0, MANY),
        ],
    )?;
    if ![2, 4].contains(&model.gradient_bytes) {
        return Err(Invalid::new("model.gradient-bytes", "2 or 4"));
    }
    let least = if model.precision == Precision::Fp8 { 1 } else { 2 };
    if !(least..=2).contains(&model.gather_bytes) {
        return Err(Invalid::new("model.gather-bytes", "2, or 1 with precision = \"fp8\""));
    }
    match model.experts {
        Some(experts) if experts.active == 0 || experts.active > experts.count => {
            Err(Invalid::new("model.experts.active", "1 to 'count' experts"))
        }
        _ => Ok(()),
    }
}

/// Operations or bytes in a second.
const RATES: (f64, f64) = (1e3, 1e21);

fn machine(machine: &Machine) -> Result<(), Invalid> {
    let of = &machine.efficiency;
    let (slow, fast) = RATES;
    let peak_fp8 = machine.operations_fp8.unwrap_or(machine.operations);
    first(
        "machine.",
        &[
            ("gpus", f64::from(machine.gpus), 1.0, 65_536.0),
            ("operations", machine.operations, slow, fast),
            ("operations-fp8", peak_fp8, slow, fast),
            ("memory", machine.memory, 1e3, 1e18),
            ("reserved", machine.reserved, 0.0, machine.memory),
            ("memory-rate", machine.memory_rate, slow, fast),
            ("node-link", machine.node_link, slow, fast),
            ("network-link", machine.network_link, slow, fast),
            ("efficiency.products", of.products, 1e-6, 1.0),
            ("efficiency.attention", of.attention.unwrap_or(1.0), 1e-6, 1.0),
            ("efficiency.memory", of.memory, 1e-6, 1.0),
            ("efficiency.node-link", of.node_link, 1e-6, 1.0),
            ("efficiency.network-link", of.network_link, 1e-6, 1.0),
            ("efficiency.layer-overhead", of.layer_overhead, 0.0, 1e3),
            ("efficiency.interference", of.interference, 0.0, 1.0),
        ],
    )
}

fn sites(sites: &Sites) -> Result<(), Invalid> {
    let is_wrong = sites.gpus.is_empty() || sites.gpus.contains(&0);
    if is_wrong || f64::from(sites.total()) > MANY || sites.gpus.len() > SITES {
        let expected = "GPUs of each of at most 64 sites, 1048576 in all: [256, 256]";
        return Err(Invalid::new("sites.gpus", expected));
    }
    let link = &sites.link;
    first(
        "sites.",
        &[
            ("bandwidth", link.bandwidth, RATES.0, RATES.1),
            ("oversubscription", link.oversubscription, 1.0, 1e6),
            ("latency", link.latency, 0.0, 3600.0),
            ("paths", f64::from(link.paths), 1.0, 4096.0),
            ("packet", f64::from(link.packet), 64.0, 65_536.0),
            ("headers", f64::from(link.headers), 0.0, 1024.0),
        ],
    )?;
    loss("sites.loss", link.loss)
}

/// Whether packets arrive at all. The share of lost ones is given in percent.
///
/// # Errors
///
/// [`Invalid`] if none does.
pub fn loss(key: impl Into<String>, share: f64) -> Result<(), Invalid> {
    let expected = "0 to 99 percent: nothing is trained over a link that loses all packets";
    if (0.0..=0.99).contains(&share) { Ok(()) } else { Err(Invalid::new(key, expected)) }
}

const QUEUE_PAIRS: (f64, f64) = (1.0, 65_536.0);

/// Whether all numbers of a job are in their ranges.
///
/// # Errors
///
/// [`Invalid`] with the first number that is not.
pub fn job(job: &Job) -> Result<(), Invalid> {
    model(&job.model)?;
    machine(&job.machine)?;
    sites(&job.sites)?;
    if job.balance.len() > BALANCES {
        return Err(Invalid::new("balance", format!("at most {BALANCES} technologies")));
    }
    for (at, balance) in job.balance.iter().enumerate() {
        let queue_pairs = f64::from(balance.technology.queue_pairs);
        let of = [
            ("queue-pairs", queue_pairs, QUEUE_PAIRS.0, QUEUE_PAIRS.1),
            ("imbalance", balance.imbalance.unwrap_or(1.0), 1.0, 4096.0),
        ];
        first(&format!("balance.{at}."), &of)?;
    }
    first("", &[("batch", f64::from(job.batch), 1.0, MANY)])
}

/// Whether all numbers of a space are in their ranges, and not too many for a search.
///
/// # Errors
///
/// [`Invalid`] with the first number that is not.
pub fn space(job: &Job, space: &Space) -> Result<(), Invalid> {
    let lists = [
        ("tensor", &space.tensor),
        ("pipeline", &space.pipeline),
        ("context", &space.context),
        ("expert", &space.expert),
        ("micro-batch", &space.micro_batch),
    ];
    for (key, numbers) in lists {
        for (at, number) in numbers.iter().enumerate() {
            let of = [(format!("{key}.{at}"), f64::from(*number))];
            first("search.", &of.each_ref().map(|(key, value)| (key.as_str(), *value, 1.0, MANY)))?;
        }
    }
    for (at, technology) in space.technology.iter().enumerate() {
        let (least, most) = QUEUE_PAIRS;
        let queue_pairs = f64::from(technology.queue_pairs);
        let of = [("queue-pairs", queue_pairs, least, most)];
        first(&format!("search.technology.{at}."), &of)?;
    }
    match search::combinations(job, space) {
        ..=search::MOST_PLANS => Ok(()),
        plans => {
            let most = search::MOST_PLANS;
            let expected = format!("at most {most} plans, and its lists make {plans}: shorten one");
            Err(Invalid::new("search", expected))
        }
    }
}

/// Whether all numbers of a plan are in their ranges. `key` is that of the plan in the job file.
///
/// # Errors
///
/// [`Invalid`] with the first number that is not.
pub fn plan(key: &str, plan: &Plan) -> Result<(), Invalid> {
    let number = f64::from;
    let queue_pairs = number(plan.technology.queue_pairs);
    first(
        &format!("{key}."),
        &[
            ("tensor", number(plan.tensor), 1.0, MANY),
            ("pipeline", number(plan.pipeline), 1.0, MANY),
            ("data", number(plan.data), 1.0, MANY),
            ("context", number(plan.context), 1.0, MANY),
            ("expert", number(plan.expert), 1.0, MANY),
            ("micro-batch", number(plan.micro_batch), 1.0, MANY),
            ("technology.queue-pairs", queue_pairs, QUEUE_PAIRS.0, QUEUE_PAIRS.1),
        ],
    )
}
