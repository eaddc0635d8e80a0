//! What a tier of links is for a stream.

use serde::{Deserialize, Serialize};

/// The place of a tier on the path.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The uplinks of the sending leaf.
    Leaf,
    /// Links between spines, such as those between two data centres.
    Spine,
    /// The uplinks of the receiving leaf.
    FarLeaf,
}

impl Role {
    /// The name in CSV files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leaf => "leaf",
            Self::Spine => "spine",
            Self::FarLeaf => "far-leaf",
        }
    }

    /// The name in the report.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Leaf => "uplinks of the sending leaf",
            Self::Spine => "links between the spines",
            Self::FarLeaf => "uplinks of the receiving leaf",
        }
    }
}
