//! Remembers over restarts that this namespace's zebra must not see its FPM connection made again.
//!
//! The note lies in `/run/vtepd`, named after the namespace's cookie (`SO_NETNS_COOKIE`, never used twice in one boot), so
//! it ends with the machine's uptime at the latest. A container's `/run` lives as long as the container.

use std::io;
use std::net::UdpSocket;
use std::path::PathBuf;

use control::FpmHazard;

const DIRECTORY: &str = "/run/vtepd";

/// Where the note of the calling thread's namespace is.
///
/// # Errors
/// When no socket can be opened to ask for the cookie (Linux before 5.14 does not know it).
pub fn path() -> io::Result<PathBuf> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    let cookie = ports::netns::cookie(&socket)?;
    Ok(PathBuf::from(DIRECTORY).join(format!("fpm-hazard-{cookie}")))
}

/// The note, if there is one.
pub fn recall() -> Option<(PathBuf, String)> {
    let path = path().ok()?;
    let text = std::fs::read_to_string(&path).ok()?;
    Some((path, text.trim().to_owned()))
}

/// Writes the note.
///
/// # Errors
/// When `/run/vtepd` cannot be written.
pub fn remember(hazard: &FpmHazard) -> io::Result<PathBuf> {
    let path = path()?;
    std::fs::create_dir_all(DIRECTORY)?;
    let text = format!("zebra before FRR 9.0 with router MAC {} of {}\n", hazard.router_mac, hazard.vtep);
    std::fs::write(&path, text)?;
    Ok(path)
}
