//! Playing a recorded stream back to an FPM server, in zebra's place.
//!
//! A recording is what zebra sent, byte by byte: frames one after the other, nothing around them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::frame::{FrameError, Framer};

/// Bytes that are read, and sent, at a time.
const CHUNK: usize = 1 << 16;

/// What was played back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replayed {
    /// Frames.
    pub frames: u64,
    /// Bytes, headers included.
    pub bytes: u64,
    /// From the connection until the server had read everything and closed it.
    pub time: Duration,
}

/// The recording was not played back, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The recording cannot be read.
    #[error("the recording cannot be read: {0}")]
    Read(io::Error),
    /// The recording is none of an FPM stream.
    #[error("the recording is no FPM stream: {0}")]
    Recording(#[from] FrameError),
    /// The recording ends inside a frame.
    #[error("the recording ends {pending} bytes into a frame, after {frames} whole ones")]
    Cut {
        /// Bytes of the last frame that are there.
        pending: usize,
        /// Frames before it.
        frames: u64,
    },
    /// Nobody listens there.
    #[error(
        "nobody listens for FPM on {address}: {source} (is vtepd running in this network namespace, with FPM on?)"
    )]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// The server went away.
    #[error("the server closed the connection after {frames} frames: {source} (its log says why)")]
    Closed {
        /// Frames sent.
        frames: u64,
        /// The system's reason.
        source: io::Error,
    },
}

/// Plays a recording back to the server at `address`, so many frames each second, or as fast as the
/// server reads.
///
/// Blocks until the server has read everything. The server then sees zebra leave, as when zebra
/// ends.
///
/// # Errors
/// When the recording is damaged (what stands before the damage is sent), nobody listens, or the
/// server leaves.
pub fn replay(
    recording: impl Read,
    address: SocketAddr,
    frames_per_second: Option<NonZeroU32>,
) -> Result<Replayed, ReplayError> {
    let connect = |source| ReplayError::Connect { address, source };
    let mut stream = TcpStream::connect(address).map_err(connect)?;
    stream.set_nodelay(true).map_err(connect)?;
    let start = Instant::now();
    let mut bytes = 0;
    let sent = send_all(recording, &mut stream, frames_per_second, &mut bytes);
    if let Err(gone @ ReplayError::Closed { .. }) = sent {
        return Err(gone);
    }
    let closed = |source| ReplayError::Closed { frames: *sent.as_ref().unwrap_or(&0), source };
    // The server asks the kernel whose socket this is: it stays open until the server has read what
    // was sent. The server says nothing: this ends when it has read everything, or with an error
    // when it left before.
    let read = stream.shutdown(Shutdown::Write).and_then(|()| stream.read_to_end(&mut Vec::new()));
    let read = read.map_err(closed);
    let frames = sent?;
    read?;
    Ok(Replayed { frames, bytes, time: start.elapsed() })
}

/// Sends all frames of the recording, and says how many those are.
fn send_all(
    mut recording: impl Read,
    stream: &mut TcpStream,
    frames_per_second: Option<NonZeroU32>,
    bytes: &mut u64,
) -> Result<u64, ReplayError> {
    let start = Instant::now();
    let (mut framer, mut buffer, mut out) = (Framer::new(), vec![0; CHUNK], BytesMut::new());
    let mut frames = 0u64;
    loop {
        let length = recording.read(&mut buffer).map_err(ReplayError::Read)?;
        framer.push(buffer.get(..length).unwrap_or_default());
        while let Some(frame) = framer.next_frame()? {
            frame.write(&mut out);
            frames += 1;
            if let Some(rate) = frames_per_second {
                let due =
                    start + Duration::from_secs(1).mul_f64(frames as f64 / f64::from(rate.get()));
                thread::sleep(due.saturating_duration_since(Instant::now()));
                send(stream, &mut out, frames, bytes)?;
            }
        }
        send(stream, &mut out, frames, bytes)?;
        if length == 0 {
            break;
        }
    }
    if framer.pending() > 0 {
        return Err(ReplayError::Cut { pending: framer.pending(), frames });
    }
    Ok(frames)
}

fn send(
    stream: &mut TcpStream,
    out: &mut BytesMut,
    frames: u64,
    bytes: &mut u64,
) -> Result<(), ReplayError> {
    stream.write_all(out).map_err(|source| ReplayError::Closed { frames, source })?;
    *bytes += out.len() as u64;
    out.clear();
    Ok(())
}
