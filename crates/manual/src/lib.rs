//! Generates man pages and shell completions from a program's command line, so that they always
//! match.

use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

/// Writes into `folder`, which is created: a man page (section 1) for the program and for each of
/// its commands, and completions for bash, fish and zsh under the names that these shells expect.
///
/// # Errors
/// When the folder cannot be created or written to.
pub fn write(command: Command, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let name = command.get_name().to_owned();
    clap_mangen::generate_to(command.clone(), folder)?;
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
            .subcommand(Command::new("show").about("Shows it"));
        write(command, &folder).unwrap();
        let mut names: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let page = std::fs::read_to_string(folder.join("prog-show.1")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(names, ["_prog", "prog-show.1", "prog.1", "prog.bash", "prog.fish"]);
        assert!(page.contains("Shows it"), "{page}");
    }
}
