//! The orders of operations among which a plan takes the fastest, kept between evaluations.
//!
//! Orders depend on the schedule, the border between sites and what stages compute, and not on the
//! links between sites. The times of an order only grow with those of its operations and messages. So
//! the fastest of them never gets slower with a better link.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::cost;
use crate::dispatch::{self, Nominal};
use crate::job::Job;
use crate::network::Wire;
use crate::order::{Kind, Operation, Order};
use crate::placement::Placement;
use crate::plan::{Plan, Schedule};
use crate::sequence::Sequence;

/// The sequence of an order, and the most chunks times micro-batches under way on each stage.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub sequence: Sequence,
    pub held: Vec<usize>,
}

impl Prepared {
    /// `None` if the order cannot be run.
    fn new(order: &Order) -> Option<Self> {
        let sequence = Sequence::new(order)?;
        let last = if order.stages.iter().flatten().any(|operation| operation.kind == Kind::Weight)
        {
            Kind::Weight
        } else {
            Kind::Backward
        };
        let held = |operations: &Vec<Operation>| {
            let (mut held, mut most) = (0_usize, 0);
            for operation in operations {
                if operation.kind == Kind::Forward {
                    held += 1;
                    most = most.max(held);
                } else if operation.kind == last {
                    held = held.saturating_sub(1);
                }
            }
            most
        };
        let held = order.stages.iter().map(held).collect();
        Some(Self { sequence, held })
    }
}

/// What orders depend on: schedule, site of each stage, micro-batches, and how long backward passes
/// and gradients of weights take, in quarters of a forward pass.
type Key = (Schedule, Vec<usize>, u32, [u32; 2]);

/// Operations of orders that are kept at most: 8 bytes each.
const KEPT: usize = 2_000_000;

/// Orders that one thread makes, and others wait for.
type Once = Arc<OnceLock<Arc<[Prepared]>>>;

#[derive(Debug, Default)]
struct Kept {
    orders: BTreeMap<Key, Once>,
    /// Operations of all orders.
    operations: usize,
}

/// The orders of schedules. Threads share them.
#[derive(Debug, Default)]
pub(crate) struct Orders(Mutex<Kept>);

/// How long a stage's backward passes and gradients of weights take without other sites, in quarters
/// of a forward pass.
fn quarters(job: &Job, plan: &Plan) -> [u32; 2] {
    let (layer, output) = (cost::layer(job, plan, Wire::IDEAL), cost::output(job, plan));
    let layers = f64::from(job.model.layers);
    let forward = layers * layer.whole_forward() + output.whole_forward();
    let backward = layers * layer.whole_backward() + output.whole_backward();
    let weight = layers * layer.weight + output.weight;
    [backward, weight].map(|time| (4.0 * time / forward).round().clamp(1.0, 64.0) as u32)
}

impl Orders {
    /// The orders of a plan.
    pub(crate) fn of(&self, job: &Job, plan: &Plan, placement: &Placement) -> Arc<[Prepared]> {
        // Orders that a simulation finds depend on where the border is and on how long operations
        // take; the others do not.
        let (sites, ratios) = if plan.schedule.is_dynamic() {
            (placement.stages.clone(), quarters(job, plan))
        } else {
            (vec![0; plan.pipeline as usize], [4, 4])
        };
        let key = (plan.schedule, sites, placement.micro_batches, ratios);
        let once = self.lock().orders.entry(key.clone()).or_default().clone();
        let make = || {
            let nominal: Nominal = [1.0, f64::from(ratios[0]) / 4.0, f64::from(ratios[1]) / 4.0];
            let micro_batches = placement.micro_batches as usize;
            let stages = plan.pipeline as usize;
            let made = dispatch::orders(plan.schedule, stages, micro_batches, &key.1, nominal);
            let prepared: Arc<[Prepared]> = made.iter().filter_map(Prepared::new).collect();
            let count: usize = prepared.iter().map(|one| one.sequence.operations.len()).sum();
            let mut kept = self.lock();
            if kept.operations + count > KEPT {
                *kept = Kept::default();
            }
            kept.operations += count;
            prepared
        };
        Arc::clone(once.get_or_init(make))
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
