//! Reads a topology file and checks it.

use std::collections::BTreeSet;
use std::path::Path;

use super::error::TopologyError;
use super::expand::expand;
use super::model::Topology;
use super::{order, parse};

/// The longest interface name that the kernel accepts (`IFNAMSIZ` without the terminating zero).
const INTERFACE_NAME_MAX: usize = 15;
/// The most levels of a file. The parser's time grows with their square.
const MOST_LEVELS: usize = 256;

impl Topology {
    /// Reads a ContainerLab file. Variables are replaced from the environment.
    ///
    /// # Errors
    /// [`TopologyError`], with the place in the file.
    pub fn load(path: &Path) -> Result<Self, TopologyError> {
        let read_error = |source| TopologyError::Read { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(read_error)?;
        let absolute = path.canonicalize().map_err(read_error)?;
        Self::parse(&text, absolute.parent().unwrap_or(Path::new("/")), |name| {
            std::env::var(name).ok()
        })
    }

    /// Parses the text of a ContainerLab file. Relative paths start at `directory`, and `lookup`
    /// provides the environment variables.
    ///
    /// # Errors
    /// [`TopologyError`], with the place in the file.
    pub fn parse(
        text: &str,
        directory: &Path,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, TopologyError> {
        let text = expand(text, lookup)?;
        if levels(&text) > MOST_LEVELS {
            return Err(TopologyError::Levels { most: MOST_LEVELS });
        }
        let mut file: serde_norway::Value = serde_norway::from_str(&text)?;
        file.apply_merge()?;
        let topology = parse::topology(&file, directory)?;
        check(&topology)?;
        Ok(topology)
    }
}

/// At least as many levels as the text of a file has within lines: open brackets, also those in
/// strings, and sequences or keys that begin where others begin.
fn levels(text: &str) -> usize {
    let mut open = 0usize;
    let mut most = 0;
    for line in text.lines() {
        let begun = line.split(' ').take_while(|word| matches!(*word, "" | "-" | "?"));
        let begun = begun.filter(|word| !word.is_empty()).count();
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
            most = most.max(open + begun);
        }
    }
    most
}

/// Checks that links, shared namespaces and stages refer to existing nodes.
fn check(topology: &Topology) -> Result<(), TopologyError> {
    for (name, node) in &topology.nodes {
        let Some(shared) = &node.shares else { continue };
        let place = format!("topology.nodes.{name}.network-mode");
        match topology.nodes.get(shared) {
            None => return Err(TopologyError::NoSuchNode { place, node: shared.clone() }),
            Some(target) if target.shares.is_some() => {
                return Err(TopologyError::Unsupported {
                    place,
                    why: "the shared node shares another's",
                });
            }
            Some(_) => {}
        }
    }
    order::check(topology)?;
    let mut ends = BTreeSet::new();
    for (index, link) in topology.links.iter().enumerate() {
        let place = || format!("topology.links[{index}]");
        for end in &link.ends {
            if !topology.nodes.contains_key(&end.node) {
                return Err(TopologyError::NoSuchNode { place: place(), node: end.node.clone() });
            }
            if end.interface.is_empty() || end.interface.len() > INTERFACE_NAME_MAX {
                let expected = "an interface name of 1 to 15 characters";
                return Err(TopologyError::Expected { place: place(), expected });
            }
            if !ends.insert(end) {
                return Err(TopologyError::Twice { place: place(), interface: end.to_string() });
            }
        }
    }
    Ok(())
}
