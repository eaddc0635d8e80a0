//! The directory with the results of a simulation.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use sim::result::Line;

use super::{Key, Plan, Row, Shard, SimulationError};
use crate::owner::give_to_user;

/// The copy of the file.
pub(super) const FILE: &str = "simulation.toml";
/// The lines of all runs.
pub(super) const RESULTS: &str = "results.jsonl";
const SUMMARY: &str = "summary.json";
const REPORT: &str = "report.html";

/// The directory.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// The file to which lines are added.
    file: PathBuf,
    lines: Vec<Line>,
}

fn error(path: &Path) -> impl Fn(std::io::Error) -> SimulationError {
    move |source| SimulationError::File { path: path.to_owned(), source }
}

/// Writes a file under another name first, so that shards on other machines see it whole.
fn write(path: &Path, text: &[u8]) -> Result<(), SimulationError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = fs::write(&new, text)
        .and_then(|()| give_to_user(&new))
        .and_then(|()| fs::rename(&new, path));
    written.map_err(|source| {
        // It may not exist.
        let _ = fs::remove_file(&new);
        error(path)(source)
    })
}

/// The whole lines of a file, and their length. A last line that was cut off is not among them.
pub(super) fn read(path: &Path) -> Result<(Vec<Line>, usize), SimulationError> {
    let text = match fs::read_to_string(path) {
        Err(missing) if missing.kind() == std::io::ErrorKind::NotFound => String::new(),
        result => result.map_err(error(path))?,
    };
    let whole = text.rfind('\n').map_or(0, |at| at + 1);
    let lines = text.get(..whole).unwrap_or_default().lines().zip(1..);
    let line = |(text, line): (&str, usize)| {
        serde_json::from_str::<Line>(text).map_err(|source| SimulationError::Line {
            path: path.to_owned(),
            line,
            source,
        })
    };
    Ok((lines.map(line).collect::<Result<_, _>>()?, whole))
}

impl Directory {
    /// Opens or creates the directory. Results that are there must be of the same file.
    pub(super) fn open(
        path: &Path,
        plan: &Plan,
        shard: Option<Shard>,
    ) -> Result<Self, SimulationError> {
        if !path.exists() {
            fs::create_dir_all(path).and_then(|()| give_to_user(path)).map_err(error(path))?;
        }
        let copy = path.join(FILE);
        match fs::read_to_string(&copy) {
            Ok(text) if text != plan.text => {
                return Err(SimulationError::Other { path: path.to_owned() });
            }
            Ok(_) => {}
            Err(_) => Self::put_inputs(path, plan)?,
        }
        let file = path.join(match shard {
            Some(Shard { index, count }) => format!("results-{index}-of-{count}.jsonl"),
            None => RESULTS.to_owned(),
        });
        let (lines, whole) = read(&file)?;
        if file.exists() {
            // The program was ended while it wrote the last line.
            let open = File::options().write(true).open(&file);
            open.and_then(|open| open.set_len(whole as u64)).map_err(error(&file))?;
        }
        Ok(Self { path: path.to_owned(), file, lines })
    }

    /// Copies the file and its traffic matrices, so that they repeat the simulation.
    fn put_inputs(path: &Path, plan: &Plan) -> Result<(), SimulationError> {
        for matrix in plan.matrices().into_iter().filter(|matrix| matrix.is_relative()) {
            let from = plan.directory.join(matrix);
            let to = path.join(matrix);
            let bytes = fs::read(&from).map_err(error(&from))?;
            let folder = to.parent().unwrap_or(path);
            fs::create_dir_all(folder).map_err(error(folder))?;
            write(&to, &bytes)?;
        }
        write(&path.join(FILE), plan.text.as_bytes())
    }

    /// The lines of all shards. Equal lines of a run count once.
    pub(super) fn merge(path: &Path) -> Result<Self, SimulationError> {
        let mut known = BTreeMap::<Key, Line>::new();
        let entries = fs::read_dir(path).map_err(error(path))?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                name.starts_with("results") && name.ends_with(".jsonl")
            })
            .collect();
        files.sort();
        for file in files {
            for line in read(&file)?.0 {
                let earlier = known.entry(Key::of(&line)).or_insert_with(|| line.clone());
                if !earlier.agrees(&line) {
                    return Err(SimulationError::Contradiction { run: name(&Key::of(&line)) });
                }
            }
        }
        let lines = known.into_values().collect();
        Ok(Self { path: path.to_owned(), file: path.join(RESULTS), lines })
    }

    /// The complete runs.
    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Adds a run.
    pub(super) fn append(&mut self, line: Line) -> Result<(), SimulationError> {
        let mut text =
            serde_json::to_vec(&line).map_err(|source| error(&self.file)(source.into()))?;
        text.push(b'\n');
        let new = !self.file.exists();
        let file = File::options().append(true).create(true).open(&self.file);
        file.and_then(|mut file| file.write_all(&text)).map_err(error(&self.file))?;
        if new {
            give_to_user(&self.file).map_err(error(&self.file))?;
        }
        self.lines.push(line);
        Ok(())
    }

    /// Puts the lines into this order, also in the file. All must be there.
    pub(super) fn sort(&mut self, order: &[Key]) -> Result<(), SimulationError> {
        let mut known: BTreeMap<Key, Line> =
            self.lines.drain(..).map(|line| (Key::of(&line), line)).collect();
        let mut missing = Vec::new();
        for key in order {
            match known.remove(key) {
                Some(line) => self.lines.push(line),
                None => missing.push(key),
            }
        }
        if let Some(first) = missing.first() {
            return Err(SimulationError::Missing { number: missing.len(), run: name(first) });
        }
        let mut text = Vec::new();
        for line in &self.lines {
            serde_json::to_writer(&mut text, line)
                .map_err(|source| error(&self.file)(source.into()))?;
            text.push(b'\n');
        }
        write(&self.path.join(RESULTS), &text)
    }

    /// Writes the summary and the page, and gives the page's place.
    pub(super) fn write_results(
        &self,
        summary: &[Row],
        page: &str,
    ) -> Result<PathBuf, SimulationError> {
        let file = self.path.join(SUMMARY);
        let text =
            serde_json::to_vec_pretty(summary).map_err(|source| error(&file)(source.into()))?;
        write(&file, &text)?;
        let file = self.path.join(REPORT);
        write(&file, page.as_bytes())?;
        Ok(file)
    }
}

fn name(key: &Key) -> String {
    format!("{} {} seed {}", key.case, key.scheme, key.seed)
}
