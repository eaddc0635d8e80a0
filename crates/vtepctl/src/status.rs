//! The text output of `vtepctl status`.

use std::io::{self, Write};

use api::v1;

use crate::output::Table;
use crate::tables::{vni_cells, why_left};

/// Writes the status.
///
/// # Errors
/// When the output cannot be written.
pub(crate) fn write(out: &mut impl Write, status: &v1::Status) -> io::Result<()> {
    let ready = if status.ready { "ready" } else { "not ready: nothing is redirected yet" };
    let (version, pid, uptime) = (&status.version, status.pid, duration(status.uptime_seconds));
    writeln!(out, "vtepd {version}, process {pid}, up {uptime}: {ready}")?;
    for warning in &status.warnings {
        writeln!(out, "Warning: {warning}")?;
    }
    write_vnis(out, status)?;
    let steering = status.steering.clone().unwrap_or_default();
    let uplinks =
        if steering.uplinks.is_empty() { "none".to_owned() } else { steering.uplinks.join(" ") };
    writeln!(out, "Steering by {}; uplinks: {uplinks}", steering.hook)?;
    for lack in &steering.lacks {
        writeln!(out, "  this kernel: {lack}")?;
    }
    write_together(out, status)?;
    for source in &status.sources {
        write!(out, "Source {}: {}", source.name, source.state)?;
        match (source.name.as_str(), source.state.as_str()) {
            ("fpm", "off") => write!(out, " (zebra is not expected)")?,
            ("fpm", "disconnected") => {
                write!(out, " (zebra has not connected: rtnetlink alone is heard)")?
            }
            _ => {}
        }
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
    write_addresses(out, status)?;
    if status.worker_stalls > 0 {
        writeln!(
            out,
            "The worker hung {} times, and the kernel forwarded meanwhile",
            status.worker_stalls
        )?;
    }
    if let Some(bypass) = &status.bypass {
        let v1::Bypass { ports, other_ports, addresses, capacity, no_room, no_room_total } = bypass;
        write!(
            out,
            "Bypass: {ports} of {} ports, {addresses} of {capacity} addresses",
            ports + other_ports
        )?;
        if *no_room_total > 0 {
            write!(out, ", no room for {no_room} now, for {no_room_total} so far")?;
        }
        writeln!(out)?;
    }
    writeln!(out, "Publication {}, configuration {}", status.generation, status.configuration)
}

/// VNIs that are taken over, and those that are not.
fn write_vnis(out: &mut impl Write, status: &v1::Status) -> io::Result<()> {
    writeln!(out, "Taken over: {}", status.taken.len())?;
    if !status.taken.is_empty() {
        taken(&status.taken).write(out, "  ")?;
    }
    let (detached, left): (Vec<_>, Vec<_>) = status.left.iter().partition(|left| left.standalone);
    if !detached.is_empty() {
        writeln!(out, "Forwarded by nobody: {}", detached.len())?;
    }
    for vni in detached {
        writeln!(out, "  VNI {}: {}", vni.vni, why_left(vni))?;
    }
    writeln!(out, "Left to the kernel: {}", left.len())?;
    for left in left {
        let vni = if left.external { "external".to_owned() } else { format!("VNI {}", left.vni) };
        let chosen = match left.chosen_port.as_ref().and_then(|chosen| chosen.policy.as_ref()) {
            Some(policy) => format!("source ports by {}", policy.name),
            None => "source ports by the kernel's own hash".to_owned(),
        };
        writeln!(out, "  {} ({vni}), {chosen}: {}", left.netdev, why_left(left))?;
    }
    Ok(())
}

/// As `vtepctl vni` shows VNIs that are taken over, within 80 columns.
fn taken(rows: &[v1::Vni]) -> Table<7> {
    let mut table = Table::new(["vni", "netdev", "local", "policy", "macs", "flood", "learning"]);
    for row in rows {
        let cells = vni_cells(row);
        table.row([
            cells.vni,
            cells.netdev,
            cells.local,
            cells.policy,
            cells.macs,
            cells.flood,
            cells.learning,
        ]);
    }
    table
}

/// Whether super-frames are used, and on which uplinks they are not.
fn write_together(out: &mut impl Write, status: &v1::Status) -> io::Result<()> {
    write!(out, "Frames leave together (super-frames): ")?;
    match status.super_frames.as_str() {
        "off" => writeln!(out, "off (`--no-gso`, or `gso = false`)")?,
        "unsupported" => writeln!(out, "not possible on this kernel (Linux 6.2)")?,
        // An older vtepd does not report this.
        "" => writeln!(out, "unknown")?,
        word => writeln!(out, "{word}")?,
    }
    if status.super_frames == "on" && !status.impaired_uplinks.is_empty() {
        writeln!(
            out,
            "  one by one over {}, whose queueing discipline acts on single packets (`tc qdisc`)",
            status.impaired_uplinks.join(" ")
        )?;
    }
    Ok(())
}

/// What was learned from received frames, and how often addresses moved, if the counts are not
/// zero.
fn write_addresses(out: &mut impl Write, status: &v1::Status) -> io::Result<()> {
    let (learning, moves) = (status.learning.unwrap_or_default(), status.moves.unwrap_or_default());
    let refused = learning.too_many_addresses
        + learning.too_many_vteps
        + learning.unreachable
        + learning.refused
        + learning.rate
        + learning.flapping;
    if learning != v1::LearningCounters::default() {
        writeln!(
            out,
            "Learned: {} new addresses, {} moved, {refused} times not (`vtepctl counters` says why)",
            learning.new, learning.moved
        )?;
    }
    if moves != v1::MoveCounters::default() {
        write!(
            out,
            "Moves from VTEP to VTEP: {} followed, {} over at once",
            moves.followed, moves.coalesced
        )?;
        writeln!(out, "; addresses that moved too often: {}", moves.flapping)?;
    }
    Ok(())
}

/// The result of the last dump or replay.
fn read(resync: &v1::Resync) -> String {
    let what = match resync.dumped {
        Some(dumped) => format!("{dumped} {}", resync.what),
        None => resync.what.clone(),
    };
    if resync.swept > 0 { format!("{what} ({} gone)", resync.swept) } else { what }
}

/// A duration in its two greatest units.
pub(crate) fn duration(seconds: u64) -> String {
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
    fn what_was_learned_and_moved_shows_once_there_is_any() {
        let written = |status: &v1::Status| {
            let mut out = Vec::new();
            write_addresses(&mut out, status).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(&v1::Status::default()), "");
        let learning =
            v1::LearningCounters { new: 3, moved: 2, rate: 4, flapping: 5, ..Default::default() };
        let moves = v1::MoveCounters { followed: 7, coalesced: 8, flapping: 1 };
        let status =
            v1::Status { learning: Some(learning), moves: Some(moves), ..v1::Status::default() };
        assert_eq!(
            written(&status),
            "Learned: 3 new addresses, 2 moved, 9 times not (`vtepctl counters` says why)\n\
             Moves from VTEP to VTEP: 7 followed, 8 over at once; addresses that moved too often: 1\n"
        );
    }

    #[test]
    fn who_leaves_together_and_where_not_is_said() {
        let written = |word: &str, impaired: &[&str]| {
            let mut out = Vec::new();
            let impaired_uplinks = impaired.iter().map(|&uplink| uplink.to_owned()).collect();
            let status = v1::Status {
                super_frames: word.to_owned(),
                impaired_uplinks,
                ..v1::Status::default()
            };
            write_together(&mut out, &status).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written("on", &[]), "Frames leave together (super-frames): on\n");
        assert!(
            written("on", &["up1", "up2"])
                .contains("\n  one by one over up1 up2, whose queueing discipline")
        );
        assert!(written("off", &[]).contains("off (`--no-gso`"));
        assert!(written("unsupported", &[]).contains("not possible on this kernel"));
    }

    #[test]
    fn durations_have_two_units_at_most() {
        let texts = [0, 59, 60, 3599, 3600, 86_399, 86_400, 90_000].map(duration);
        let expected = [
            "0 s",
            "59 s",
            "1 min 0 s",
            "59 min 59 s",
            "1 h 0 min",
            "23 h 59 min",
            "1 d 0 h",
            "1 d 1 h",
        ];
        assert_eq!(texts, expected);
    }
}
