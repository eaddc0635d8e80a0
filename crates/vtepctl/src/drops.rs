//! `vtepctl drops --frames`: the last dropped frames, with their headers.

use std::io::{self, Write};
use std::path::Path;

use api::v1;
use pcapng::{Direction, Packet};
use prost_types::Timestamp;
use serde::Serialize;

use crate::output::{Failure, Table};
use crate::{capture, headers};

/// A dropped frame, with its headers in words.
#[derive(Debug, Serialize)]
pub(crate) struct Shown {
    #[serde(flatten)]
    frame: v1::DroppedFrame,
    decoded: String,
}

impl From<v1::DroppedFrame> for Shown {
    fn from(frame: v1::DroppedFrame) -> Self {
        let decoded = headers::line(&bytes(&frame.headers));
        Self { frame, decoded }
    }
}

/// Writes the frames as a table, and the reasons of which frames were counted but none is remembered.
///
/// # Errors
/// When the output cannot be written.
pub(crate) fn write(out: &mut impl Write, rows: &[Shown], counted: &[v1::Drop]) -> io::Result<()> {
    if rows.is_empty() {
        writeln!(out, "No dropped frame is remembered (`vtepctl drops` counts them)")?;
    } else {
        table(rows).write(out, "")?;
    }
    let is_remembered = |drop: &v1::Drop| rows.iter().any(|row| row.frame.reason == drop.reason);
    for drop in counted.iter().filter(|drop| drop.frames > 0 && !is_remembered(drop)) {
        writeln!(out, "None is remembered of {} frames with {}", drop.frames, drop.reason)?;
    }
    Ok(())
}

fn table(rows: &[Shown]) -> Table<6> {
    let mut table = Table::new(["time", "reason", "from", "vni", "bytes", "headers"]);
    for Shown { frame, decoded } in rows {
        table.row([
            frame.time.clone(),
            frame.reason.clone(),
            frame
                .netdev
                .clone()
                .filter(|_| frame.from == "hosts")
                .unwrap_or_else(|| frame.from.clone()),
            frame.vni.map(|vni| vni.to_string()).unwrap_or_default(),
            frame.length.to_string(),
            decoded.clone(),
        ]);
    }
    table
}

/// Writes the frames as pcapng into a file.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn save(frames: &[v1::DroppedFrame], path: &Path) -> Result<(), Failure> {
    let mut file = capture::file(path)?;
    write_frames(frames, &mut file).map_err(|error| capture::unwritable(path, &error))
}

fn write_frames(frames: &[v1::DroppedFrame], file: &mut capture::File) -> io::Result<()> {
    for frame in frames {
        let time: Timestamp = frame.time.parse().unwrap_or_default();
        let seconds = u64::try_from(time.seconds).unwrap_or_default();
        let vni = frame.vni.map(|vni| format!(", VNI {vni}")).unwrap_or_default();
        file.packet(&Packet {
            interface: &frame.from,
            time: seconds * 1_000_000_000 + u64::try_from(time.nanos).unwrap_or_default(),
            data: &bytes(&frame.headers),
            length: frame.length,
            direction: Some(Direction::In),
            comment: &format!("dropped: {}{vni}", frame.reason),
        })?;
    }
    file.flush()
}

/// The bytes of hexadecimal digits, up to the first that is none.
fn bytes(digits: &str) -> Vec<u8> {
    let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok();
    digits.as_bytes().chunks_exact(2).map_while(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(reason: &str) -> v1::Drop {
        v1::Drop { reason: reason.to_owned(), frames: 3, ..v1::Drop::default() }
    }

    #[test]
    fn a_frame_is_one_line_with_its_reason() {
        let frame = v1::DroppedFrame {
            reason: "same_port".to_owned(),
            time: "2026-01-01T00:00:00Z".to_owned(),
            from: "hosts".to_owned(),
            vni: Some(10),
            netdev: Some("vx10".to_owned()),
            length: 60,
            headers: "0200000000020200000000010806".to_owned(),
        };
        let rows = [Shown::from(frame)];
        let mut text = Vec::new();
        write(&mut text, &rows, &[counted("same_port"), counted("shutdown")]).unwrap();
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().nth(1).unwrap();
        for word in ["same_port", "vx10", " 10 ", " 60 ", "02:00:00:00:00:02, ARP"] {
            assert!(line.contains(word), "{word}: {text}");
        }
        let last = "None is remembered of 3 frames with shutdown";
        assert_eq!(text.lines().skip(2).collect::<Vec<_>>(), [last]);
        let json = serde_json::to_value(&rows).unwrap();
        assert_eq!(json[0]["headers"], "0200000000020200000000010806");
        assert!(json[0]["decoded"].as_str().unwrap().ends_with("ARP"));
        let mut none = Vec::new();
        write(&mut none, &[], &[]).unwrap();
        assert!(none.starts_with(b"No dropped frame is"));
    }
}
