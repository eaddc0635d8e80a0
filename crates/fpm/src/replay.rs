//! Replays a recorded stream to an FPM server, in place of zebra.
//!
//! A recording has exactly the bytes that zebra sent: consecutive frames without a file format
//! around them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::num::NonZeroU32;
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use crate::frame::{FrameError, Framer};

/// Number of bytes that are read and sent at a time.
const CHUNK: usize = 1 << 16;

/// The result of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replayed {
    /// Number of frames.
    pub frames: u64,
    /// Number of bytes, including headers.
    pub bytes: u64,
    /// Time from the connection until the server had read everything and closed it.
    pub time: Duration,
}

/// The recording was not replayed completely.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The recording cannot be read.
    #[error("the recording cannot be read: {0}")]
    Read(io::Error),
    /// The recording is not an FPM stream.
    #[error("the recording is no FPM stream: {0}")]
    Recording(#[from] FrameError),
    /// The recording ends inside a frame.
    #[error("the recording ends {pending} bytes into a frame, after {frames} whole ones")]
    Cut {
        /// Number of bytes of the last frame.
        pending: usize,
        /// Number of frames before it.
        frames: u64,
    },
    /// Nothing listens on the address.
    #[error(
        "no process listens for FPM on {address}: {source} (is vtepd running in this network namespace, with FPM on?)"
    )]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The error of the system call.
        source: io::Error,
    },
    /// The server closed the connection.
    #[error("the server closed the connection after {frames} frames: {source} (its log says why)")]
    Closed {
        /// Number of frames sent.
        frames: u64,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Replays a recording to the server at `address`: at this number of frames per second, or as fast
/// as the server reads.
///
/// Blocks until the server has read everything. For the server, the end is as if zebra had ended.
///
/// # Errors
/// When the recording is malformed (frames before that position are sent), nothing listens, or the
/// server closes the connection.
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
    // The server asks the kernel for the owner of this socket, so the socket stays open until the
    // server has read everything. The server sends nothing. The read ends when the server closes
    // the connection, with an error if it did so early.
    let read = stream.shutdown(Shutdown::Write).and_then(|()| stream.read_to_end(&mut Vec::new()));
    let read = read.map_err(closed);
    let frames = sent?;
    read?;
    Ok(Replayed { frames, bytes, time: start.elapsed() })
}

/// Sends all frames of the recording. Returns their number.
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
        let next = loop {
            let frame = match framer.next_frame() {
                Ok(Some(frame)) => frame,
                other => break other,
            };
            frame.write(&mut out);
            frames += 1;
            if let Some(rate) = frames_per_second {
                let due =
                    start + Duration::from_secs(1).mul_f64(frames as f64 / f64::from(rate.get()));
                thread::sleep(due.saturating_duration_since(Instant::now()));
                send(stream, &mut out, frames, bytes)?;
            }
        };
        send(stream, &mut out, frames, bytes)?;
        next?;
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
