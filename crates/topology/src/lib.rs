//! A fabric as described by its ContainerLab file. Nothing here makes one: the crate `fabric` does.
//!
//! - [`model`]: what the file says
//! - [`load`]: reads and checks a file; [`expand`] replaces variables, [`parse`] converts the YAML
//! - [`order`]: which stages of nodes wait for which
//! - [`wire`]: links as nodes see them, with circuits; [`circuit`]: one by its interfaces

mod circuit;
mod error;
mod expand;
mod load;
mod model;
pub mod order;
mod parse;
mod wire;

pub use circuit::Circuit;
pub use error::TopologyError;
pub use model::{
    Bind, ETH0, EndSettings, Endpoint, FarEnd, HalfLink, Healthcheck, Kind, LINK_MTU, Link,
    Management, Node, Stage, StageSettings, Tmpfs, Topology, Tunnel, is_lab,
};
pub use wire::Wire;
