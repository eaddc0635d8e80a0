//! `vtepctl capture`: packets as lines of text, as JSON, or as a file for Wireshark.

use std::future::Future;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::Path;

use api::v1;
use pcapng::{Direction, Packet};
use prost_types::Timestamp;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::{Capture, Output};
use crate::headers;
use crate::output::Failure;
use crate::session::Session;

/// A capture file that is being written.
pub(crate) type File = pcapng::Writer<BufWriter<Box<dyn Write>>>;

/// A packet as JSON.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    time: String,
    interface: &'a str,
    direction: &'a str,
    length: u32,
    decoded: String,
    comment: &'a str,
}

/// Creates a capture file; `-` is the standard output.
///
/// # Errors
/// When it cannot be created, or the standard output is a terminal.
pub(crate) fn file(path: &Path) -> Result<File, Failure> {
    let out: Box<dyn Write> = if path == Path::new("-") {
        if io::stdout().is_terminal() {
            return Err(Failure::Input(
                "pcapng is not for a terminal: name a file, or pipe it into Wireshark".to_owned(),
            ));
        }
        Box::new(io::stdout())
    } else {
        Box::new(std::fs::File::create(path).map_err(|error| unwritable(path, &error))?)
    };
    let mut file = pcapng::Writer::new(BufWriter::new(out), "vtepctl")
        .map_err(|error| unwritable(path, &error))?;
    file.flush().map_err(|error| unwritable(path, &error))?;
    Ok(file)
}

/// The failure of a file that cannot be written.
pub(crate) fn unwritable(path: &Path, error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::Output(error.kind().into());
    }
    Failure::Input(format!("{} cannot be written: {error}", path.display()))
}

/// Captures until it is interrupted, has as many packets as it may have, or vtepd ends.
///
/// # Errors
/// When vtepd refuses or ends, or the output cannot be written.
pub(crate) async fn run(session: &mut Session<'_, impl Write>, of: Capture) -> Result<(), Failure> {
    let request = v1::CaptureRequest {
        vni: of.vni,
        queue_pair: of.qp,
        mac: of.mac.map(|mac| mac.to_string()),
        snap_length: of.snap_length,
    };
    let mut messages = session.client.capture(request).await?.into_inner();
    let mut file = of.write.as_deref().map(file).transpose()?;
    eprintln!("vtepctl: capturing until Ctrl-C");
    let (mut count, mut lost) = (0, 0);
    let mut interrupted = std::pin::pin!(interrupted()?);
    let ended = loop {
        let message = tokio::select! {
            () = &mut interrupted => break Ok(()),
            message = messages.message() => message,
        };
        let v1::Captured { mut packets, lost: so_far } = match message {
            Ok(Some(message)) => message,
            Ok(None) => break Ok(()),
            Err(status) => break Err(status.into()),
        };
        lost = so_far;
        let room = of.count.map_or(usize::MAX, |most| (most - count) as usize);
        packets.truncate(room);
        count += packets.len() as u64;
        match (&mut file, &of.write) {
            (Some(file), Some(path)) => {
                write(file, &packets).map_err(|error| unwritable(path, &error))?;
            }
            _ => print(session, &packets)?,
        }
        if of.count == Some(count) {
            break Ok(());
        }
    };
    if let (Some(file), Some(path)) = (&mut file, &of.write) {
        finish(file, lost).map_err(|error| unwritable(path, &error))?;
    }
    eprintln!("vtepctl: {count} packets captured, {lost} lost because the reader was too slow");
    ended
}

/// Ends with SIGINT or SIGTERM.
fn interrupted() -> io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

fn write(file: &mut File, packets: &[v1::CapturedPacket]) -> io::Result<()> {
    for packet in packets {
        file.packet(&Packet {
            interface: &packet.interface,
            time: packet.time_ns,
            data: &packet.data,
            length: packet.length,
            direction: Direction::named(&packet.direction),
            comment: &packet.comment,
        })?;
    }
    // A reader of a pipe sees them now.
    file.flush()
}

/// Notes how many packets were lost.
fn finish(file: &mut File, lost: u64) -> io::Result<()> {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let now = u64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX);
    file.lost("inner", now, lost)?;
    file.flush()
}

fn print(
    session: &mut Session<'_, impl Write>,
    packets: &[v1::CapturedPacket],
) -> Result<(), Failure> {
    for v1::CapturedPacket { interface, direction, time_ns, length, data, comment } in packets {
        let time = Timestamp {
            seconds: (time_ns / 1_000_000_000) as i64,
            nanos: (time_ns % 1_000_000_000) as i32 / 1000 * 1000,
        };
        let (time, decoded) = (time.to_string(), headers::line(data));
        match session.output {
            Output::Json => {
                let length = *length;
                let shown = Shown { time, interface, direction, length, decoded, comment };
                serde_json::to_writer(&mut *session.out, &shown).map_err(io::Error::from)?;
                writeln!(session.out)?;
            }
            Output::Table => {
                writeln!(
                    session.out,
                    "{time}  {interface} {direction}  {length}  {decoded}  ({comment})"
                )?;
            }
        }
    }
    session.out.flush()?;
    Ok(())
}
