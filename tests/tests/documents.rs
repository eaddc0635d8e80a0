//! Checks the documents: columns, length of sentences, sizes, links with their anchors, and the table
//! of contents, commands and their flags.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

const COLUMNS: usize = 100;
const WORDS: usize = 40;

/// Pages that are generated from texts with longer lines.
const GENERATED: [&str; 2] = ["docs/reference/cli.md", "benches/RESULTS.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// `deploy/experiments/run` without a name: a line for each experiment, without those of variants.
#[test]
fn the_list_of_experiments_has_each_once() {
    let folder = root().join("deploy/experiments");
    let output = std::process::Command::new(folder.join("run")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let listed: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "toml"));
    let mut names: Vec<String> =
        files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(listed, names, "{text}");
    assert!(text.lines().all(|line| line.split_whitespace().count() > 2), "no title: {text}");
}

/// All Markdown files with their paths from the root.
fn pages() -> Vec<(String, String)> {
    let mut folders = vec![root()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if name.ends_with(".md") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push((
                    path.strip_prefix(root()).unwrap().to_string_lossy().into_owned(),
                    text,
                ));
            }
        }
    }
    assert!(found.len() > 20, "{} pages", found.len());
    found.sort();
    found
}

fn parse(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
}

#[test]
fn lines_have_at_most_100_columns() {
    let mut long = Vec::new();
    for (page, text) in pages().iter().filter(|(page, _)| !GENERATED.contains(&page.as_str())) {
        // Table rows cannot be wrapped.
        let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('|'));
        long.extend(
            lines
                .filter(|(_, line)| line.chars().count() > COLUMNS)
                .map(|(n, _)| format!("{page}:{}", n + 1)),
        );
    }
    assert!(long.is_empty(), "longer than {COLUMNS} columns: {long:#?}");
}

/// The sentences of paragraphs, items and table cells, without code blocks.
fn sentences(text: &str) -> Vec<String> {
    let (mut all, mut current, mut code) = (Vec::new(), String::new(), false);
    for event in parse(text) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => code = true,
            Event::End(TagEnd::CodeBlock) => code = false,
            Event::Text(text) if !code => current.push_str(&text),
            Event::Code(_) => current.push_str("code"),
            Event::SoftBreak | Event::HardBreak => current.push(' '),
            Event::End(
                TagEnd::Paragraph | TagEnd::Item | TagEnd::Heading(_) | TagEnd::TableCell,
            ) => {
                all.extend(std::mem::take(&mut current).split_inclusive(". ").map(str::to_owned));
            }
            _ => {}
        }
    }
    all
}

#[test]
fn sentences_have_at_most_40_words() {
    let mut long = Vec::new();
    for (page, text) in pages() {
        if ["README.md", "ARCHITECTURE.md"].contains(&page.as_str())
            || page.starts_with("docs/guide/")
        {
            let all = sentences(&text);
            assert!(all.len() > 5, "{page} has {} sentences", all.len());
            long.extend(all.into_iter().filter(|s| s.split_whitespace().count() > WORDS));
        }
    }
    assert!(long.is_empty(), "longer than {WORDS} words: {long:#?}");
}

#[test]
fn the_first_pages_are_short() {
    for (page, lines, bytes) in [("README.md", 130, 9_000), ("ARCHITECTURE.md", 170, 20_000)] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        assert!(text.lines().count() < lines && text.len() < bytes, "{page} is too long");
    }
}

/// The anchors of the headings of a page, as GitHub and mdBook make them.
fn anchors(text: &str) -> Vec<String> {
    let (mut all, mut heading) = (Vec::new(), None::<String>);
    for event in parse(text) {
        match (event, heading.as_mut()) {
            (Event::Start(Tag::Heading { .. }), _) => heading = Some(String::new()),
            (Event::End(TagEnd::Heading(_)), _) => {
                let words = heading.take().unwrap().to_lowercase();
                let is_kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
                all.push(words.chars().filter(is_kept).collect::<String>().replace(' ', "-"));
            }
            (Event::Text(text) | Event::Code(text), Some(heading)) => heading.push_str(&text),
            _ => {}
        }
    }
    all
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for (page, text) in pages() {
        let folder = root().join(&page).parent().unwrap().to_owned();
        for event in parse(&text) {
            let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event
            else {
                continue;
            };
            let (file, anchor) = dest_url.split_once('#').unwrap_or((&dest_url, ""));
            if ["https://", "http://", "mailto:"].iter().any(|scheme| file.starts_with(scheme)) {
                continue;
            }
            let to = if file.is_empty() { root().join(&page) } else { folder.join(file) };
            // The site has nothing outside `docs`.
            let docs = root().join("docs").canonicalize().unwrap();
            let is_on_site = |to: &PathBuf| to.starts_with(&docs) || !page.starts_with("docs/");
            let has_anchor = |to: &PathBuf| {
                let there = |text: String| anchors(&text).iter().any(|other| other == anchor);
                anchor.is_empty() || std::fs::read_to_string(to).is_ok_and(there)
            };
            if !to.canonicalize().is_ok_and(|to| is_on_site(&to) && has_anchor(&to)) {
                broken.push(format!("{page}: {dest_url}"));
            }
        }
    }
    assert!(broken.is_empty(), "links to nothing: {broken:#?}");
}

#[test]
fn the_table_of_contents_has_every_page() {
    let docs = root().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let records = std::fs::read_to_string(docs.join("adr/README.md")).unwrap();
    for (page, _) in pages() {
        let Some(name) = page.strip_prefix("docs/").filter(|name| *name != "SUMMARY.md") else {
            continue;
        };
        assert!(summary.contains(&format!("({name})")), "{page} is not in docs/SUMMARY.md");
        if let Some(record) = name.strip_prefix("adr/").filter(|name| *name != "README.md") {
            assert!(
                records.contains(&format!("({record})")),
                "{page} is not in docs/adr/README.md"
            );
        }
    }
}

/// What `--help` of each command says, by its name (`lab link down`).
fn help() -> BTreeMap<String, String> {
    let page = std::fs::read_to_string(root().join("docs/reference/cli.md")).unwrap();
    let mut help = BTreeMap::new();
    for section in page.split("\n#").skip(1) {
        let name = section.split('`').nth(1).unwrap();
        help.insert(name.to_owned(), section.to_owned());
    }
    help
}

/// Inline code, and the lines of code blocks; a line that ends with `\` goes on.
fn code(text: &str) -> Vec<String> {
    let (mut all, mut in_block) = (Vec::new(), false);
    for event in parse(text) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => in_block = true,
            Event::End(TagEnd::CodeBlock) => in_block = false,
            Event::Text(text) if in_block => {
                all.extend(text.replace("\\\n", " ").lines().map(str::to_owned));
            }
            Event::Code(code) => all.push(code.into_string()),
            _ => {}
        }
    }
    all
}

/// What no `--help` knows of a command: a subcommand or a flag. `words` follow the program's name.
fn unknown(help: &BTreeMap<String, String>, program: &str, words: &[&str]) -> Option<String> {
    let ends = |word: &&&str| !["--", "&&", "||", "|", ";", "&", "#", ">"].contains(word);
    let mut words = words.iter().take_while(ends).copied().peekable();
    let mut command = program.to_owned();
    while let Some(word) = words.peek().copied() {
        let longer = format!("{command} {word}");
        let is_lowercase = word.chars().all(|c| c.is_ascii_lowercase());
        if word == "-o" {
            // With its value.
            words.next();
        } else if help.contains_key(&longer) {
            command = longer;
        } else if command == program && program != "vtepd" && is_lowercase {
            return Some(longer);
        } else {
            break;
        }
        words.next();
    }
    let known: Vec<&str> =
        help[&command].split(|c: char| c != '-' && !c.is_alphanumeric()).collect();
    let flags = words.map(|word| word.split('=').next().unwrap().trim_end_matches([',', ')', '`']));
    let mut flags = flags.filter(|word| word.starts_with("--"));
    flags.find(|flag| !known.contains(flag)).map(|flag| format!("{command} {flag}"))
}

#[test]
fn commands_and_flags_exist() {
    let help = help();
    let (mut found, mut stale) = (0, Vec::new());
    for (page, text) in pages() {
        // These say what once was.
        let is_past = page == "CHANGELOG.md" || page.starts_with("docs/adr/");
        if is_past || GENERATED.contains(&page.as_str()) {
            continue;
        }
        for line in code(&text) {
            let words: Vec<&str> = line.split_whitespace().collect();
            for (at, word) in words.iter().enumerate() {
                let program = word.rsplit('/').next().unwrap();
                if ["lab", "vtepd", "vtepctl"].contains(&program) {
                    found += 1;
                    let of = unknown(&help, program, &words[at + 1..]);
                    stale.extend(of.map(|what| format!("{page}: {what}, in: {line}")));
                }
            }
        }
    }
    assert!(found > 200, "{found} commands");
    assert!(stale.is_empty(), "no such commands: {stale:#?}");
}
