//! What all command lines have: errors in words, and man pages and shell completions that always
//! match, because they are generated.

use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use clap::error::ErrorKind;
use clap::{Command, Parser};
use clap_complete::Shell;

/// What Rust says of a value that is no number, and what a user needs to know.
const WORDS: [(&str, &str); 5] = [
    ("invalid digit found in string", "expected a whole number"),
    ("cannot parse integer from empty string", "expected a whole number"),
    ("number too large to fit in target type", "the number is too large"),
    ("number too small to fit in target type", "the number is too small"),
    ("invalid float literal", "expected a number"),
];

/// The commit of the sources, if the build was told: `VTEPD_COMMIT`, which `deploy/prepare` and
/// `deploy/static` set.
const COMMIT: Option<&str> = option_env!("VTEPD_COMMIT");

/// The version of all programs, with the commit if it is known: `0.1.0 (4b9582d5a1b2)`.
#[must_use]
pub fn version() -> String {
    with_commit(env!("CARGO_PKG_VERSION"), COMMIT)
}

fn with_commit(version: &str, commit: Option<&str>) -> String {
    match commit.filter(|commit| !commit.is_empty()) {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    }
}

/// Parses the arguments of this process. `--version` has the commit. After an error it prints the
/// error and ends the process, as [`Parser::parse`] does.
#[must_use]
pub fn parse<P: Parser>() -> P {
    // Once for each process.
    let version: &'static str = version().leak();
    let parsed = P::command().version(version).try_get_matches();
    let parsed = parsed.and_then(|mut matches| P::from_arg_matches_mut(&mut matches));
    parsed.unwrap_or_else(|error| {
        if error.kind() != ErrorKind::ValueValidation {
            error.exit();
        }
        let text = error.render();
        let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let text = if colours { text.ansi().to_string() } else { text.to_string() };
        // A closed standard error is no error.
        let _ = io::stderr().write_all(in_words(&text).as_bytes());
        std::process::exit(error.exit_code())
    })
}

fn in_words(text: &str) -> String {
    WORDS.iter().fold(text.to_owned(), |text, (said, words)| text.replace(said, words))
}

/// Writes into `folder`, which is created: a man page (section 1) for the program and for each of
/// its commands, and completions for bash, fish and zsh under the names that these shells expect.
///
/// # Errors
/// When the folder cannot be created or written to.
pub fn write(command: Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let name = command.get_name().to_owned();
    clap_mangen::generate_to(command.clone(), folder)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let own = path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name));
        if own && path.extension().is_some_and(|end| end == "1") {
            // What follows the options are examples.
            fs::write(&path, fs::read_to_string(&path)?.replace(".SH EXTRA", ".SH EXAMPLES"))?;
        }
    }
    let mut command = command;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command, &name, folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_for_each_command_and_three_completions() {
        let folder = std::env::temp_dir().join(format!("vtepd-manual-{}", std::process::id()));
        let command = Command::new("prog")
            .about("Does it")
            .subcommand(Command::new("show").about("Shows it").after_help("Example:\n  prog show"));
        write(command, &folder).unwrap();
        let mut names: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let page = std::fs::read_to_string(folder.join("prog-show.1")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(names, ["_prog", "prog-show.1", "prog.1", "prog.bash", "prog.fish"]);
        assert!(page.contains("Shows it") && page.contains(".SH EXAMPLES"), "{page}");
        assert!(!page.contains("EXTRA"), "{page}");
    }

    #[test]
    fn the_version_has_the_commit_if_it_is_known() {
        assert_eq!(with_commit("0.1.0", Some("4b9582d5")), "0.1.0 (4b9582d5)");
        assert_eq!([Some(""), None].map(|commit| with_commit("0.1.0", commit)), ["0.1.0"; 2]);
    }

    #[test]
    fn errors_of_numbers_are_words() {
        #[derive(Debug, Parser)]
        struct Arguments {
            #[arg(long)]
            number: u8,
            #[arg(long)]
            share: f64,
        }
        let said = |words: [&str; 4]| {
            let error = Arguments::try_parse_from(["prog"].into_iter().chain(words)).unwrap_err();
            in_words(&error.render().to_string())
        };
        for (number, share, words) in [
            ("abc", "1", "'abc' for '--number <NUMBER>': expected a whole number"),
            ("", "1", "'' for '--number <NUMBER>': expected a whole number"),
            ("1", "half", "'half' for '--share <SHARE>': expected a number"),
        ] {
            let text = said(["--number", number, "--share", share]);
            assert!(text.contains(words), "{text}");
        }
    }
}
