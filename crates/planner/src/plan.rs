//! A plan: how a model is cut into parts, and where and in which order they are computed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::network::Technology;

/// The order in which a stage computes micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Schedule {
    /// One forward, one backward (PipeDream-Flush, arXiv 2006.09503).
    OneForwardOneBackward,
    /// 1F1B with several chunks of layers for each stage (arXiv 2104.04473, section 2.2).
    Interleaved(u32),
    /// 1F1B whose gradients of weights are computed later (arXiv 2401.10241).
    ZbH1,
    /// Two chunks for each stage, laid out as a V, without bubbles (arXiv 2401.10241, section 6).
    Zbv,
    /// As ZBV with half of the activations (arXiv 2405.15362).
    VHalf,
    /// Made for a slow boundary, one chunk for each stage. The number multiplies 1F1B's activations.
    UpDown(u32),
    /// Made for a slow boundary, with ZBV's layout. The number multiplies 1F1B's activations.
    Wave(u32),
}

impl Schedule {
    /// Chunks of layers for each stage.
    #[must_use]
    pub fn chunks(self) -> u32 {
        match self {
            Self::OneForwardOneBackward | Self::ZbH1 | Self::UpDown(_) => 1,
            Self::Interleaved(chunks) => chunks,
            Self::Zbv | Self::VHalf | Self::Wave(_) => 2,
        }
    }

    /// Whether the second chunk of a stage lies on the way back: the layout of a V.
    pub(crate) fn is_wave(self) -> bool {
        matches!(self, Self::Zbv | Self::VHalf | Self::Wave(_))
    }

    /// Whether gradients of weights are operations of their own.
    pub(crate) fn splits_backward(self) -> bool {
        !matches!(self, Self::OneForwardOneBackward | Self::Interleaved(_))
    }

    /// Whether the order is made for the delay between sites.
    pub(crate) fn is_dynamic(self) -> bool {
        matches!(self, Self::UpDown(_) | Self::Wave(_))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneForwardOneBackward => f.write_str("1f1b"),
            Self::Interleaved(chunks) => write!(f, "interleaved-{chunks}"),
            Self::ZbH1 => f.write_str("zb-h1"),
            Self::Zbv => f.write_str("zbv"),
            Self::VHalf => f.write_str("v-half"),
            Self::UpDown(1) => f.write_str("up-down"),
            Self::UpDown(memory) => write!(f, "up-down-{memory}"),
            Self::Wave(1) => f.write_str("wave"),
            Self::Wave(memory) => write!(f, "wave-{memory}"),
        }
    }
}

/// The text names no schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no schedule is named '{0}': write 1f1b, interleaved-2, zb-h1, zbv, v-half, up-down, \
     up-down-2, wave or wave-2"
)]
pub struct NoSchedule(String);

impl FromStr for Schedule {
    type Err = NoSchedule;

    fn from_str(text: &str) -> Result<Self, NoSchedule> {
        let number = |prefix: &str| {
            let number = text.strip_prefix(prefix)?.strip_prefix('-')?.parse::<u32>().ok()?;
            (2..=64).contains(&number).then_some(number)
        };
        Ok(match text {
            "1f1b" => Self::OneForwardOneBackward,
            "zb-h1" => Self::ZbH1,
            "zbv" => Self::Zbv,
            "v-half" => Self::VHalf,
            "up-down" => Self::UpDown(1),
            "wave" => Self::Wave(1),
            _ => number("interleaved")
                .map(Self::Interleaved)
                .or_else(|| number("up-down").map(Self::UpDown))
                .or_else(|| number("wave").map(Self::Wave))
                .ok_or_else(|| NoSchedule(text.to_owned()))?,
        })
    }
}

impl TryFrom<String> for Schedule {
    type Error = NoSchedule;

    fn try_from(text: String) -> Result<Self, NoSchedule> {
        text.parse()
    }
}

impl From<Schedule> for String {
    fn from(schedule: Schedule) -> Self {
        schedule.to_string()
    }
}

/// What a stage does while it sends an activation or a gradient to the next stage.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// It waits until the message has arrived, as with paired sends and receives.
    #[default]
    Blocking,
    /// It computes on.
    Background,
}

/// How parameters, gradients and the optimizer's state are spread over the data-parallel replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharding {
    /// Each replica has all.
    Ddp,
    /// Each site has all, once.
    Hsdp,
    /// All replicas together have all, once.
    Fsdp,
}

/// What the backward pass computes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// Nothing.
    None,
    /// Scores of attention (arXiv 2205.05198, section 5).
    Attention,
    /// Every second matrix product with weights (torchtitan's selective mode).
    Half,
    /// Each layer, from its input.
    Full,
}

/// The dimension of parallelism that the border between sites cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Boundary {
    /// Replicas are at different sites (DP-out).
    Data,
    /// Stages of the pipeline are at different sites (PP-out).
    Pipeline,
    /// Parts of a sequence are at different sites.
    Context,
    /// Experts are at different sites, and so are replicas.
    Expert,
    /// Parts of each matrix are at different sites.
    Tensor,
}

/// Shows values by their names in files.
macro_rules! display {
    ($($type:ty),+) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        }
    )+};
}

display!(Exchange, Sharding, Recompute, Boundary);

/// A plan. Degrees of parallelism are at least 1; the product of the first four is the number of
/// GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Plan {
    /// Parts of each matrix.
    #[serde(default = "one")]
    pub tensor: u32,
    /// Stages.
    #[serde(default = "one")]
    pub pipeline: u32,
    /// Replicas.
    #[serde(default = "one")]
    pub data: u32,
    /// Parts of each sequence.
    #[serde(default = "one")]
    pub context: u32,
    /// Replicas that share the experts. It divides `data`.
    #[serde(default = "one")]
    pub expert: u32,
    /// Sequences of a micro-batch.
    #[serde(default = "one")]
    pub micro_batch: u32,
    /// The order of operations.
    pub schedule: Schedule,
    /// What a stage does while it sends.
    #[serde(default)]
    pub exchange: Exchange,
    /// Where parameters, gradients and the optimizer's state are.
    pub sharding: Sharding,
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// Whether the parts of layers that `tensor` does not cut are cut by sequence (arXiv
    /// 2205.05198, section 4.2.2).
    #[serde(default = "yes")]
    pub sequence_parallel: bool,
    /// Whether exchanges between the parts of a matrix go on beside its products, in as many steps as
    /// there are parts (PyTorch's asynchronous tensor parallelism).
    #[serde(default)]
    pub async_tensor: bool,
    /// The dimension that the border between sites cuts.
    pub boundary: Boundary,
    /// The technology of the network between sites.
    pub technology: Technology,
    /// Layers of each chunk, from the first on. Empty: even, with embedding and output counted as
    /// layers if the numbers allow it.
    #[serde(default)]
    pub layers: Vec<u32>,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

impl Plan {
    /// GPUs that the plan uses.
    #[must_use]
    pub fn gpus(&self) -> u64 {
        let degrees = [self.tensor, self.pipeline, self.data, self.context];
        degrees.into_iter().map(u64::from).fold(1, u64::saturating_mul)
    }

    /// Layers of each chunk, in the order of the layers. Embedding and output, in the first and the
    /// last chunk, count as a layer each if that makes all chunks equal.
    #[must_use]
    pub fn chunk_layers(&self, layers: u32) -> Vec<u32> {
        if !self.layers.is_empty() {
            return self.layers.clone();
        }
        let chunks = self.pipeline.saturating_mul(self.schedule.chunks()).max(1);
        let with_ends = layers.saturating_add(2);
        if !layers.is_multiple_of(chunks) && with_ends.is_multiple_of(chunks) && chunks > 1 {
            let ends = |at| u32::from(at == 0) + u32::from(at + 1 == chunks);
            return (0..chunks).map(|at| with_ends / chunks - ends(at)).collect();
        }
        // The chunks in the middle have what remains: they have neither embedding nor output.
        let (even, rest) = (layers / chunks, layers % chunks);
        let first = (chunks - rest) / 2;
        (0..chunks).map(|at| even + u32::from((first..first + rest).contains(&at))).collect()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{} p{} d{}", self.tensor, self.pipeline, self.data)?;
        for (name, degree) in [("c", self.context), ("e", self.expert)] {
            if degree > 1 {
                write!(f, " {name}{degree}")?;
            }
        }
        write!(f, " {}-out b{} {}", self.boundary, self.micro_batch, self.schedule)?;
        write!(f, " {} {}, recompute {}", self.exchange, self.sharding, self.recompute)?;
        write!(f, ", {}", self.technology)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Policy;

    #[test]
    fn layers_are_even_and_the_ends_count_if_that_helps() {
        let layers = |pipeline, schedule, layers| {
            let technology = Technology { policy: Policy::Spray, queue_pairs: 1 };
            let plan = Plan {
                tensor: 1,
                pipeline,
                data: 1,
                context: 1,
                expert: 1,
                micro_batch: 1,
                schedule,
                exchange: Exchange::Blocking,
                sharding: Sharding::Ddp,
                recompute: Recompute::None,
                sequence_parallel: true,
                async_tensor: false,
                boundary: Boundary::Data,
                technology,
                layers: Vec::new(),
            };
            plan.chunk_layers(layers)
        };
        let one = Schedule::OneForwardOneBackward;
        assert_eq!(layers(4, one, 32), [8, 8, 8, 8]);
        // 126 layers of Llama 3 405B, with embedding and output, on 16 stages.
        assert_eq!(layers(16, one, 126), [[7].as_slice(), &[8; 14], &[7]].concat());
        assert_eq!(layers(4, one, 33), [8, 9, 8, 8]);
        assert_eq!(layers(2, Schedule::Zbv, 8), [2, 2, 2, 2]);
        assert_eq!(layers(1, one, 5), [5]);
    }
}
