//! The orders of operations among which a plan takes the fastest, kept between evaluations.
//!
//! Orders depend on the schedule, the border between sites and what stages compute, and not on the
//! links between sites. The times of an order only grow with those of its operations and messages. So
//! the fastest of them never gets slower with a better link.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cost;
use crate::dispatch::{self, Nominal};
use crate::job::Job;
use crate::network::Wire;
use crate::order::{Kind, Operation, Order};
use crate::placement::Placement;
use crate::plan::{Plan, Schedule};

/// An order, and the most chunks times micro-batches under way on each stage.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub order: Order,
    pub held: Vec<usize>,
}

impl Prepared {
    fn new(order: Order) -> Self {
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
        Self { order, held }
    }
}

/// What orders depend on: schedule, site of each stage, micro-batches, and how long backward passes
/// and gradients of weights take, in quarters of a forward pass.
type Key = (Schedule, Vec<usize>, u32, [u32; 2]);

/// Operations of orders that are kept at most: 8 bytes each.
const KEPT: usize = 2_000_000;

#[derive(Debug, Default)]
struct Kept {
    orders: BTreeMap<Key, Arc<[Prepared]>>,
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
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().orders.get(&key) {
            return Arc::clone(known);
        }
        let nominal: Nominal = [1.0, f64::from(ratios[0]) / 4.0, f64::from(ratios[1]) / 4.0];
        let micro_batches = placement.micro_batches as usize;
        let stages = plan.pipeline as usize;
        let made = dispatch::orders(plan.schedule, stages, micro_batches, &key.1, nominal);
        let prepared: Arc<[Prepared]> = made.into_iter().map(Prepared::new).collect();
        let operations = prepared.iter().flat_map(|one| &one.order.stages).map(Vec::len);
        let count = operations.sum::<usize>();
        let mut kept = lock();
        if kept.operations + count > KEPT {
            *kept = Kept::default();
        }
        kept.operations += count;
        kept.orders.insert(key, Arc::clone(&prepared));
        prepared
    }
}
