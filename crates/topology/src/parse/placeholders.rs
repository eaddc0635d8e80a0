//! Replaces ContainerLab's magic variables in binds and commands.

use std::path::PathBuf;

use super::value::{Result, unsupported};
use crate::model::Node;

/// Replaces `__clabNodeName__`, and `__clabLabName__` by `clab-` and the name of the topology, in the
/// binds, the commands and the health
/// check of a node.
///
/// # Errors
/// For a directory of the deployed lab, which does not exist here.
pub(super) fn replaced(lab: &str, name: &str, mut node: Node) -> Result<Node> {
    let replace = |key: &str, text: &str| -> Result<String> {
        let new = text
            .replace("__clabNodeName__", name)
            .replace("__clabLabName__", &format!("clab-{lab}"));
        match ["__clabDir__", "__clabNodeDir__"].iter().any(|place| new.contains(place)) {
            true => Err(unsupported(
                &format!("topology.nodes.{name}.{key}: {text}"),
                "there is no directory of the deployed lab",
            )),
            false => Ok(new),
        }
    };
    for bind in &mut node.binds {
        for path in [&mut bind.source, &mut bind.target] {
            *path = PathBuf::from(replace("binds", &path.to_string_lossy())?);
        }
    }
    for word in node.exec.iter_mut().flatten() {
        *word = replace("exec", word)?;
    }
    for stage in node.stages.values_mut() {
        for word in stage.on_enter.iter_mut().chain(&mut stage.on_exit).flatten() {
            *word = replace("stages", word)?;
        }
    }
    for word in node.healthcheck.iter_mut().flat_map(|check| &mut check.test) {
        *word = replace("healthcheck", word)?;
    }
    Ok(node)
}
