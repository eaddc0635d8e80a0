//! Reads a topology file and checks it.

use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};

use experiment::units::Name;

use super::error::TopologyError;
use super::expand::expand;
use super::model::{Endpoint, Topology};
use super::parse::INTERFACE_NAME_MAX;
use super::parse::Origin;
use super::{order, parse};

/// The most levels of a file. The parser's time grows with their square.
const MOST_LEVELS: usize = 256;

impl Topology {
    /// Reads a ContainerLab file, or the only one of a directory (`*.clab.yml`, `*.clab.yaml`).
    /// Variables are replaced from the environment.
    ///
    /// # Errors
    /// [`TopologyError`], with the place in the file.
    pub fn load(path: &Path) -> Result<Self, TopologyError> {
        Self::load_as(path, None)
    }

    /// [`Topology::load`] with another name of the lab than that of the file, if there is one.
    ///
    /// # Errors
    /// [`TopologyError`], with the place in the file.
    pub fn load_as(path: &Path, name: Option<&Name>) -> Result<Self, TopologyError> {
        let read_error = |source| TopologyError::Read { path: path.to_owned(), source };
        let path = &if path.is_dir() { only_file(path)? } else { path.to_owned() };
        let text = experiment::input::read_text(path).map_err(read_error)?;
        let absolute = path.canonicalize().map_err(read_error)?;
        let directory = absolute.parent().unwrap_or(Path::new("/"));
        let origin = Origin { directory, path: Some(&absolute), name };
        Self::parse_from(&text, origin, |name| std::env::var(name).ok())
    }

    /// Parses the text of a ContainerLab file. Relative paths start at `directory`, and `lookup`
    /// provides the environment variables.
    ///
    /// # Errors
    /// [`TopologyError`], with the place in the file.
    pub fn parse(
        text: &str,
        directory: &Path,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, TopologyError> {
        Self::parse_from(text, Origin { directory, path: None, name: None }, lookup)
    }

    fn parse_from(
        text: &str,
        origin: Origin,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, TopologyError> {
        let template = |line| TopologyError::Template { line };
        let formats = match origin.path.is_some_and(has_template_variables) {
            true => Formats::None,
            false => Formats::All,
        };
        if let Some(line) = template_line(text, formats) {
            return Err(template(line));
        }
        let parsed = Self::parse_expanded(&expand(text, lookup)?, origin);
        parsed.map_err(|error| template_line(text, Formats::Quoted).map_or(error, template))
    }

    fn parse_expanded(text: &str, origin: Origin) -> Result<Self, TopologyError> {
        if levels(text) > MOST_LEVELS {
            return Err(TopologyError::Levels { most: MOST_LEVELS });
        }
        let mut file = parse::read(text)?;
        file.apply_merge()?;
        let topology = parse::topology(&file, origin)?;
        check(&topology)?;
        Ok(topology)
    }
}

/// The topology file of a directory.
fn only_file(directory: &Path) -> Result<PathBuf, TopologyError> {
    let read_error = |source| TopologyError::Read { path: directory.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(read_error)? {
        let name = entry.map_err(read_error)?.file_name();
        let text = name.to_string_lossy();
        if text.ends_with(".clab.yml") || text.ends_with(".clab.yaml") {
            found.push(directory.join(&name));
        }
    }
    match found.pop() {
        Some(only) if found.is_empty() => Ok(only),
        other => Err(TopologyError::NotOne {
            directory: directory.to_owned(),
            count: found.len() + usize::from(other.is_some()),
        }),
    }
}

/// At least as many levels as the text of a file has within lines: open brackets, also those in
/// strings, and sequences or keys that begin where others begin.
fn levels(text: &str) -> usize {
    let mut open = 0usize;
    let mut most = 0;
    for line in text.lines() {
        let begun = line.split(' ').take_while(|word| matches!(*word, "" | "-" | "?"));
        let begun = begun.filter(|word| !word.is_empty()).count();
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => open += 1,
                b']' | b'}' => open = open.saturating_sub(1),
                _ => {}
            }
            most = most.max(open + begun);
        }
    }
    most
}

/// Which actions like `{{.Names}}` and `{{json .}}` are rather formats for commands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Formats {
    None,
    Quoted,
    All,
}

/// The first line with an action of Go templates, `{{ … }}`, outside of comments.
fn template_line(text: &str, formats: Formats) -> Option<usize> {
    let is_format = |action: &str| {
        let action = action.trim_start_matches(['-', ' ']);
        action.starts_with(['.', '}']) || action.starts_with("json ")
    };
    let has_action = |line: &str| {
        let (mut quote, mut before) = (None, ' ');
        for (at, c) in line.char_indices() {
            match (quote, c) {
                (None, '\'' | '"') => quote = Some(c),
                (Some(open), c) if c == open => quote = None,
                (None, '#') if before.is_whitespace() => return false,
                (_, '{') if before == '{' => {
                    let may_be_one =
                        formats == Formats::All || formats == Formats::Quoted && quote.is_some();
                    if !(may_be_one && is_format(line.get(at + 1..).unwrap_or_default())) {
                        return true;
                    }
                }
                _ => {}
            }
            before = c;
        }
        false
    };
    text.lines().position(has_action).map(|index| index + 1)
}

/// Whether there is a file of variables for this one as a template, as `fabric.clab_vars.yml` for
/// `fabric.clab.yml`.
fn has_template_variables(file: &Path) -> bool {
    let Some((directory, stem)) = file.parent().zip(file.file_stem()) else { return false };
    let begin = format!("{}_vars.", stem.to_string_lossy());
    let is_one = |entry: io::Result<DirEntry>| {
        let name = entry.map(|entry| entry.file_name().to_string_lossy().into_owned());
        name.is_ok_and(|name| {
            let ends = [".yml", ".yaml", ".json"];
            name.starts_with(&begin) && ends.iter().any(|end| name.ends_with(end))
        })
    };
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.any(is_one))
}

/// Checks that links, shared namespaces and stages refer to existing nodes.
fn check(topology: &Topology) -> Result<(), TopologyError> {
    for (name, node) in &topology.nodes {
        let Some(shared) = &node.shares else { continue };
        let place = format!("topology.nodes.{name}.network-mode");
        match topology.nodes.get(shared) {
            None => return Err(TopologyError::NoSuchNode { place, node: shared.clone() }),
            Some(target) if target.shares.is_some() => {
                return Err(TopologyError::Unsupported {
                    place,
                    why: "the shared node shares another's",
                });
            }
            Some(_) => {}
        }
    }
    order::check(topology)?;
    check_names(topology)
}

/// Checks that links end at existing nodes, with names that the kernel accepts, each once.
fn check_names(topology: &Topology) -> Result<(), TopologyError> {
    let mut all = Vec::new();
    for (index, link) in topology.links.iter().enumerate() {
        let ends = link.ends.iter().zip(&link.settings);
        all.extend(ends.map(|end| (format!("topology.links[{index}]"), end)));
    }
    let half_links = topology.half_links.iter();
    all.extend(
        half_links.map(|link| (format!("the link of {}", link.end), (&link.end, &link.settings))),
    );
    let mut names = BTreeSet::new();
    for (place, (Endpoint { node, interface }, settings)) in all {
        if !topology.nodes.contains_key(node) {
            return Err(TopologyError::NoSuchNode { place, node: node.clone() });
        }
        if is_odd(interface) {
            let expected = "an interface name of 1 to 127 characters";
            return Err(TopologyError::Expected { place, expected });
        }
        for name in [Some(interface), settings.alternative.as_ref()].into_iter().flatten() {
            if !names.insert((node, name)) {
                return Err(TopologyError::Twice { place, interface: format!("{node}:{name}") });
            }
        }
    }
    match topology.circuits().flatten().find(|end| is_odd(&end.interface)) {
        Some(end) => Err(TopologyError::Unsupported {
            place: format!("topology.nodes.{}.cmd: {}", end.node, end.interface),
            why: "interfaces of lab wan have names of at most 15 characters, without '/'",
        }),
        None => Ok(()),
    }
}

/// Whether the kernel does not accept this name of an interface (`dev_valid_name()`).
fn is_odd(name: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || c == ':' || c == '/';
    name.contains(is_odd) || matches!(name, "" | "." | "..") || name.len() > INTERFACE_NAME_MAX
}
