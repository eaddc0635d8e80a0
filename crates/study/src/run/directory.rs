//! The directory with the results. Runs are appended one by one, so that a killed program loses
//! none.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use experiment::compare::Results;
use experiment::plan::Key;
use experiment::plot::Size;
use experiment::record::{Manifest, date, parse_lines};
use experiment::report::Report;
use experiment::verdict::{headline, verdicts};
use experiment::{Experiment, Run, Summary, table};

use super::inputs::Inputs;
use super::outcome::Outcome;
use crate::error::RunError;
use fabric::owner::Folder;

const RUNS: &str = "runs.jsonl";
const MANIFEST: &str = "manifest.json";
pub(super) const EXPERIMENT: &str = "experiment.toml";
const REPORT: &str = "report.html";

/// Reads the results of an experiment.
///
/// # Errors
/// [`RunError`] if the directory has none, or they are damaged.
pub fn load(path: &Path) -> Result<Results, RunError> {
    let folder = Folder::existing(path).map_err(error(path))?;
    let read = |name: &str| folder.read_text(name).map_err(error(&path.join(name)));
    let experiment = Experiment::parse(&path.join(EXPERIMENT), &read(EXPERIMENT)?)?;
    let file = path.join(MANIFEST);
    let text = read(MANIFEST)?;
    let manifest: Manifest =
        serde_json::from_str(&text).map_err(|source| error(&file)(source.into()))?;
    let experiment = experiment.form(manifest.quick);
    let file = path.join(RUNS);
    let text = read(RUNS)?;
    let (runs, _) =
        parse_lines(&text).map_err(|(line, source)| RunError::Line { path: file, line, source })?;
    Ok(Results { experiment, manifest, runs })
}

/// The files of a directory that repeat its experiment.
pub(super) fn inputs(path: &Path, manifest: &Manifest) -> Result<Inputs, RunError> {
    let folder = Folder::existing(path).map_err(error(path))?;
    let text = folder.read_text(EXPERIMENT).map_err(error(&path.join(EXPERIMENT)))?;
    let mut inputs = Inputs { text, ..Inputs::default() };
    for (name, sum) in &manifest.files {
        // Others are programs and files of the machine.
        let is_own = Path::new(name).is_relative();
        let found = if is_own { read(&folder, path, name)? } else { None };
        match found {
            Some(bytes) => _ = inputs.files.insert(name.clone(), bytes),
            None => _ = inputs.outside.insert(name.clone(), sum.clone()),
        }
    }
    Ok(inputs)
}

/// The directory of an experiment.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    folder: Folder,
    lines: File,
    runs: Vec<Run>,
    keys: HashSet<Key>,
}

impl Directory {
    /// Opens or creates the directory. Runs that are there must be of the same experiment, commit
    /// and machine.
    pub(super) fn open(
        path: &Path,
        manifest: &Manifest,
        inputs: &Inputs,
    ) -> Result<Self, RunError> {
        let folder = Folder::open(path).map_err(error(path))?;
        let put = || put(&folder, path, manifest, inputs);
        match read(&folder, path, MANIFEST)? {
            Some(bytes) => {
                let earlier: Manifest = serde_json::from_slice(&bytes)
                    .map_err(|_| RunError::NotEmpty(path.to_owned()))?;
                let differences = earlier.differences(manifest);
                match differences.is_empty() {
                    true => {}
                    // There is nothing to mix with.
                    false if read(&folder, path, RUNS)?.is_none_or(|runs| runs.is_empty()) => {
                        put()?
                    }
                    false => return Err(RunError::Other { path: path.to_owned(), differences }),
                }
            }
            None if folder.is_empty().map_err(error(path))? => put()?,
            None => return Err(RunError::NotEmpty(path.to_owned())),
        }
        let file = path.join(RUNS);
        let mut lines = folder.append(RUNS).map_err(error(&file))?;
        let mut text = String::new();
        lines.read_to_string(&mut text).map_err(error(&file))?;
        let (runs, whole) = parse_lines::<Run>(&text).map_err(|(line, source)| RunError::Line {
            path: file.clone(),
            line,
            source,
        })?;
        // The program was ended while it wrote the last line.
        lines.set_len(whole as u64).map_err(error(&file))?;
        let keys = runs.iter().map(|run| run.key.clone()).collect();
        Ok(Self { path: path.to_owned(), folder, lines, runs, keys })
    }

    /// The complete runs.
    pub(super) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Whether a run is complete.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// Adds a run to the file.
    pub(super) fn append(&mut self, run: Run) -> Result<(), RunError> {
        let path = self.path.join(RUNS);
        let mut line = serde_json::to_vec(&run).map_err(|source| error(&path)(source.into()))?;
        line.push(b'\n');
        self.lines.write_all(&line).map_err(error(&path))?;
        self.keys.insert(run.key.clone());
        self.runs.push(run);
        Ok(())
    }

    /// Writes the tables, the charts and the page.
    pub(super) fn write_results(
        &self,
        experiment: &Experiment,
        manifest: &Manifest,
        command: &str,
        complete: bool,
    ) -> Result<Outcome, RunError> {
        let summary = Summary::new(experiment, &self.runs);
        let first = self.runs.iter().map(|run| run.unix_time).min().unwrap_or_default();
        let report = Report {
            experiment,
            summary: &summary,
            manifest,
            date: date(first),
            command: command.to_owned(),
            complete,
        };
        let page = self.path.join(REPORT);
        let put = |name: &str, text: String| write(&self.folder, &self.path, name, text.as_bytes());
        put("summary.csv", table::summary(&summary))?;
        put("runs.csv", table::runs(&self.runs))?;
        put("links.csv", table::links(&self.runs))?;
        if self.runs.iter().any(|run| !run.pairs.is_empty()) {
            put("queue-pairs.csv", table::queue_pairs(&self.runs))?;
            put("moves.csv", table::moves(&self.runs))?;
            put("timeline.csv", table::timeline(&self.runs))?;
        }
        if self.runs.iter().any(|run| run.workload.is_some()) {
            put("iterations.csv", table::iterations(&self.runs))?;
        }
        if !experiment.jobs.is_empty() {
            put("jobs.csv", table::jobs(&self.runs))?;
        }
        for chart in report.charts() {
            put(&chart.file, chart.chart.file(Size::Page))?;
        }
        put(REPORT, report.page())?;
        let verdicts = verdicts(experiment, &summary);
        let headline = headline(experiment, &summary);
        Ok(Outcome { summary, headline, verdicts, report: page })
    }
}

fn error(path: &Path) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::File { path: path.to_owned(), source }
}

/// The bytes of a file; `None` if it is not there.
fn read(folder: &Folder, path: &Path, name: &str) -> Result<Option<Vec<u8>>, RunError> {
    match folder.read(name) {
        Err(found) if found.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some).map_err(error(&path.join(name))),
    }
}

fn write(folder: &Folder, path: &Path, name: &str, bytes: &[u8]) -> Result<(), RunError> {
    folder.write(Path::new(name), bytes).map_err(error(&path.join(name)))
}

/// Writes the files that repeat the experiment, and then the manifest.
fn put(folder: &Folder, path: &Path, manifest: &Manifest, inputs: &Inputs) -> Result<(), RunError> {
    write(folder, path, EXPERIMENT, inputs.text.as_bytes())?;
    for (name, bytes) in &inputs.files {
        write(folder, path, name, bytes)?;
    }
    let manifest = serde_json::to_vec_pretty(manifest).unwrap_or_default();
    write(folder, path, MANIFEST, &manifest)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::run::tests::run;

    fn manifest() -> Manifest {
        serde_json::from_value(serde_json::json!({
            "experiment": "x", "quick": false, "file": "1", "commit": "abc", "frr": "8.4.4",
            "vtepd": "0.1.0", "programs": { "vtepd": "2" },
            "machine": {
                "kernel": "6.1", "cpu_model": "A", "cpus": 2, "memory_mib": 4096, "id": "3"
            },
        }))
        .unwrap()
    }

    fn inputs() -> Inputs {
        let files = [("topologies/a/x.conf".to_owned(), b"hostname a".to_vec())].into();
        Inputs { text: "name".into(), files, ..Inputs::default() }
    }

    #[test]
    fn a_directory_without_results_can_be_used_for_the_mended_file() {
        let place = tempfile::tempdir().unwrap();
        drop(Directory::open(place.path(), &manifest(), &inputs()).unwrap());
        let mended = Manifest { file: "2".into(), ..manifest() };
        let new = Inputs { text: "mended".into(), ..inputs() };
        Directory::open(place.path(), &mended, &new).unwrap().append(run(0, 2)).unwrap();
        let read = |name: &str| fs::read_to_string(place.path().join(name)).unwrap();
        assert_eq!(
            (read(EXPERIMENT).as_str(), read("topologies/a/x.conf").as_str()),
            ("mended", "hostname a")
        );
        assert!(read(MANIFEST).contains("\"file\": \"2\""));
        let third = Manifest { file: "3".into(), ..manifest() };
        let refused = Directory::open(place.path(), &third, &inputs()).unwrap_err();
        assert!(matches!(refused, RunError::Other { .. }), "{refused}");
    }

    #[test]
    fn runs_of_another_commit_or_machine_do_not_mix() {
        let place = tempfile::tempdir().unwrap();
        Directory::open(place.path(), &manifest(), &inputs()).unwrap().append(run(0, 2)).unwrap();
        let refused = |manifest: &Manifest| match Directory::open(place.path(), manifest, &inputs())
        {
            Err(RunError::Other { differences, .. }) => differences.join(", "),
            other => panic!("{other:?}"),
        };
        let other_commit = Manifest { commit: "def".into(), ..manifest() };
        assert_eq!(refused(&other_commit), "commit: \"abc\" there, \"def\" now");
        let other_build =
            Manifest { programs: [("vtepd".to_owned(), "4".to_owned())].into(), ..manifest() };
        assert!(refused(&other_build).starts_with("programs vtepd: "));
        let mut other_machine = manifest();
        other_machine.machine.id = "5".into();
        assert!(refused(&other_machine).starts_with("machine id: "));
        assert!(refused(&Manifest { quick: true, ..manifest() }).starts_with("quick: "));

        let again = Directory::open(place.path(), &manifest(), &inputs()).unwrap();
        assert_eq!(again.runs(), [run(0, 2)], "the results so far are kept");
        assert!(again.has(&run(0, 2).key) && !again.has(&run(1, 2).key));
    }

    #[test]
    fn a_run_that_was_cut_off_is_measured_again() {
        let place = tempfile::tempdir().unwrap();
        Directory::open(place.path(), &manifest(), &inputs()).unwrap().append(run(0, 2)).unwrap();
        let file = place.path().join(RUNS);
        let whole = fs::read_to_string(&file).unwrap();
        let cut = format!("{whole}{}", whole.get(..40).unwrap());
        fs::write(&file, cut).unwrap();

        let mut again = Directory::open(place.path(), &manifest(), &inputs()).unwrap();
        assert_eq!(again.runs(), [run(0, 2)]);
        again.append(run(1, 2)).unwrap();
        let runs = fs::read_to_string(&file).unwrap();
        assert_eq!(parse_lines::<Run>(&runs).unwrap().0, [run(0, 2), run(1, 2)]);

        fs::write(&file, format!("{whole}no run\n{whole}")).unwrap();
        let damaged = Directory::open(place.path(), &manifest(), &inputs()).unwrap_err();
        assert!(matches!(damaged, RunError::Line { line: 2, .. }), "{damaged}");
    }

    #[test]
    fn a_directory_with_other_files_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("thesis.tex"), "x").unwrap();
        let refused = Directory::open(place.path(), &manifest(), &inputs()).unwrap_err();
        assert!(matches!(refused, RunError::NotEmpty(_)), "{refused}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
