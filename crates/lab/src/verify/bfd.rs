//! What a router says by BFD (RFC 5880), heard on the link behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::VerifyError;
use crate::netns::{Namespace, NetnsError};
use crate::packet::{BATCH, Interface, PacketError, PacketSocket};

/// Of a frame, as much as is looked at.
const LENGTH: usize = 128;
/// How long the hearing thread goes on when nobody needs it any more, at most.
const PATIENCE: Duration = Duration::from_millis(20);
/// UDP destination port of control packets, single hop (RFC 5881 section 4).
const PORT: u16 = 3784;

/// Of a session (RFC 5880 section 4.1, Sta).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    AdminDown,
    Down,
    Init,
    Up,
}

/// Hears what arrives at an interface, in a thread of its own.
#[derive(Debug)]
pub(super) struct Bfd {
    stop: Arc<AtomicBool>,
    hearing: JoinHandle<Result<Result<Option<Instant>, PacketError>, NetnsError>>,
}

impl Bfd {
    pub(super) fn hear(namespace: &Namespace, interface: &str) -> Result<Self, VerifyError> {
        let open = || PacketSocket::receiver(&Interface::find(interface)?, PATIENCE);
        let socket = namespace.enter(open)?.map_err(crate::roce::RoceError::from)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let hearing = namespace.thread(move || {
            let mut buffer = vec![0; LENGTH * BATCH];
            let (mut before, mut down) = (None, None);
            while !stopped.load(Ordering::Relaxed) {
                socket.receive(&mut buffer, LENGTH, |frame| {
                    let Some(state) = state(frame) else { return };
                    if before == Some(State::Up) && state != State::Up && down.is_none() {
                        down = Some(Instant::now());
                    }
                    before = Some(state);
                })?;
            }
            Ok(down)
        })?;
        Ok(Self { stop, hearing })
    }

    /// When the router first gave its session up, if it has.
    pub(super) fn down(self) -> Result<Option<Instant>, VerifyError> {
        self.stop.store(true, Ordering::Relaxed);
        let heard = self.hearing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(heard.map_err(crate::roce::RoceError::from)?)
    }
}

/// The state that a control packet tells, in IPv4 in Ethernet without a tag.
fn state(frame: &[u8]) -> Option<State> {
    let header = frame.get(14..).filter(|_| frame.get(12..14) == Some(&[8, 0]))?;
    let length = usize::from(header.first()? & 0xf) * 4;
    let udp = header.get(length..).filter(|_| header.get(9) == Some(&17))?;
    if udp.get(2..4)? != PORT.to_be_bytes() {
        return None;
    }
    Some(match udp.get(9)? >> 6 {
        0 => State::AdminDown,
        1 => State::Down,
        2 => State::Init,
        _ => State::Up,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_control_packet() {
        // Of FRR: version 1, no diagnostic, Up; three times 300 ms.
        let mut frame = vec![0; 14 + 20 + 8 + 24];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[23] = 17;
        frame[36..38].copy_from_slice(&[0x0e, 0xc8]);
        frame[42..45].copy_from_slice(&[0x20, 0xc0, 3]);
        assert_eq!(state(&frame), Some(State::Up));
        frame[43] = 0x48;
        assert_eq!(state(&frame), Some(State::Down));
        for length in 0..44 {
            assert_eq!(state(&frame[..length]), None, "{length}");
        }
        frame[37] = 0xc9;
        assert_eq!(state(&frame), None, "another port");
    }
}
