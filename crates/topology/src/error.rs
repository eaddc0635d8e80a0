//! The error of a topology file.

use std::io;
use std::path::PathBuf;

/// A topology file cannot be read, or requires a feature that network namespaces do not have.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The topology file, or a file that it refers to, cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A directory has no topology file, or several.
    #[error("{} has {count} files *.clab.yml: name one", .directory.display())]
    NotOne {
        /// The directory.
        directory: PathBuf,
        /// How many it has.
        count: usize,
    },
    /// The file is not valid YAML.
    #[error("invalid YAML")]
    Yaml(#[from] serde_norway::Error),
    /// The file nests too deeply.
    #[error("more than {most} levels of brackets or sequences: is a bracket missing?")]
    Levels {
        /// The most that a file may have.
        most: usize,
    },
    /// The file requires an environment variable, which is not set.
    #[error("line {line}: the variable {name}: {}; set it", or_unset(.message))]
    Variable {
        /// The line, from 1 on.
        line: usize,
        /// The name.
        name: String,
        /// The message in the file; may be empty.
        message: String,
    },
    /// A line has `${` without a `}` behind it.
    #[error("line {line}: '${{' without '}}': write '$${{' for a '${{' of a command")]
    OpenBracket {
        /// The line, from 1 on.
        line: usize,
    },
    /// The file has actions of Go templates. ContainerLab renders such a file first.
    #[error(
        "line {line}: the file is a Go template, which lab does not render; give it the rendered file"
    )]
    Template {
        /// The line, from 1 on.
        line: usize,
    },
    /// ContainerLab may support this key or value, but the lab does not.
    #[error("{place}: not supported by lab{}", reason(.why))]
    Unsupported {
        /// Where in the file, for example `topology.nodes.leaf1.startup-config`.
        place: String,
        /// The reason; may be empty.
        why: &'static str,
    },
    /// A value has the wrong type or form.
    #[error("{place}: expected {expected}")]
    Expected {
        /// Where in the file.
        place: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A fabric or a node has a name that cannot be one component of a path.
    #[error("{place}: {error}")]
    Name {
        /// Where in the file.
        place: String,
        /// What is wrong.
        error: String,
    },
    /// A required key is missing.
    #[error("{place}: missing")]
    Missing {
        /// Where in the file.
        place: String,
    },
    /// A link, a `network-mode` or a `wait-for` names a node that the file does not define.
    #[error("{place}: no node '{node}'")]
    NoSuchNode {
        /// Where in the file.
        place: String,
        /// The name of the node.
        node: String,
    },
    /// The stages of some nodes wait for each other in a cycle.
    #[error("{place}: waits for itself: {circle}")]
    Circle {
        /// Where in the file.
        place: String,
        /// The cycle: nodes with their stages.
        circle: String,
    },
    /// Two links end at the same interface.
    #[error("{place}: interface '{interface}' is used twice")]
    Twice {
        /// Where in the file.
        place: String,
        /// The interface, as `node:interface`.
        interface: String,
    },
}

fn or_unset(message: &str) -> &str {
    if message.is_empty() { "it is not set" } else { message }
}

fn reason(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(" ({why})") }
}
