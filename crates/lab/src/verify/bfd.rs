//! Observes the BFD packets (RFC 5880) of a router on a link.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use etherparse::{LaxSlicedPacket, TransportSlice};

use fabric::netns::{Namespace, NetnsError};
use fabric::packet::{BATCH, Interface, PacketError, PacketSocket};
use study::RunError;

/// The number of bytes of a frame that are examined.
const LENGTH: usize = 128;
/// The receive timeout, and so the maximum delay until the thread stops.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(20);
/// The UDP destination port of single-hop control packets (RFC 5881 section 4).
const PORT: u16 = 3784;

/// The state of a session (RFC 5880 section 4.1, Sta).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    AdminDown,
    Down,
    Init,
    Up,
}

/// A thread that receives BFD packets at an interface.
#[derive(Debug)]
pub(super) struct Bfd {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Result<Option<Instant>, PacketError>, NetnsError>>,
}

impl Bfd {
    pub(super) fn observe(namespace: &Namespace, interface: &str) -> Result<Self, RunError> {
        let open = || PacketSocket::receiver(&Interface::find(interface)?, RECEIVE_TIMEOUT);
        let socket = namespace.enter(open)?.map_err(traffic::roce::RoceError::from)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = namespace.thread(move || {
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
        Ok(Self { stop, thread })
    }

    /// Stops the thread. Returns when the router's session first left the state Up, if it did.
    pub(super) fn down(self) -> Result<Option<Instant>, RunError> {
        self.stop.store(true, Ordering::Relaxed);
        let result = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(result.map_err(traffic::roce::RoceError::from)?)
    }
}

/// The state in a BFD control packet.
fn state(frame: &[u8]) -> Option<State> {
    // Only the start of a longer frame is here, so its length fields may exceed it.
    let packet = LaxSlicedPacket::from_ethernet(frame).ok()?;
    let Some(TransportSlice::Udp(udp)) = packet.transport else { return None };
    if udp.destination_port() != PORT {
        return None;
    }
    Some(match udp.payload().get(1)? >> 6 {
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
        // A packet of FRR: version 1, no diagnostic, Up; three times 300 ms.
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
