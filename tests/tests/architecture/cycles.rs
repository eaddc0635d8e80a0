//! Files of a crate that use each other in a circle.

use std::collections::{BTreeMap, BTreeSet};

use crate::sources;

/// The most files that may form a circle.
const LARGEST: usize = 3;

/// A module's path within its crate. The crate's root is empty.
type Path = Vec<String>;

/// What a module imports or calls.
#[derive(Debug, Default)]
struct Imports {
    /// Full paths of its private imports, and of what it names by a path.
    uses: Vec<Path>,
    /// Full paths of what it exports again, by name.
    exports: BTreeMap<String, Path>,
}

type Modules = BTreeMap<Path, Imports>;

fn segments(path: &str) -> Path {
    path.split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

/// The paths of a `use` tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn flatten(tree: &str) -> Vec<String> {
    let Some((head, rest)) = tree.split_once('{') else {
        return vec![tree.trim().split(" as ").next().unwrap_or_default().to_owned()];
    };
    let inner = &rest[..rest.rfind('}').unwrap_or_else(|| panic!("{tree}"))];
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in inner.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c == ',' && depth == 0 {
            parts.push(&inner[start..at]);
            start = at + 1;
        }
    }
    parts.push(&inner[start..]);
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(flatten).map(|part| format!("{}{part}", head.trim())).collect()
}

/// The `use` statements at the top level of a file, with their visibility, and its other lines.
/// rustfmt has put them at the start of a line.
fn statements(text: &str) -> (Vec<(bool, String)>, Vec<&str>) {
    let (mut found, mut others, mut current) = (Vec::new(), Vec::new(), String::new());
    for line in text.lines().map(|line| line.split("//").next().unwrap_or_default().trim_end()) {
        let starts = line.starts_with("use ") || line.starts_with("pub") && line.contains(" use ");
        if starts || !current.is_empty() {
            current += line;
        } else {
            others.push(line);
        }
        if let Some(statement) = current.strip_suffix(';') {
            let (visibility, tree) = statement.split_once("use ").expect("a use statement");
            found.push((!visibility.is_empty(), tree.to_owned()));
            current.clear();
        }
    }
    (found, others)
}

/// The paths in lines of code, such as that of a call: `check::keys(file)` is `check::keys`. What is
/// compiled for tests only is left out.
fn paths(lines: &[&str]) -> Vec<String> {
    let code = lines.iter().take_while(|line| **line != "#[cfg(test)]");
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.flat_map(|line| line.split(move |c| !is_part(c)));
    let of_path = words.filter(|word| word.contains("::") && !word.starts_with(':'));
    of_path.map(|word| word.trim_end_matches(':').to_owned()).collect()
}

/// The imports at the top level of a file, and the paths in its code, from within its crate.
fn imports(module: &Path, text: &str, submodules: &BTreeSet<Path>) -> Imports {
    let mut found = Imports::default();
    let (statements, others) = statements(text);
    let mut all: Vec<(bool, Vec<String>)> =
        statements.iter().map(|(public, tree)| (*public, flatten(tree))).collect();
    all.push((false, paths(&others)));
    for (public, paths) in all {
        for path in paths {
            let path = segments(&path);
            let Some(first) = path.first() else { continue };
            let full: Path = match first.as_str() {
                "crate" => path[1..].to_vec(),
                "self" => [module, &path[1..]].concat(),
                "super" => {
                    let up = path.iter().take_while(|part| *part == "super").count();
                    [&module[..module.len().saturating_sub(up)], &path[up..]].concat()
                }
                _ => {
                    let child = [module.as_slice(), std::slice::from_ref(first)].concat();
                    if !submodules.contains(&child) {
                        continue;
                    }
                    [module.as_slice(), &path].concat()
                }
            };
            if public {
                found.exports.insert(full.last().cloned().unwrap_or_default(), full);
            } else {
                found.uses.push(full);
            }
        }
    }
    found
}

/// The modules of a crate, from its files.
fn modules(files: &[(String, String)]) -> Modules {
    let name = |path: &str| {
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        let path: Path = path.split('/').map(str::to_owned).collect();
        if path == ["lib"] || path == ["main"] { Path::new() } else { path }
    };
    let names: BTreeSet<Path> = files.iter().map(|(path, _)| name(path)).collect();
    files.iter().map(|(path, text)| (name(path), imports(&name(path), text, &names))).collect()
}

/// The module in which something is defined, through exports.
fn definition(path: &Path, modules: &Modules, depth: usize) -> Option<Path> {
    let (module, imports) =
        (0..=path.len()).rev().find_map(|length| modules.get_key_value(&path[..length]))?;
    let next = path.get(module.len()).and_then(|name| imports.exports.get(name));
    match next {
        Some(next) if depth > 0 => definition(next, modules, depth - 1),
        _ => Some(module.clone()),
    }
}

/// Everything that a module reaches.
fn reach(from: &Path, edges: &BTreeMap<Path, BTreeSet<Path>>) -> BTreeSet<Path> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(module) = next.pop() {
        for to in edges.get(&module).into_iter().flatten() {
            if seen.insert(to.clone()) {
                next.push(to.clone());
            }
        }
    }
    seen
}

/// The circles of a crate: sets of files of which each reaches each other.
fn circles(files: &[(String, String)]) -> BTreeSet<BTreeSet<Path>> {
    let modules = modules(files);
    let mut edges = BTreeMap::<Path, BTreeSet<Path>>::new();
    for (module, imports) in &modules {
        let to = imports.uses.iter().filter_map(|path| definition(path, &modules, 8));
        edges.insert(module.clone(), to.filter(|to| to != module).collect());
    }
    let reached: BTreeMap<&Path, BTreeSet<Path>> =
        modules.keys().map(|module| (module, reach(module, &edges))).collect();
    let circle = |module: &Path| {
        let there = &reached[module];
        let back = |other: &&Path| reached.get(other).is_some_and(|back| back.contains(module));
        there.iter().filter(back).cloned().collect::<BTreeSet<_>>()
    };
    modules.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn circles_are_found() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let files = [
        file("lib.rs", "mod a;\nmod b;\n\npub use a::A;\nuse b::B;\n"),
        file("a.rs", "//! A.\n\nuse std::fmt;\n\nuse crate::{b::{B, c::C}, d};\n\nstruct A;\n"),
        file("b/mod.rs", "pub mod c;\n\nuse super::d::D as E;\n"),
        file("b/c.rs", "use crate::A;\n"),
        file(
            "d.rs",
            "fn d() {\n    e::f();\n}\n\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
        ),
        file("d/e.rs", "fn f() {\n    super::d(); // crate::a::A\n}\n"),
    ];
    let path = |path: &str| segments(path);
    let circle = |files: [&str; 2]| BTreeSet::from(files.map(path));
    let expected = [circle(["a", "b::c"]), circle(["d", "d::e"])];
    assert_eq!(circles(&files), BTreeSet::from(expected));
}

#[test]
fn no_circle_has_more_files() {
    let mut crates = BTreeMap::<String, Vec<(String, String)>>::new();
    for (path, text) in sources(&["rs"]) {
        let parts = path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
        if let Some((name, file)) = parts {
            crates.entry(name.to_owned()).or_default().push((file.to_owned(), text));
        }
    }
    let mut large = Vec::new();
    for (name, files) in &crates {
        let circles = circles(files).into_iter().filter(|circle| circle.len() > LARGEST);
        let names = |circle: BTreeSet<Path>| {
            circle.iter().map(|path| path.join("::")).collect::<Vec<_>>().join(", ")
        };
        large.extend(circles.map(|circle| format!("{name}: {}", names(circle))));
    }
    assert!(large.is_empty(), "files that use each other in a circle: {large:#?}");
}
