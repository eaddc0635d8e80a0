//! `vtepctl status` for people.

use std::io::{self, Write};

use api::v1;

use crate::commands::vnis;

/// Writes it.
///
/// # Errors
/// When nobody reads any more.
pub fn write(out: &mut impl Write, status: &v1::Status) -> io::Result<()> {
    let ready = if status.ready { "ready" } else { "not ready: nothing is redirected yet" };
    let (version, pid, uptime) = (&status.version, status.pid, duration(status.uptime_seconds));
    writeln!(out, "vtepd {version}, process {pid}, up {uptime}: {ready}")?;
    let steering = status.steering.clone().unwrap_or_default();
    let uplinks = if steering.uplinks.is_empty() { "none".to_owned() } else { steering.uplinks.join(" ") };
    writeln!(out, "Steering by {}; uplinks: {uplinks}", steering.hook)?;
    writeln!(out, "Publication {}, configuration {}", status.generation, status.configuration)?;
    for source in &status.sources {
        write!(out, "Source {}: {}", source.name, source.state)?;
        if let Some(seconds) = source.stale_seconds {
            write!(out, " since {}", duration(seconds))?;
        }
        if let Some(overruns) = source.overruns.filter(|overruns| *overruns > 0) {
            write!(out, ", events lost {overruns} times")?;
        }
        writeln!(out)?;
        if !source.resyncs.is_empty() {
            let read: Vec<String> = source.resyncs.iter().map(read).collect();
            writeln!(out, "  last read: {}", read.join(", "))?;
        }
    }
    writeln!(out, "Taken over: {}", status.taken.len())?;
    if !status.taken.is_empty() {
        vnis(&status.taken).write(out, "  ")?;
    }
    writeln!(out, "Left to the kernel: {}", status.left.len())?;
    for left in &status.left {
        writeln!(out, "  {} (VNI {}): {}", left.netdev, left.vni, left.left.as_deref().unwrap_or_default())?;
    }
    if let Some(shortcut) = &status.shortcut {
        let v1::Shortcut { ports, other_ports, addresses, capacity, no_room, no_room_total } = shortcut;
        write!(
            out,
            "Shortcut: {ports} of {} ports, {addresses} of {capacity} addresses",
            ports + other_ports
        )?;
        if *no_room_total > 0 {
            write!(out, ", no room for {no_room} now, for {no_room_total} so far")?;
        }
        writeln!(out)?;
    }
    for warning in &status.warnings {
        writeln!(out, "Warning: {warning}")?;
    }
    Ok(())
}

/// What was read last.
fn read(resync: &v1::Resync) -> String {
    let what = match resync.dumped {
        Some(dumped) => format!("{dumped} {}", resync.what),
        None => resync.what.clone(),
    };
    if resync.swept > 0 { format!("{what} ({} gone)", resync.swept) } else { what }
}

fn duration(seconds: u64) -> String {
    match (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds} s"),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_at_most() {
        let texts = [0, 59, 60, 3599, 3600, 86_399, 86_400, 90_000].map(duration);
        let expected =
            ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "23 h 59 min", "1 d 0 h", "1 d 1 h"];
        assert_eq!(texts, expected);
    }
}
