//! `docs/design/bpf-maps.md` has the maps of the programs, with their types.

use std::collections::BTreeMap;
use std::path::Path;

/// The types of a map's keys and values; `none` for a ring buffer.
type Types = (String, String);

/// The maps in a source of BPF programs.
fn declared(source: &str) -> BTreeMap<String, Types> {
    let words = |line: &'_ str, macro_name: &str| {
        let arguments = line.strip_prefix(macro_name)?.strip_prefix('(')?.strip_suffix(");")?;
        Some(arguments.split(',').map(|word| word.trim().to_owned()).collect::<Vec<_>>())
    };
    let map = |line| match words(line, "MAP")?.as_slice() {
        [_, name, _, _, key, value] => Some((name.clone(), (key.clone(), value.clone()))),
        other => panic!("a map with other arguments: {other:?}"),
    };
    let ring = |line| Some((words(line, "RING")?.swap_remove(0), ("none".into(), "none".into())));
    source.lines().filter_map(|line| map(line).or_else(|| ring(line))).collect()
}

/// The maps in the page.
fn documented(page: &str) -> BTreeMap<String, Types> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    let kind = |cell: &str| {
        let cell = cell.split_once(':').map_or(cell, |(kind, _)| kind);
        cell.split('`').nth(1).unwrap_or(cell).to_owned()
    };
    cells
        .map(|cells| (cells[0].trim_end_matches('`').to_owned(), (kind(cells[1]), kind(cells[2]))))
        .collect()
}

#[test]
fn the_page_of_bpf_maps_has_all_of_them_with_their_types() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut maps = BTreeMap::new();
    for file in std::fs::read_dir(root.join("crates/bpf/programs")).unwrap() {
        maps.extend(declared(&std::fs::read_to_string(file.unwrap().path()).unwrap()));
    }
    assert!(maps.len() > 30, "{maps:?}");
    let page = std::fs::read_to_string(root.join("docs/design/bpf-maps.md")).unwrap();
    assert_eq!(documented(&page), maps);
}
