//! How parameters and gradients are synchronised over the replicas.

use crate::collective::{Group, Seconds};
use crate::cost::{self, Cost};
use crate::job::Job;
use crate::memory::Parameters;
use crate::network::Wire;
use crate::plan::{Boundary, Plan, Sharding};

/// The groups that share parameters of a stage.
pub(crate) struct Replicas {
    shared: Group,
    experts: Group,
}

impl Replicas {
    pub(crate) fn new(job: &Job, plan: &Plan) -> Self {
        let all = cost::replica_sites(job, plan);
        // Replicas of an expert are at one site if experts are at different ones.
        let data = if plan.boundary == Boundary::Expert { 1 } else { all };
        let members = plan.data * plan.context;
        let groups = plan.tensor;
        let stride = plan.tensor;
        let (each, together) = (members / plan.expert, groups * plan.expert);
        Self {
            shared: Group::new(&job.machine, members, stride, all, groups),
            experts: Group::new(&job.machine, each, stride * plan.expert, data, together),
        }
    }

    /// One after the other, for parameters of so many bytes each.
    fn both(
        &self,
        bytes: f64,
        parameters: Parameters,
        run: impl Fn(&Group, f64) -> Seconds,
    ) -> Seconds {
        run(&self.shared, parameters.shared * bytes)
            + run(&self.experts, parameters.experts * bytes)
    }

    /// The gather of parameters for a pass.
    pub(crate) fn gather(
        &self,
        job: &Job,
        plan: &Plan,
        wire: Wire,
        parameters: Parameters,
    ) -> Seconds {
        let each = f64::from(job.model.gather_bytes);
        self.both(each, parameters, |group, bytes| match plan.sharding {
            Sharding::Ddp => Seconds::default(),
            Sharding::Hsdp => {
                Seconds { inside: group.inside(&job.machine, bytes), ..Seconds::default() }
            }
            Sharding::Fsdp => group.flat(&job.machine, wire, bytes),
        })
    }

    /// The scatter of gradients after each micro-batch, without a pipeline.
    fn scatter(&self, job: &Job, plan: &Plan, wire: Wire, parameters: Parameters) -> Seconds {
        let scale = f64::from(job.model.gradient_bytes) / f64::from(job.model.gather_bytes);
        let gather = self.gather(job, plan, wire, parameters);
        Seconds {
            inside: gather.inside * scale,
            link: gather.link * scale,
            exchange: gather.exchange * scale,
            ..gather
        }
    }

    /// The exchange of gradients at the end of an iteration.
    pub(crate) fn last(
        &self,
        job: &Job,
        plan: &Plan,
        wire: Wire,
        parameters: Parameters,
    ) -> Seconds {
        let (machine, bytes) = (&job.machine, f64::from(job.model.gradient_bytes));
        let each_time = plan.pipeline == 1;
        self.both(bytes, parameters, |group, bytes| match plan.sharding {
            Sharding::Ddp => group.all_reduce(machine, wire, bytes),
            Sharding::Hsdp => {
                let inside = if each_time { 0.0 } else { group.inside(machine, bytes) };
                let across = group.all_reduce(machine, wire, bytes);
                Seconds { inside, ..across }
            }
            Sharding::Fsdp if each_time => Seconds::default(),
            Sharding::Fsdp => group.flat(machine, wire, bytes),
        })
    }

    /// Adds to the passes through a layer what gathers and scatters in each micro-batch cost that
    /// computation does not hide, and what hidden ones take from it. Without a pipeline only.
    pub(crate) fn add_each(
        &self,
        job: &Job,
        plan: &Plan,
        wire: Wire,
        layer: Parameters,
        cost: &mut Cost,
    ) {
        if plan.sharding == Sharding::Ddp || plan.pipeline > 1 {
            return;
        }
        let interference = job.machine.efficiency.interference;
        let exposed = |exchange: f64, hiding: f64| {
            (exchange - hiding).max(0.0) + interference * exchange.min(hiding)
        };
        let gather = self.gather(job, plan, wire, layer).total();
        let scatter = self.scatter(job, plan, wire, layer).total();
        let backward = cost.whole_backward() + cost.weight;
        cost.exchange_forward += exposed(gather, cost.whole_forward());
        cost.exchange_backward += exposed(gather + scatter, backward);
    }

    /// What nothing can hide at the start of a micro-batch: the gather for the first layer, and the
    /// scatter of the last. With a pipeline, once in an iteration: the gather of a chunk as far as
    /// what its forward pass computes does not hide it.
    pub(crate) fn start(
        &self,
        job: &Job,
        plan: &Plan,
        wire: Wire,
        layer: Parameters,
        layers: u32,
        forward: f64,
    ) -> f64 {
        if plan.sharding == Sharding::Ddp {
            return 0.0;
        }
        let gather = self.gather(job, plan, wire, layer).total();
        if plan.pipeline == 1 {
            return gather + self.scatter(job, plan, wire, layer).total();
        }
        gather + (f64::from(layers.saturating_sub(1)) * (gather - forward)).max(0.0)
    }
}
