//! Settings of a container that a node has, too: file systems in memory, and name resolution.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use nix::mount::MsFlags;
use serde_norway::Value;

use super::value::{Result, entries, expected, sequence, string};
use crate::model::Tmpfs;

/// Parses `tmpfs:`, a list of `PATH[:OPTIONS]` or a mapping of paths to options. The flags are
/// Docker's unless the options say otherwise.
pub(super) fn tmpfs(place: &str, value: &Value) -> Result<BTreeMap<PathBuf, Tmpfs>> {
    let mut mounts = BTreeMap::new();
    let mut add = |path: &str, options: &str| {
        let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
        let is_below = path.starts_with('/') && path.len() > 1;
        if !is_below || !Path::new(path).components().all(is_plain) {
            return Err(expected(place, "absolute paths without '..', as /run:size=64m"));
        }
        mounts.insert(PathBuf::from(path), mount_options(place, options)?);
        Ok(())
    };
    if value.is_mapping() {
        for (path, options) in entries(place, value)? {
            add(
                path,
                if options.is_null() { String::new() } else { string(place, options)? }.as_str(),
            )?;
        }
    } else {
        for item in sequence(place, value)? {
            let text = string(place, item)?;
            let (path, options) = text.split_once(':').unwrap_or((&text, ""));
            add(path, options)?;
        }
    }
    Ok(mounts)
}

fn mount_options(place: &str, options: &str) -> Result<Tmpfs> {
    let mut flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let mut data = Vec::new();
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (flag, is_set) = match option {
            "rw" => (MsFlags::MS_RDONLY, false),
            "ro" => (MsFlags::MS_RDONLY, true),
            "suid" => (MsFlags::MS_NOSUID, false),
            "nosuid" => (MsFlags::MS_NOSUID, true),
            "dev" => (MsFlags::MS_NODEV, false),
            "nodev" => (MsFlags::MS_NODEV, true),
            "exec" => (MsFlags::MS_NOEXEC, false),
            "noexec" => (MsFlags::MS_NOEXEC, true),
            _ => {
                let name = option.split('=').next().unwrap_or_default();
                if !["size", "nr_blocks", "nr_inodes", "mode", "uid", "gid"].contains(&name) {
                    return Err(expected(
                        place,
                        "options of tmpfs(5): size=64m, mode=1777, exec, …",
                    ));
                }
                data.push(option);
                continue;
            }
        };
        flags.set(flag, is_set);
    }
    Ok(Tmpfs { flags: flags.bits(), data: data.join(",") })
}

/// The text of `/etc/resolv.conf` (resolv.conf(5)) for `dns:` with `servers`, `search` and
/// `options`.
pub(super) fn resolver(place: &str, value: &Value) -> Result<String> {
    let mut text = String::new();
    for (key, value) in entries(place, value)? {
        let place = format!("{place}.{key}");
        let words = sequence(&place, value)?.iter().map(|value| string(&place, value));
        let words: Vec<String> = words.collect::<Result<_>>()?;
        if words.iter().any(|word| word.is_empty() || word.contains(char::is_whitespace)) {
            return Err(expected(&place, "a list of single words"));
        }
        match key {
            "servers" => words.iter().for_each(|server| text += &format!("nameserver {server}\n")),
            "search" | "options" => text += &format!("{key} {}\n", words.join(" ")),
            _ => return Err(expected(&place, "servers, search or options")),
        }
    }
    Ok(text)
}
