//! Whether a plan can be laid out, and where its parts are.

use crate::job::Job;
use crate::plan::{Boundary, Plan, Schedule};

/// The plan cannot be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Infeasible {
    /// The degrees of parallelism do not match the GPUs.
    #[error("the plan uses {used} GPUs of {there}: change a degree of parallelism")]
    Gpus {
        /// GPUs that the plan uses.
        used: u64,
        /// GPUs of the sites.
        there: u32,
    },
    /// A number cannot be divided into equal parts.
    #[error("{what} {number} cannot be divided by {by}: choose another degree or size")]
    Divide {
        /// What is divided.
        what: &'static str,
        /// Its number.
        number: u32,
        /// The number of parts.
        by: u32,
    },
    /// The schedule needs other numbers.
    #[error("{0}")]
    Schedule(&'static str),
    /// The layers of the chunks are not those of the model.
    #[error(
        "'layers' has {sum} layers in {given} chunks, not {layers} in {chunks}: change it, or leave it out"
    )]
    Layers {
        /// The sum of what is given.
        sum: u64,
        /// Chunks that are given.
        given: usize,
        /// Layers of the model.
        layers: u32,
        /// Chunks of the plan.
        chunks: u64,
    },
    /// An iteration has more operations than can be ordered.
    #[error(
        "an iteration has {0} passes through a chunk, more than 1,000,000: use larger micro-batches \
         or more replicas"
    )]
    Operations(u64),
    /// The border between the sites does not fall between parts of the dimension.
    #[error(
        "{dimension} {degree} cannot be cut at {gpus:?} GPUs: choose another boundary or degree"
    )]
    Boundary {
        /// The dimension.
        dimension: Boundary,
        /// Its degree.
        degree: u32,
        /// GPUs of the sites.
        gpus: Vec<u32>,
    },
    /// The balance of the technology is not known.
    #[error("the balance of {0} is not known: measure it, or name another technology")]
    Technology(crate::network::Technology),
    /// A GPU has not enough memory.
    #[error("{:.1} GB are missing on each GPU: shard or recompute more", missing / 1e9)]
    Memory {
        /// Bytes that are missing.
        missing: f64,
    },
    /// The operations of the schedule wait for each other.
    #[error(
        "the operations of {schedule} wait for each other with {micro_batches} micro-batches: use \
         more of them"
    )]
    Order {
        /// The schedule.
        schedule: Schedule,
        /// Micro-batches of a replica.
        micro_batches: u32,
    },
}

fn divides(what: &'static str, number: u32, by: u32) -> Result<u32, Infeasible> {
    if by > 0 && number >= by && number.is_multiple_of(by) {
        Ok(number / by)
    } else {
        Err(Infeasible::Divide { what, number, by })
    }
}

/// Chunks times micro-batches of an iteration at most. An order of them takes 24 MB.
const OPERATIONS: u64 = 1_000_000;

/// Where the parts of a plan are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Placement {
    /// The site of each stage. All are 0 if the border is not between stages.
    pub stages: Vec<usize>,
    /// Micro-batches of a replica.
    pub micro_batches: u32,
    /// Layers of each chunk.
    pub layers: Vec<u32>,
}

/// The part of a dimension at each site.
fn shares(job: &Job, plan: &Plan, degree: u32) -> Result<Vec<u32>, Infeasible> {
    let (gpus, total) = (&job.sites.gpus, u64::from(job.sites.total()));
    let share = |gpus: &u32| {
        let part = u64::from(degree) * u64::from(*gpus);
        (part > 0 && part.is_multiple_of(total)).then_some((part / total) as u32)
    };
    gpus.iter().map(share).collect::<Option<_>>().ok_or_else(|| Infeasible::Boundary {
        dimension: plan.boundary,
        degree,
        gpus: gpus.clone(),
    })
}

impl Placement {
    /// Checks a plan, and finds where its parts are.
    pub(crate) fn new(job: &Job, plan: &Plan) -> Result<Self, Infeasible> {
        let (used, there) = (plan.gpus(), job.sites.total());
        if used != u64::from(there) {
            return Err(Infeasible::Gpus { used, there });
        }
        let micro_batches = divides("a batch of", job.batch, plan.data)
            .and_then(|batch| divides("a replica's batch of", batch, plan.micro_batch))?;
        divides("the number of heads,", job.model.heads, plan.tensor)?;
        divides("a sequence of", job.model.sequence, plan.context)?;
        divides("the number of replicas,", plan.data, plan.expert)?;
        if plan.expert > 1 {
            let experts = job.model.experts.map_or(0, |experts| experts.count);
            divides("the number of experts,", experts, plan.expert)?;
        }
        let layers = Self::layers(job, plan)?;
        let passes = layers.len() as u64 * u64::from(micro_batches);
        if passes > OPERATIONS {
            return Err(Infeasible::Operations(passes));
        }
        if plan.pipeline == 1 && plan.schedule != Schedule::OneForwardOneBackward {
            return Err(Infeasible::Schedule("without stages there is one schedule: use 1f1b"));
        }
        if let Schedule::Interleaved(_) = plan.schedule {
            divides("the number of micro-batches,", micro_batches, plan.pipeline)?;
        }
        let stages = Self::sites(job, plan)?;
        Ok(Self { stages, micro_batches, layers })
    }

    /// The layers of each chunk.
    fn layers(job: &Job, plan: &Plan) -> Result<Vec<u32>, Infeasible> {
        let number = job.model.layers;
        let chunks = u64::from(plan.pipeline) * u64::from(plan.schedule.chunks());
        let sum = plan.layers.iter().copied().map(u64::from).sum();
        let is_own = !plan.layers.is_empty();
        if is_own && (sum != u64::from(number) || plan.layers.len() as u64 != chunks) {
            return Err(Infeasible::Layers {
                sum,
                given: plan.layers.len(),
                layers: number,
                chunks,
            });
        }
        let few = Infeasible::Divide { what: "layers,", number, by: chunks as u32 };
        if chunks > u64::from(number) + 2 {
            return Err(few);
        }
        let layers = plan.chunk_layers(number);
        // Only the first and the last chunk have something else to compute.
        let inner = layers.get(1..layers.len().saturating_sub(1)).unwrap_or_default();
        let is_empty = inner.contains(&0) || chunks <= 2 && layers.contains(&0);
        if is_empty { Err(few) } else { Ok(layers) }
    }

    fn sites(job: &Job, plan: &Plan) -> Result<Vec<usize>, Infeasible> {
        let degree = match plan.boundary {
            Boundary::Data => plan.data,
            Boundary::Pipeline => plan.pipeline,
            Boundary::Context => plan.context,
            Boundary::Expert => plan.expert,
            Boundary::Tensor => plan.tensor,
        };
        if job.sites.gpus.len() < 2 {
            return Ok(vec![0; plan.pipeline as usize]);
        }
        let shares = shares(job, plan, degree)?;
        if plan.boundary == Boundary::Pipeline {
            let sites = shares.iter().enumerate();
            return Ok(sites
                .flat_map(|(site, part)| std::iter::repeat_n(site, *part as usize))
                .collect());
        }
        // The groups of the other dimensions have as many members at each site.
        if shares.windows(2).any(|two| two.first() != two.last()) {
            let gpus = job.sites.gpus.clone();
            return Err(Infeasible::Boundary { dimension: plan.boundary, degree, gpus });
        }
        if plan.boundary == Boundary::Data {
            for share in shares {
                divides("the replicas of a site,", share, plan.expert)?;
            }
        }
        Ok(vec![0; plan.pipeline as usize])
    }
}
