//! The files that an experiment needs, so that its directory repeats it: the experiment file, its
//! topologies, and what these bind into their nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use experiment::Experiment;
use experiment::file::Source;
use experiment::plan::fabric_name;

use super::program::beside;
use crate::error::RunError;
use crate::machine;
use fabric::topology::Topology;

/// The folder of the topologies in the directory.
const TOPOLOGIES: &str = "topologies";

/// The files that an experiment needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Inputs {
    /// The experiment file. Its topologies are in the folder `topologies` beside it. A program has an
    /// absolute path.
    pub(super) text: String,
    /// The other files by their place beside it.
    pub(super) files: BTreeMap<String, Vec<u8>>,
    /// The checksums of programs and of files outside the folders of the topologies, by their path.
    pub(super) outside: BTreeMap<String, String>,
}

impl Inputs {
    /// Reads the topologies of both forms, and the files that they bind. Files outside the folder of
    /// a topology, such as those of the machine, are not copied.
    pub(super) fn read(experiment: &Experiment, source: Source<'_>) -> Result<Self, RunError> {
        let mut inputs = Self { text: source.text.to_owned(), ..Self::default() };
        let quick = experiment.quick.topologies.iter().map(|files| ("quick.topologies", files));
        let mut paths: Vec<(Range<usize>, String)> = Vec::new();
        for (place, files) in quick.chain([("topologies", &experiment.topologies)]) {
            for (at, file) in files.iter().enumerate() {
                let folder = format!("{TOPOLOGIES}/{}", fabric_name(file));
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                let copy = format!("{folder}/{name}");
                inputs.topology(file, &folder, &copy)?;
                paths.extend(source.span(&format!("{place}.{at}")).map(|span| (span, copy)));
            }
        }
        for (table, workload) in workloads(experiment) {
            let word = workload.get("command").and_then(|command| command.get(0)?.as_str());
            let Some(word) = word.filter(|word| word.contains('/')) else { continue };
            let path = beside(source.path, word);
            let name = path.display().to_string();
            inputs.outside.insert(name.clone(), machine::checksum(&read(&path)?));
            paths.extend(source.span(&format!("{table}.command.0")).map(|span| (span, name)));
        }
        // The last one first, so that the places of the others stay.
        paths.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
        for (span, copy) in paths {
            inputs.text.replace_range(span, &format!("\"{copy}\""));
        }
        Ok(inputs)
    }

    fn topology(&mut self, file: &Path, folder: &str, copy: &str) -> Result<(), RunError> {
        let topology = Topology::load(file)?;
        self.files.insert(copy.to_owned(), read(file)?);
        let own = file.canonicalize().map_err(error(file))?;
        let own = own.parent().unwrap_or(Path::new("/"));
        let binds = topology.nodes.values().flat_map(|node| &node.binds);
        let sources: BTreeSet<&PathBuf> = binds.map(|bind| &bind.source).collect();
        for bound in sources {
            // '..' in a bind leads out of the folder.
            let leads_out = bound.components().any(|part| part == Component::ParentDir);
            let Some(below) = bound.strip_prefix(own).ok().filter(|_| !leads_out) else {
                if bound.is_file() {
                    let sum = machine::checksum(&read(bound)?);
                    self.outside.insert(bound.display().to_string(), sum);
                }
                continue;
            };
            self.tree(bound, &format!("{folder}/{}", below.display()))?;
        }
        Ok(())
    }

    /// A file, or all files of a folder.
    fn tree(&mut self, path: &Path, copy: &str) -> Result<(), RunError> {
        if path.is_file() {
            self.files.insert(copy.to_owned(), read(path)?);
        } else if path.is_dir() {
            for entry in std::fs::read_dir(path).map_err(error(path))? {
                let entry = entry.map_err(error(path))?;
                let name = entry.file_name();
                self.tree(&entry.path(), &format!("{copy}/{}", name.to_string_lossy()))?;
            }
        }
        Ok(())
    }

    /// The checksums of all files but the experiment file.
    pub(super) fn checksums(&self) -> BTreeMap<String, String> {
        let own = self.files.iter().map(|(name, bytes)| (name.clone(), machine::checksum(bytes)));
        own.chain(self.outside.clone()).collect()
    }
}

/// The tables of workloads, with their places in the file.
fn workloads(experiment: &Experiment) -> impl Iterator<Item = (String, &toml::Table)> {
    let own = experiment.workload.iter().map(|table| ("workload".to_owned(), table.get_ref()));
    let quick = [("quick.workload".to_owned(), &experiment.quick.workload)];
    let variants = experiment.variants.iter().enumerate();
    let variants = variants.map(|(at, of)| (format!("variant.{at}.workload"), &of.workload));
    own.chain(quick).chain(variants)
}

fn read(path: &Path) -> Result<Vec<u8>, RunError> {
    experiment::input::read(path).map_err(error(path))
}

fn error(path: &Path) -> impl Fn(std::io::Error) -> RunError {
    move |source| RunError::File { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copies_are_an_experiment_that_repeats_itself() {
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/experiments");
        let read = |path: &Path| {
            let (experiment, text) = Experiment::load(path).unwrap();
            Inputs::read(&experiment, Source { path, text: &text }).unwrap()
        };
        let inputs = read(&shipped.join("entropy.toml"));
        let place = std::env::temp_dir().join(format!("lab-inputs-{}", std::process::id()));
        for (name, bytes) in &inputs.files {
            let file = place.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, bytes).unwrap();
        }
        let file = place.join("experiment.toml");
        std::fs::write(&file, &inputs.text).unwrap();
        let again = read(&file);
        let checked = super::super::read(&file, true);
        std::fs::remove_dir_all(&place).unwrap();
        assert_eq!(again, inputs);
        assert_eq!(checked.unwrap().0.topologies[0].file_name().unwrap(), "scaleacross.clab.yml");
        let sums = inputs.checksums();
        for name in ["minimal/minimal.clab.yml", "minimal/daemons", "wide16/wide16/leaf1.conf"] {
            assert!(sums.contains_key(&format!("topologies/{name}")), "{name}: {sums:?}");
        }
    }
}
