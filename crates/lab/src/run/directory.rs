//! The directory with the results. Runs are appended one by one, so that a killed program loses
//! none.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use experiment::compare::Results;
use experiment::plan::Key;
use experiment::record::{Manifest, date};
use experiment::report::Report;
use experiment::{Experiment, Run, Summary, table};

use super::RunError;
use crate::owner::give_to_user;

const RUNS: &str = "runs.jsonl";
const MANIFEST: &str = "manifest.json";
const EXPERIMENT: &str = "experiment.toml";
const REPORT: &str = "report.html";

/// Reads the results of an experiment.
///
/// # Errors
/// [`RunError`] if the directory has none, or they are damaged.
pub fn load(path: &Path) -> Result<Results, RunError> {
    let (experiment, _) = Experiment::load(&path.join(EXPERIMENT))?;
    let file = path.join(MANIFEST);
    let bytes = fs::read(&file).map_err(error(&file))?;
    let manifest: Manifest =
        serde_json::from_slice(&bytes).map_err(|source| error(&file)(source.into()))?;
    let experiment = if manifest.quick { experiment.quick() } else { experiment };
    let file = path.join(RUNS);
    let text = fs::read_to_string(&file).map_err(error(&file))?;
    let (runs, _) = Run::parse_lines(&text).map_err(|(line, source)| RunError::Line {
        path: file,
        line,
        source,
    })?;
    Ok(Results { experiment, manifest, runs })
}

/// The directory of an experiment.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    lines: File,
    runs: Vec<Run>,
    keys: HashSet<Key>,
}

impl Directory {
    /// Opens or creates the directory. Runs that are there must be of the same experiment, commit
    /// and machine.
    pub(super) fn open(path: &Path, manifest: &Manifest, text: &str) -> Result<Self, RunError> {
        if !path.exists() {
            fs::create_dir_all(path).and_then(|()| give_to_user(path)).map_err(error(path))?;
        }
        let file = path.join(MANIFEST);
        match fs::read(&file) {
            Ok(bytes) => {
                let earlier: Manifest = serde_json::from_slice(&bytes)
                    .map_err(|_| RunError::NotEmpty(path.to_owned()))?;
                let differences = earlier.differences(manifest);
                if !differences.is_empty() {
                    return Err(RunError::Other { path: path.to_owned(), differences });
                }
            }
            Err(_) if is_empty(path)? => {
                write(&path.join(EXPERIMENT), text.as_bytes())?;
                let manifest = serde_json::to_vec_pretty(manifest).unwrap_or_default();
                write(&file, &manifest)?;
            }
            Err(_) => return Err(RunError::NotEmpty(path.to_owned())),
        }
        let file = path.join(RUNS);
        let lines = File::options()
            .read(true)
            .append(true)
            .create(true)
            .open(&file)
            .map_err(error(&file))?;
        let text = fs::read_to_string(&file).map_err(error(&file))?;
        let (runs, whole) = Run::parse_lines(&text).map_err(|(line, source)| RunError::Line {
            path: file.clone(),
            line,
            source,
        })?;
        give_to_user(&file).map_err(error(&file))?;
        // The program was ended while it wrote the last line.
        lines.set_len(whole as u64).map_err(error(&file))?;
        let keys = runs.iter().map(|run| run.key.clone()).collect();
        Ok(Self { path: path.to_owned(), lines, runs, keys })
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
    ) -> Result<(Summary, PathBuf), RunError> {
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
        let put = |name: &str, text: String| write(&self.path.join(name), text.as_bytes());
        put("summary.csv", table::summary(&summary))?;
        put("runs.csv", table::runs(&self.runs))?;
        put("links.csv", table::links(&self.runs))?;
        if !experiment.jobs.is_empty() {
            put("jobs.csv", table::jobs(&self.runs))?;
        }
        for chart in report.charts() {
            put(&chart.file, chart.chart.file())?;
        }
        put(REPORT, report.page())?;
        Ok((summary, page))
    }
}

fn error(path: &Path) -> impl Fn(std::io::Error) -> RunError {
    move |source| RunError::File { path: path.to_owned(), source }
}

fn is_empty(path: &Path) -> Result<bool, RunError> {
    Ok(fs::read_dir(path).map_err(error(path))?.next().is_none())
}

/// Writes a file under another name first, so that a full disk leaves the earlier one.
fn write(path: &Path, text: &[u8]) -> Result<(), RunError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let written = fs::write(&new, text)
        .and_then(|()| give_to_user(&new))
        .and_then(|()| fs::rename(&new, path));
    written.map_err(|source| {
        // It may not exist.
        let _ = fs::remove_file(&new);
        error(path)(source)
    })
}
