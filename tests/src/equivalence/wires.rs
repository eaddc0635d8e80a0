//! The four interfaces outside the leaf: sends and receives frames.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ::fabric::Namespace;
use fabric::packet::{Interface, PacketSocket as Sender};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pipeline::{Batch, Checksum, Destination, Offload, Payload, TxBatch, TxFrame};
use ports::{PacketSocket, Port as _, RingSize};
use wire::MacAddr;

use super::observation::Observation;
use super::stimulus::Stimulus;
use crate::capture::Captured;

/// An interface outside the leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wire {
    /// The first host.
    H1,
    /// The second host.
    H2,
    /// The router behind the first uplink.
    U1,
    /// The router behind the second uplink.
    U2,
}

impl Wire {
    /// All interfaces.
    pub const ALL: [Self; 4] = [Self::H1, Self::H2, Self::U1, Self::U2];

    /// Its name outside.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::H1 => "h1",
            Self::H2 => "h2",
            Self::U1 => "u1",
            Self::U2 => "u2",
        }
    }

    /// The name of its peer in the leaf.
    #[must_use]
    pub const fn in_leaf(self) -> &'static str {
        match self {
            Self::H1 => "hp1",
            Self::H2 => "hp2",
            Self::U1 => "up1",
            Self::U2 => "up2",
        }
    }

    /// Whether it is an uplink.
    #[must_use]
    pub const fn is_uplink(self) -> bool {
        matches!(self, Self::U1 | Self::U2)
    }

    /// Its MAC address outside.
    #[must_use]
    pub const fn outside_mac(self) -> MacAddr {
        MacAddr([2, 0xee, 0, 0, 0, self as u8])
    }

    /// The MAC address of its peer in the leaf.
    #[must_use]
    pub const fn leaf_mac(self) -> MacAddr {
        MacAddr([2, 0xaa, 0, 0, 0, self as u8])
    }

    /// The address of the router behind an uplink.
    #[must_use]
    pub const fn router(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 1, self as u8 - 1, 2)
    }
}

/// The tunnel of the first host's kernel.
pub const OWN: &str = "own";

/// Packet sockets on all four interfaces.
#[derive(Debug)]
pub struct Wires {
    senders: [Sender; 4],
    receivers: [PacketSocket; 4],
    /// The tunnel of the first host's kernel.
    own: Option<PacketSocket>,
}

impl Wires {
    /// Opens the sockets. `has_tunnel`: whether the first host has one of its own.
    #[must_use]
    pub fn open(outside: &Namespace, has_tunnel: bool) -> Self {
        let open = |name: &str| {
            let index = crate::lab::ifindex(outside, name);
            outside
                .enter(|| PacketSocket::open(index, RingSize::LITTLE))
                .unwrap()
                .expect("a packet socket")
        };
        let sender = |wire: Wire| {
            let open = || Sender::sender(&Interface::find(wire.name()).unwrap()).unwrap();
            outside.enter(open).unwrap()
        };
        let own = has_tunnel.then(|| open(OWN));
        let receivers = Wire::ALL.map(|wire| open(wire.name()));
        Self { senders: Wire::ALL.map(sender), receivers, own }
    }

    /// Sends one frame. An interface whose peer is down accepts none. This is not an error.
    pub fn send(&mut self, stimulus: &Stimulus, number: u16) {
        let (bytes, partial) = stimulus.bytes(number);
        let wire = stimulus.wire() as usize;
        let socket = match (stimulus, partial) {
            (Stimulus::Own(_), _) => self.own.as_mut(),
            (_, Some(_)) => self.receivers.get_mut(wire),
            (_, None) => {
                let _ = self.senders[wire].send(&[&bytes]);
                return;
            }
        };
        let partial = partial.map(|(start, offset)| Checksum::Partial { start, offset });
        let offload = Offload { checksum: partial.unwrap_or_default(), gso: None };
        let payload = Payload::Owned(bytes.into());
        let mut out = TxBatch::of([TxFrame::new(Destination::Bridge, 0, payload, offload)]);
        socket.expect("the tunnel of the first host").transmit(&Batch::none(), &mut out, 0..1);
    }

    /// Adds what has arrived to an observation. Returns the number of frames.
    pub fn receive(&mut self, observation: &mut Observation) -> usize {
        let mut count = 0;
        for (wire, socket) in Wire::ALL.into_iter().zip(&mut self.receivers) {
            loop {
                let batch = socket.receive();
                if batch.is_empty() {
                    break;
                }
                for frame in batch.frames().filter(|frame| !frame.data.is_empty()) {
                    for captured in Captured::of(frame) {
                        observation.add(wire, &captured.bytes);
                        count += 1;
                    }
                }
            }
        }
        count
    }

    /// Collects frames until `enough` holds, or for `timeout`. In both cases, nothing may have
    /// arrived for `quiet` before it returns.
    pub fn collect(
        &mut self,
        quiet: Duration,
        timeout: Duration,
        enough: impl Fn(&Observation) -> bool,
    ) -> Observation {
        let mut observation = Observation::default();
        let start = Instant::now();
        let mut last = start;
        loop {
            if self.receive(&mut observation) > 0 {
                last = Instant::now();
            }
            let silent = last.elapsed() >= quiet;
            if silent && (enough(&observation) || start.elapsed() >= timeout) {
                return observation;
            }
            let mut ready =
                self.receivers.each_ref().map(|s| PollFd::new(s.as_fd(), PollFlags::POLLIN));
            let _ = poll(&mut ready, PollTimeout::from(2_u8));
        }
    }
}
