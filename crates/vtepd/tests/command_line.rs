//! The command line of the program itself.

#![cfg(test)]

use std::fs::Permissions;
use std::io::PipeWriter;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

fn vtepd(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vtepd"));
    command.args(arguments).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// The writing end of a pipe whose reader is closed.
fn unread() -> PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let output = vtepd(&["--help"]).stdout(unread()).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("panicked"), "{}: {said}", output.status);
}

/// Whatever comes of the configuration, others may have read the key.
#[test]
fn a_key_that_all_users_can_read_is_warned_about() {
    let file = |name: &str| {
        std::env::temp_dir().join(format!("vtepd-readable-{name}-{}", std::process::id()))
    };
    let (configuration, key) = (file("configuration"), file("key"));
    std::fs::write(&key, "0123456789abcdef\n").unwrap();
    let told = |text: &str, path: &Path, mode| {
        std::fs::write(&configuration, text).unwrap();
        for path in [&configuration, &key] {
            std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        }
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let output = vtepd(&["--dry-run", "--config"]).arg(&configuration).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.contains(&format!("every user can read it: chmod 640 {}", path.display()))
    };
    let inside = "[probing]\nkey = \"0123456789abcdef\"\n";
    let beside = format!("[probing]\nkey-file = \"{}\"\n", key.display());
    for (text, path) in [(inside, &configuration), (&beside, &key)] {
        let found = [0o644, 0o640, 0o600].map(|mode| told(text, path, mode));
        assert_eq!(found, [true, false, false], "{text}");
    }
    assert!(!told("[probing]\ninterval-ms = 50\n", &configuration, 0o644), "there is no key");
    for path in [configuration, key] {
        std::fs::remove_file(path).unwrap();
    }
}
