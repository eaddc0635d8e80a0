//! Replaces ContainerLab's magic variables in binds and commands.

use std::path::{Path, PathBuf};

use crate::model::Node;

/// ContainerLab's directory of a lab, in the directory of its topology file, or in `base`
/// (`CLAB_LABDIR_BASE`). Users put files of nodes there.
pub(super) fn lab_directory(directory: &Path, base: Option<&str>, lab: &str) -> PathBuf {
    directory.join(base.unwrap_or_default()).join(format!("clab-{lab}"))
}

/// Replaces in the sources of binds and the commands of a node:
///
/// - `__clabNodeName__` by its name
/// - `__clabDir__` by `lab`, the [directory](lab_directory) of the lab
/// - `__clabLabName__` by the last component of that
/// - `__clabNodeDir__` by the directory of the node there
///
/// Then makes the sources of binds absolute: relative ones begin at `directory`.
pub(super) fn replaced(directory: &Path, lab: &Path, name: &str, mut node: Node) -> Node {
    let last = lab.file_name().unwrap_or_default().to_string_lossy();
    let replace = |text: &str| {
        text.replace("__clabNodeName__", name)
            .replace("__clabLabName__", &last)
            .replace("__clabDir__", &lab.to_string_lossy())
            .replace("__clabNodeDir__", &lab.join(name).to_string_lossy())
    };
    for bind in &mut node.binds {
        bind.source = directory.join(replace(&bind.source.to_string_lossy()));
    }
    let stages = node.stages.values_mut();
    let commands = stages.flat_map(|stage| stage.on_enter.iter_mut().chain(&mut stage.on_exit));
    commands.chain(&mut node.exec).flatten().for_each(|word| *word = replace(word));
    node
}
