//! Runs FRR from another root file system, for example of another Debian release. `LAB_FRR_ROOT`
//! names it.
//!
//! FRR's daemons and `vtysh` run there with `chroot(8)`. The node's files are mounted in it at the
//! usual paths. In the node's mount namespace, wrapper scripts replace the machine's own programs,
//! so nothing else depends on the root.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The directory of FRR's daemons, on this machine and in every root.
pub(crate) const PROGRAMS: &str = "/usr/lib/frr";
pub(crate) const VTYSH: &str = "/usr/bin/vtysh";

/// The root that `LAB_FRR_ROOT` names; `None` for the machine's own.
///
/// # Errors
/// If the root has no FRR.
pub(crate) fn from_environment() -> io::Result<Option<PathBuf>> {
    let Some(root) = std::env::var_os("LAB_FRR_ROOT").filter(|root| !root.is_empty()) else {
        return Ok(None);
    };
    let root = fs::canonicalize(root)?;
    if below(&root, PROGRAMS).join("zebra").exists() {
        Ok(Some(root))
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// The path on the machine of a path in the root.
pub(crate) fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// The user and group id of `frr` in the root.
pub(crate) fn user(root: &Path) -> Option<(u32, u32)> {
    let users = fs::read_to_string(below(root, "/etc/passwd")).ok()?;
    let mut fields = users.lines().find(|line| line.starts_with("frr:"))?.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Writes a wrapper script for each of FRR's programs: `DIRECTORY/programs/*` and
/// `DIRECTORY/vtysh`.
///
/// # Errors
/// The file that could not be read or written.
pub(crate) fn write_wrappers(root: &Path, directory: &Path) -> Result<(), (PathBuf, io::Error)> {
    let programs = directory.join("programs");
    let make = |path: &Path, program: &str| {
        let quoted = root.display().to_string().replace('\'', "'\\''");
        let script = format!("#!/bin/sh\nexec chroot '{quoted}' {program} \"$@\"\n");
        fs::write(path, script)
            .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
            .map_err(|error| (path.to_owned(), error))
    };
    let source = below(root, PROGRAMS);
    let entries = fs::read_dir(&source).map_err(|error| (source.clone(), error))?;
    fs::create_dir_all(&programs).map_err(|error| (programs.clone(), error))?;
    for entry in entries {
        let entry = entry.map_err(|error| (source.clone(), error))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        make(&programs.join(&name), &format!("{PROGRAMS}/{name}"))?;
    }
    make(&directory.join("vtysh"), VTYSH)
}
