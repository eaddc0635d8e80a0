//! What the page is told about a fabric once.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

/// Reads the properties of all circuits: by the name of the circuit, from its first end to its
/// second, and back.
pub type ReadCircuits = Arc<dyn Fn() -> BTreeMap<String, [Value; 2]> + Send + Sync>;

/// A fabric that is up.
#[derive(Clone, Serialize)]
pub struct Fabric {
    /// The name.
    pub name: String,
    /// The picture: `data-node` names a node, `data-from` and `data-to` a direction of a link.
    pub picture: String,
    /// The nodes by name.
    pub nodes: BTreeMap<String, Node>,
    /// The links; a circuit is one.
    pub links: Vec<Link>,
    /// The address of each host behind a leaf.
    pub hosts: BTreeMap<String, Ipv4Addr>,
    /// The program `lab`, which performs actions. `vtepctl` is in the same folder.
    #[serde(skip)]
    pub program: PathBuf,
    /// The properties of circuits.
    #[serde(skip)]
    pub circuits: ReadCircuits,
}

impl Default for Fabric {
    fn default() -> Self {
        Self {
            name: String::new(),
            picture: String::new(),
            nodes: BTreeMap::new(),
            links: Vec::new(),
            hosts: BTreeMap::new(),
            program: PathBuf::new(),
            circuits: Arc::new(BTreeMap::new),
        }
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A node.
#[derive(Debug, Clone, Serialize)]
pub struct Node {
    /// The name of its network namespace.
    pub namespace: String,
    /// Whether it has a VXLAN netdev, so that a vtepd may run there.
    pub leaf: bool,
}

/// A link.
#[derive(Debug, Clone, Serialize)]
pub struct Link {
    /// One end, as `NODE:INTERFACE`.
    pub a: String,
    /// The other end.
    pub b: String,
    /// The circuit in it, as `NODE A:B`.
    pub circuit: Option<String>,
    /// All its interfaces as `NODE:INTERFACE`: the ends, and those of the circuit.
    pub interfaces: Vec<String>,
}
