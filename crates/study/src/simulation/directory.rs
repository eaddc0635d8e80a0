//! The directory with the results of a simulation.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use experiment::record::parse_lines;
use sim::result::Line;

use super::{Key, Plan, Row, Shard, SimulationError};
use fabric::owner::Folder;

/// The copy of the file.
pub(super) const FILE: &str = "simulation.toml";
/// The lines of all runs.
pub(super) const RESULTS: &str = "results.jsonl";
const SUMMARY: &str = "summary.json";
const REPORT: &str = "report.html";
/// How often another shard is waited for, which writes the inputs.
const ATTEMPTS: usize = 20;

/// The directory.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    folder: Folder,
    /// The name of the file to which lines are added, and that file once it is open.
    name: String,
    file: Option<File>,
    lines: Vec<Line>,
}

fn error(path: &Path) -> impl Fn(io::Error) -> SimulationError {
    move |source| SimulationError::File { path: path.to_owned(), source }
}

/// The lines of the results in a directory.
pub(super) fn results(path: &Path) -> Result<Vec<Line>, SimulationError> {
    let folder = Folder::existing(path).map_err(error(path))?;
    Ok(read(&folder, path, RESULTS)?.0)
}

/// The whole lines of a file, and their length. A last line that was cut off is not among them.
fn read(folder: &Folder, path: &Path, name: &str) -> Result<(Vec<Line>, usize), SimulationError> {
    let path = path.join(name);
    let text = match folder.read_text(name) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => String::new(),
        result => result.map_err(error(&path))?,
    };
    parse_lines(&text).map_err(|(line, source)| SimulationError::Line { path, line, source })
}

impl Directory {
    /// Opens or creates the directory. Results that are there must be of the same file.
    pub(super) fn open(
        path: &Path,
        plan: &Plan,
        shard: Option<Shard>,
    ) -> Result<Self, SimulationError> {
        let folder = Folder::open(path).map_err(error(path))?;
        put_inputs(&folder, path, plan)?;
        let name = match shard {
            Some(of) => format!("results-{}-of-{}.jsonl", of.index(), of.count()),
            None => RESULTS.to_owned(),
        };
        let place = path.join(&name);
        let (lines, whole) = read(&folder, path, &name)?;
        let mut file = None;
        if place.exists() {
            // The program was ended while it wrote the last line.
            let open = folder.append(&name).map_err(error(&place))?;
            open.set_len(whole as u64).map_err(error(&place))?;
            file = Some(open);
        }
        Ok(Self { path: path.to_owned(), folder, name, file, lines })
    }

    /// The lines of all shards. Equal lines of a run count once.
    pub(super) fn merge(path: &Path) -> Result<Self, SimulationError> {
        let mut known = BTreeMap::<Key, Line>::new();
        let folder = Folder::open(path).map_err(error(path))?;
        let entries = std::fs::read_dir(path).map_err(error(path))?;
        let mut files: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("results") && name.ends_with(".jsonl"))
            .collect();
        files.sort();
        for file in files {
            for line in read(&folder, path, &file)?.0 {
                let earlier = known.entry(Key::of(&line)).or_insert_with(|| line.clone());
                if !earlier.agrees(&line) {
                    return Err(SimulationError::Contradiction { run: name(&Key::of(&line)) });
                }
            }
        }
        let lines = known.into_values().collect();
        Ok(Self { path: path.to_owned(), folder, name: RESULTS.to_owned(), file: None, lines })
    }

    /// The complete runs.
    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Adds a run.
    pub(super) fn append(&mut self, line: Line) -> Result<(), SimulationError> {
        let place = self.path.join(&self.name);
        let mut text = serde_json::to_vec(&line).map_err(|source| error(&place)(source.into()))?;
        text.push(b'\n');
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.folder.append(&self.name).map_err(error(&place))?,
        };
        file.write_all(&text).map_err(error(&place))?;
        self.file = Some(file);
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
                .map_err(|source| error(&self.path.join(RESULTS))(source.into()))?;
            text.push(b'\n');
        }
        self.write(RESULTS, &text)
    }

    /// Writes the summary and the page, and gives the page's place.
    pub(super) fn write_results(
        &self,
        summary: &[Row],
        page: &str,
    ) -> Result<PathBuf, SimulationError> {
        let text = serde_json::to_vec_pretty(summary)
            .map_err(|source| error(&self.path.join(SUMMARY))(source.into()))?;
        self.write(SUMMARY, &text)?;
        self.write(REPORT, page.as_bytes())?;
        Ok(self.path.join(REPORT))
    }

    fn write(&self, name: &str, text: &[u8]) -> Result<(), SimulationError> {
        self.folder.write(Path::new(name), text).map_err(error(&self.path.join(name)))
    }
}

/// Copies the file, its traffic matrices and topologies, so that they repeat the simulation. Several shards may
/// do that at once.
fn put_inputs(folder: &Folder, path: &Path, plan: &Plan) -> Result<(), SimulationError> {
    let copy = path.join(FILE);
    let mut attempt = 0;
    loop {
        attempt += 1;
        let failed = match folder.read(FILE) {
            Ok(text) if text == plan.text.as_bytes() => return Ok(()),
            // Another shard may still be writing.
            Ok(text) if attempt < ATTEMPTS && plan.text.as_bytes().starts_with(&text) => None,
            Ok(_) => return Err(SimulationError::Other { path: path.to_owned() }),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
                copy_inputs(folder, plan).err()
            }
            Err(source) => return Err(error(&copy)(source)),
        };
        match failed {
            Some(source) if attempt == ATTEMPTS => return Err(source),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn copy_inputs(folder: &Folder, plan: &Plan) -> Result<(), SimulationError> {
    for file in plan.files().into_iter().filter(|file| file.is_relative()) {
        let from = plan.directory.join(file);
        let bytes = std::fs::read(&from).map_err(error(&from))?;
        folder.write(file, &bytes).map_err(error(&from))?;
    }
    folder.write(Path::new(FILE), plan.text.as_bytes()).map_err(error(Path::new(FILE)))
}

/// A run in words.
pub(super) fn name(key: &Key) -> String {
    format!("{} {} seed {}", key.case, key.scheme, key.seed)
}
