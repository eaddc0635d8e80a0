//! A kind of machine: one GPU, its links, and what programs reach of both.

use serde::{Deserialize, Serialize};

/// A kind of machine. Rates are bytes or operations in a second, in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Machine {
    /// What it is, and where its figures come from.
    pub description: String,
    /// GPUs of a node, which `node-link` joins.
    pub gpus: u32,
    /// Peak operations of a GPU in half precision, without sparsity.
    pub operations: f64,
    /// Peak operations in FP8. Default: those in half precision.
    pub operations_fp8: Option<f64>,
    /// Bytes of a GPU's memory.
    pub memory: f64,
    /// Bytes of it that neither parameters nor activations use: context, buffers, fragments.
    pub reserved: f64,
    /// Peak rate of the memory.
    pub memory_rate: f64,
    /// Rate of a GPU to the others of its node.
    pub node_link: f64,
    /// Rate of a GPU to other nodes.
    pub network_link: f64,
    /// What programs reach.
    pub efficiency: Efficiency,
}

/// Shares of the peaks that programs reach on a kind of machine. 0 to 1, but for `layer-overhead`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Efficiency {
    /// Matrix products.
    pub products: f64,
    /// Fused attention, whose kernels have less time for it. Default: that of matrix products.
    pub attention: Option<f64>,
    /// Reads and writes of operations on single elements.
    pub memory: f64,
    /// Links inside a node.
    pub node_link: f64,
    /// Links between nodes.
    pub network_link: f64,
    /// Seconds that a pass through a layer needs in addition, whatever its size.
    pub layer_overhead: f64,
    /// The share of its time that a transfer takes from computation beside it. Default: 20 of 132
    /// multiprocessors (DeepSeek-V3, arXiv 2412.19437, section 3.2.2).
    #[serde(default = "interference")]
    pub interference: f64,
}

fn interference() -> f64 {
    20.0 / 132.0
}

/// The kinds of machines that are shipped: name and text of the TOML file.
pub const SHIPPED: [(&str, &str); 4] = [
    ("a100", include_str!("../machines/a100.toml")),
    ("gh200", include_str!("../machines/gh200.toml")),
    ("h100", include_str!("../machines/h100.toml")),
    ("h100-500w", include_str!("../machines/h100-500w.toml")),
];

impl Machine {
    /// Seconds for matrix products in half precision.
    pub(crate) fn products(&self, operations: f64) -> f64 {
        operations / (self.operations * self.efficiency.products)
    }

    /// Seconds for fused attention.
    pub(crate) fn attention(&self, operations: f64) -> f64 {
        let share = self.efficiency.attention.unwrap_or(self.efficiency.products);
        operations / (self.operations * share)
    }

    /// Seconds for matrix products in FP8.
    pub(crate) fn products_fp8(&self, operations: f64) -> f64 {
        let peak = self.operations_fp8.unwrap_or(self.operations);
        operations / (peak * self.efficiency.products)
    }

    /// Seconds to read or write bytes of memory.
    pub(crate) fn memory(&self, bytes: f64) -> f64 {
        bytes / (self.memory_rate * self.efficiency.memory)
    }

    /// The rate of a ring of which so many members are in each node.
    pub(crate) fn ring_rate(&self, members_in_node: f64, in_one_node: bool) -> f64 {
        if in_one_node {
            self.node_link * self.efficiency.node_link
        } else {
            self.network_link * self.efficiency.network_link * members_in_node
        }
    }
}
