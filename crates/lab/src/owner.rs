//! Files for the user who called sudo.

use std::io;
use std::path::Path;

/// Gives a file or directory to the user who called sudo.
///
/// # Errors
/// If the owner cannot be changed.
pub fn give_to_user(path: &Path) -> io::Result<()> {
    let id = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    match (id("SUDO_UID"), id("SUDO_GID")) {
        (None, None) => Ok(()),
        (user, group) => std::os::unix::fs::chown(path, user, group),
    }
}
