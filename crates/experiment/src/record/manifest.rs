//! What is known about a directory of results: its machine, its programs and its part of the runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::shard::Shard;

/// What must be the same for all runs of a directory. `manifest.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The name of the experiment.
    pub experiment: String,
    /// Whether it is the short form, `--quick`.
    pub quick: bool,
    /// Whether the fabric was already up, `--deployed`.
    #[serde(default)]
    pub deployed: bool,
    /// The checksum of the experiment file in the directory.
    pub file: String,
    /// The checksums of the topologies and of the files that they bind, by name.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// The commit of the sources, with `-dirty` after changes that are not committed.
    pub commit: String,
    /// The checksums of the programs `lab` and `vtepd`.
    pub programs: BTreeMap<String, String>,
    /// The machine.
    pub machine: Machine,
    /// The version of FRR.
    pub frr: String,
    /// The version of vtepd.
    pub vtepd: String,
    /// The part of the runs that the directory has. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// The other machines that ran parts, after they were joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Machine>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The kernel release.
    pub kernel: String,
    /// The CPU model.
    pub cpu_model: String,
    /// The number of CPUs that the programs may use.
    pub cpus: usize,
    /// The memory in MiB.
    pub memory_mib: u64,
    /// The governor of the CPUs' frequencies; empty if the machine has none, as many virtual ones.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub governor: String,
    /// The kernel's command line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command_line: String,
    /// Settings of the machine that all namespaces share, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
    /// A checksum of the machine's id, which tells equal machines apart.
    pub id: String,
}

impl Manifest {
    /// What differs from another manifest, as messages.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let values = |manifest: &Self| match serde_json::to_value(manifest) {
            Ok(serde_json::Value::Object(values)) => values,
            _ => serde_json::Map::new(),
        };
        let mut found = Vec::new();
        differ("", &values(self), &values(other), &mut found);
        found
    }
}

/// Finds the values that differ, also in maps.
fn differ(
    place: &str,
    own: &serde_json::Map<String, serde_json::Value>,
    other: &serde_json::Map<String, serde_json::Value>,
    found: &mut Vec<String>,
) {
    let keys: BTreeSet<&String> = own.keys().chain(other.keys()).collect();
    for key in keys {
        let pair = (own.get(key), other.get(key));
        let name = format!("{place}{key}");
        match pair {
            (Some(serde_json::Value::Object(own)), Some(serde_json::Value::Object(other))) => {
                differ(&format!("{name} "), own, other, found);
            }
            (own, other) if own != other => {
                let [own, other] = [own, other]
                    .map(|value| value.map_or("nothing".to_owned(), ToString::to_string));
                found.push(format!("{name}: {own} there, {other} now"));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::record::tests::manifest;

    #[test]
    fn a_manifest_tells_what_differs() {
        let (one, mut other) = (manifest(), manifest());
        assert_eq!(one.differences(&other), [""; 0]);
        other.commit = "def".into();
        other.machine.cpus = 4;
        other.files.insert("a.clab.yml".into(), "6".into());
        other.files.remove("b.conf");
        let found = one.differences(&other);
        let expected = [
            "commit: \"abc\" there, \"def\" now",
            "files a.clab.yml: \"4\" there, \"6\" now",
            "files b.conf: \"5\" there, nothing now",
            "machine cpus: 2 there, 4 now",
        ];
        assert_eq!(found, expected);
    }
}
