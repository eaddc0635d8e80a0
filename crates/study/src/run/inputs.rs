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
/// The most files that are copied.
const MOST_FILES: usize = 10_000;
/// The most bytes that these have together.
const MOST_BYTES: usize = 256 << 20;

/// The files that an experiment needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Inputs {
    /// The experiment file. Its topologies are in the folder `topologies` beside it. A program has an
    /// absolute path.
    pub(super) text: String,
    /// The other files by their place beside it: at most [`MOST_FILES`], of [`MOST_BYTES`].
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
            // '..' in a bind, or a link, leads out of the folder.
            let leads_out = bound.components().any(|part| part == Component::ParentDir)
                || !is_below(bound, own);
            let Some(below) = bound.strip_prefix(own).ok().filter(|_| !leads_out) else {
                if bound.is_file() {
                    let sum = machine::checksum(&read(bound)?);
                    self.outside.insert(bound.display().to_string(), sum);
                }
                continue;
            };
            let found = bound.canonicalize().map_err(error(bound))?;
            self.tree(own, &found, &format!("{folder}/{}", below.display()))?;
        }
        Ok(())
    }

    /// A file, or all files of a folder. `own` is the topology's: links are left out, but for those to
    /// files in it. So nothing is copied that only root can read, and no folder twice.
    fn tree(&mut self, own: &Path, path: &Path, copy: &str) -> Result<(), RunError> {
        let kind = path.symlink_metadata().map_err(error(path))?.file_type();
        if kind.is_file() || kind.is_symlink() && path.is_file() && is_below(path, own) {
            return self.add(path, copy);
        }
        if kind.is_dir() {
            for entry in std::fs::read_dir(path).map_err(error(path))? {
                let entry = entry.map_err(error(path))?;
                let name = entry.file_name();
                self.tree(own, &entry.path(), &format!("{copy}/{}", name.to_string_lossy()))?;
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, copy: &str) -> Result<(), RunError> {
        self.files.insert(copy.to_owned(), read(path)?);
        let size: usize = self.files.values().map(Vec::len).sum();
        if self.files.len() > MOST_FILES || size > MOST_BYTES {
            let text = format!(
                "with it, the topologies bind more than {MOST_FILES} files or {} MiB: bind less",
                MOST_BYTES >> 20
            );
            return Err(error(path)(std::io::Error::other(text)));
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

/// Whether a path leads to a place below a folder, whose path has no links.
fn is_below(path: &Path, folder: &Path) -> bool {
    path.canonicalize().is_ok_and(|found| found.starts_with(folder))
}

fn read(path: &Path) -> Result<Vec<u8>, RunError> {
    experiment::input::read(path).map_err(error(path))
}

fn error(path: &Path) -> impl Fn(std::io::Error) -> RunError {
    move |source| RunError::File { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_that_lead_out_of_the_folder_are_not_copied() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        fs::create_dir_all(place.join("own/bound/deep")).unwrap();
        let own = place.join("own");
        let secret = place.join("secret");
        fs::write(&secret, "secret").unwrap();
        fs::write(own.join("bound/deep/file"), "own").unwrap();
        for (target, link) in [
            ("deep/file", "bound/link"),
            ("../../secret", "bound/out"),
            ("..", "bound/round"),
            ("deep", "bound/folder"),
            ("nothing", "bound/dangling"),
            ("../secret", "out"),
            ("bound/deep", "linked"),
        ] {
            symlink(target, own.join(link)).unwrap();
        }
        let binds = ["bound", "out", "linked", "none"];
        let binds = binds.map(|source| format!("'{source}:/{source}'")).join(", ");
        let file = own.join("f.clab.yml");
        let text = format!(
            "{{name: f, topology: {{defaults: {{kind: linux}}, nodes: {{a: {{binds: [{binds}]}}}}}}}}"
        );
        fs::write(&file, text).unwrap();
        let mut inputs = Inputs::default();
        inputs.topology(&file, "t", "t/f.clab.yml").unwrap();
        let full = |files: BTreeMap<String, Vec<u8>>| {
            let mut inputs = Inputs { files, ..Inputs::default() };
            let refused = inputs.tree(&own, &own.join("bound/deep"), "deep").unwrap_err();
            std::error::Error::source(&refused).unwrap().to_string()
        };
        let many = (0..MOST_FILES).map(|at| (at.to_string(), Vec::new())).collect();
        let long = [("long".to_owned(), vec![0; MOST_BYTES])].into();
        for text in [full(many), full(long)] {
            assert!(text.ends_with("10000 files or 256 MiB: bind less"), "{text}");
        }
        let names: Vec<&String> = inputs.files.keys().collect();
        assert_eq!(names, ["t/bound/deep/file", "t/bound/link", "t/f.clab.yml", "t/linked/file"]);
        // Of a file elsewhere, there is a checksum, as of any other one that is bound.
        assert_eq!(
            inputs.outside.keys().collect::<Vec<_>>(),
            [&own.join("out").display().to_string()]
        );
    }

    #[test]
    fn the_copies_are_an_experiment_that_repeats_itself() {
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/experiments");
        let read = |path: &Path| {
            let (experiment, text) = Experiment::load(path).unwrap();
            Inputs::read(&experiment, Source { path, text: &text }).unwrap()
        };
        let inputs = read(&shipped.join("entropy.toml"));
        let place = tempfile::tempdir().unwrap();
        for (name, bytes) in &inputs.files {
            let file = place.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, bytes).unwrap();
        }
        let file = place.path().join("experiment.toml");
        std::fs::write(&file, &inputs.text).unwrap();
        let again = read(&file);
        let checked = super::super::read(&file, true);
        assert_eq!(again, inputs);
        assert_eq!(checked.unwrap().0.topologies[0].file_name().unwrap(), "scaleacross.clab.yml");
        let sums = inputs.checksums();
        for name in ["minimal/minimal.clab.yml", "minimal/daemons", "wide16/wide16/leaf1.conf"] {
            assert!(sums.contains_key(&format!("topologies/{name}")), "{name}: {sums:?}");
        }
    }
}
