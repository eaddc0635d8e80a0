//! The model that is trained.

use serde::{Deserialize, Serialize};

/// Bytes of a parameter or an activation in half precision.
pub(crate) const HALF: f64 = 2.0;

/// How attention is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attention {
    /// In one kernel that keeps no scores and skips masked blocks (FlashAttention-2, arXiv
    /// 2307.08691).
    #[default]
    Flash,
    /// In single operations that read and write all scores.
    Unfused,
}

/// The precision of matrix products with weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// BF16 or FP16.
    #[default]
    Half,
    /// FP8, with scales that are found anew for each product. Attention stays in half precision.
    Fp8,
}

/// The experts of each layer, in place of its feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Experts {
    /// The number of experts.
    pub count: u32,
    /// Experts that compute each token, shared ones included.
    pub active: u32,
}

/// A decoder-only transformer. Sizes are numbers of elements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Model {
    /// Transformer layers, without embedding and output.
    pub layers: u32,
    /// The width of a token between layers.
    pub hidden: u32,
    /// Heads of attention.
    pub heads: u32,
    /// Heads of keys and values. Default: `heads`.
    pub kv_heads: Option<u32>,
    /// The width of the feed-forward network, or of each expert. Default: 4 `hidden`.
    pub feed_forward: Option<u32>,
    /// Whether the feed-forward network has a third matrix (SwiGLU).
    #[serde(default)]
    pub gated: bool,
    /// Words of the vocabulary.
    pub vocabulary: u32,
    /// Tokens of a sequence.
    pub sequence: u32,
    /// How attention is computed.
    #[serde(default)]
    pub attention: Attention,
    /// The precision of matrix products with weights.
    #[serde(default)]
    pub precision: Precision,
    /// Bytes of a gradient that is exchanged: 2 or 4.
    #[serde(default = "half_precision")]
    pub gradient_bytes: u32,
    /// Bytes of each element of a layer's weights, and of inputs of its products with sequence
    /// parallelism, that is gathered from other GPUs: 2, or 1 with FP8.
    #[serde(default = "half_precision")]
    pub gather_bytes: u32,
    /// The experts of a mixture.
    pub experts: Option<Experts>,
}

fn half_precision() -> u32 {
    2
}

impl Model {
    /// The width of the feed-forward network.
    pub(crate) fn feed_forward(&self) -> f64 {
        f64::from(self.feed_forward.unwrap_or(self.hidden.saturating_mul(4)))
    }

    /// The width of keys, and of values.
    pub(crate) fn kv_width(&self) -> f64 {
        let heads = f64::from(self.heads.max(1));
        f64::from(self.hidden) * f64::from(self.kv_heads.unwrap_or(self.heads)) / heads
    }

    /// Weights of a layer's attention: Q, K, V and output.
    pub(crate) fn attention_weights(&self) -> f64 {
        let hidden = f64::from(self.hidden);
        2.0 * hidden * hidden + 2.0 * hidden * self.kv_width()
    }

    /// Weights of a feed-forward network, or of one expert.
    pub(crate) fn network_weights(&self) -> f64 {
        let matrices = if self.gated { 3.0 } else { 2.0 };
        matrices * f64::from(self.hidden) * self.feed_forward()
    }

    /// How many feed-forward networks a layer has.
    pub(crate) fn networks(&self) -> f64 {
        self.experts.map_or(1.0, |experts| f64::from(experts.count))
    }

    /// How many feed-forward networks compute a token.
    pub(crate) fn active_networks(&self) -> f64 {
        self.experts.map_or(1.0, |experts| f64::from(experts.active))
    }

    /// Weights of the embedding, and of the output.
    pub(crate) fn vocabulary_weights(&self) -> f64 {
        f64::from(self.hidden) * f64::from(self.vocabulary)
    }

    /// All parameters: weights of the layers, the embedding and the output. Norms and biases, less
    /// than 0.1 %, are left out.
    #[must_use]
    pub fn parameters(&self) -> f64 {
        let layer = self.attention_weights() + self.networks() * self.network_weights();
        f64::from(self.layers) * layer + 2.0 * self.vocabulary_weights()
    }

    /// Floating-point operations of forward and backward pass for a token, without recomputation:
    /// 6 for each weight that the token meets, and half of the scores (causal attention).
    #[must_use]
    pub fn operations_of_token(&self) -> f64 {
        let layer = self.attention_weights() + self.active_networks() * self.network_weights();
        let weights = f64::from(self.layers) * layer + self.vocabulary_weights();
        let scores = f64::from(self.layers) * f64::from(self.sequence) * f64::from(self.hidden);
        6.0 * weights + 6.0 * scores
    }
}
