//! RoCE frames of several queue pairs, in super-frames that a link cuts: so the sender costs less
//! than what is measured.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use lab::Namespace;
use pipeline::aggregate::speak_for;
use pipeline::{Checksum, Destination, Gso, GsoKind, Offload, Payload, TxFrame};
use wire::number::{ETHERTYPE_IPV4, PORT_ROCE, PORT_VXLAN, PROTOCOL_UDP};
use wire::roce::Bth;
use wire::{Ethernet, Ipv4, MacAddr, QueuePair, Udp, Vni, Vxlan};

use crate::bed::{HEADERS, HOST, UPLINK, beyond, local, remote, udp_segmentation};
use crate::{Bed, Error};

/// Frames that the sender hands over as one.
const HANDED_OVER: usize = 32;
/// Fewer, where there are so many queue pairs in bursts that the sender's memory would not fit its
/// caches.
const MANY: usize = 8;
/// Bytes of a super-frame at most.
const LARGEST: usize = 60_000;
/// Queue pairs in bursts from which on that is so.
const MANY_PAIRS: usize = 64;
/// Super-frames between two looks at the clock.
pub const BETWEEN_LOOKS: usize = 8;
const GATEWAY: MacAddr = MacAddr([2, 0xaa, 0, 0, 0, 2]);
/// Nobody's.
const ELSEWHERE: MacAddr = MacAddr([2, 0xee, 0, 0, 0, 9]);

/// Where frames come from, and as what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Input {
    /// The host, one by one.
    Host,
    /// The peer, encapsulated, one by one: as kernel VXLAN sends them.
    Singles,
    /// The peer, encapsulated, in super-frames: as vtepd sends them.
    SuperFrames,
}

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Traffic {
    /// From where.
    pub input: Input,
    /// Bytes of an inner frame, at least 58.
    pub length: usize,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Whether each queue pair sends some frames before it is the next one's turn; else one.
    pub bursts: bool,
}

/// Who sends.
#[derive(Debug)]
pub struct Sender {
    socket: ports::PacketSocket,
    super_frames: Vec<TxFrame>,
    /// Frames in each of them.
    frames: u64,
}

impl Sender {
    /// At its place in the bed. What is not to be `forwarded` and comes from the peer is addressed
    /// to nobody there.
    ///
    /// # Errors
    /// Without CAP_NET_RAW or ethtool, or if the length is too small.
    pub fn new(bed: &Bed, traffic: Traffic, forwarded: bool) -> Result<Self, Error> {
        let (namespace, link) = match traffic.input {
            Input::Host => (&bed.host, "eth0"),
            Input::Singles | Input::SuperFrames => (&bed.peer, "down1"),
        };
        if traffic.input != Input::Host {
            udp_segmentation(namespace, link, traffic.input == Input::SuperFrames)?;
        }
        let to = if forwarded { UPLINK } else { ELSEWHERE };
        Self::at(namespace, link, traffic, to)
    }

    /// At any interface. What comes from a peer is addressed to `uplink`.
    ///
    /// # Errors
    /// As [`Sender::new`].
    pub fn at(
        namespace: &Namespace,
        link: &str,
        traffic: Traffic,
        uplink: MacAddr,
    ) -> Result<Self, Error> {
        let open = || -> Result<_, Error> {
            Ok((nix::net::if_::if_nametoindex(link)?, ports::PacketSocket::open_sender(false)?))
        };
        let (ifindex, socket) = namespace.enter(open)??;
        let pairs = traffic.queue_pairs.max(1) as usize;
        let encapsulated = traffic.input != Input::Host;
        // One flow makes a super-frame, as a peer's does.
        let runs = traffic.bursts || encapsulated;
        let handed_over = if runs && pairs > MANY_PAIRS { MANY } else { HANDED_OVER };
        let most = (LARGEST / (traffic.length + 8)).min(handed_over);
        let count = if runs { pairs } else { pairs.div_ceil(most) }.next_multiple_of(BETWEEN_LOOKS);
        let super_frame = |index: usize| {
            let mut whole: Vec<u8> = Vec::new();
            for place in 0..most {
                let number = index * most + place;
                let pair = if runs { index } else { number } % pairs;
                let frame = frame(traffic, uplink, pair as u32, number as u32)?;
                whole.extend_from_slice(
                    frame.get(if whole.is_empty() { 0 } else { HEADERS }..).unwrap_or_default(),
                );
            }
            let length = traffic.length + if encapsulated { HEADERS + 8 } else { 0 };
            joined(whole, length, ifindex)
        };
        let super_frames = (0..count).map(super_frame).collect::<Result<Vec<_>, Error>>()?;
        Ok(Self { socket, super_frames, frames: most as u64 })
    }

    /// Sends all it can for so long. Returns how many frames, and how long it took.
    pub fn send(&mut self, time: Duration) -> (u64, Duration) {
        let (start, mut sent) = (Instant::now(), 0);
        while start.elapsed() < time {
            for index in (0..self.super_frames.len()).step_by(BETWEEN_LOOKS) {
                sent += self.some(index);
                if start.elapsed() >= time {
                    break;
                }
            }
        }
        (sent, start.elapsed())
    }

    /// Sends some super-frames, from the one with this number on, counted around. Returns the
    /// frames in them.
    pub fn some(&mut self, index: usize) -> u64 {
        let index = index % self.super_frames.len().max(1);
        let end = (index + BETWEEN_LOOKS).min(self.super_frames.len());
        let Some(frames) = self.super_frames.get_mut(index..end) else { return 0 };
        let mut taken = 0;
        self.socket.transmit(&pipeline::Batch::new(0), frames, |_, outcome| {
            taken += u64::from(outcome.is_ok())
        });
        taken * self.frames
    }
}

/// One frame of a queue pair, encapsulated if it comes from the peer.
fn frame(traffic: Traffic, uplink: MacAddr, pair: u32, sequence: u32) -> Result<Vec<u8>, Error> {
    let station = (pair % 256) as u8;
    if traffic.input == Input::Host {
        return inner(remote(station), HOST, traffic.length, pair, sequence);
    }
    let inner = inner(local(station), beyond(station), traffic.length, pair, sequence)?;
    let mut frame = vec![0; HEADERS + 8];
    let rest = Ethernet::new(uplink, GATEWAY, ETHERTYPE_IPV4).write(&mut frame)?;
    let payload = inner.len() + 8;
    let (source, destination) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1));
    let rest = Ipv4::new(source, destination, PROTOCOL_UDP, payload + 8)?.write(rest)?;
    let port = 49_152 + (pair.wrapping_mul(0x9e37) % 16_384) as u16;
    let rest = Udp::new(port, PORT_VXLAN, payload)?.write(rest)?;
    Vxlan::new(Vni::try_from(1)?).write(rest)?;
    frame.extend_from_slice(&inner);
    Ok(frame)
}

fn inner(
    to: MacAddr,
    from: MacAddr,
    length: usize,
    pair: u32,
    sequence: u32,
) -> Result<Vec<u8>, Error> {
    let mut frame = vec![0; length];
    let payload = length.saturating_sub(HEADERS);
    let rest = Ethernet::new(to, from, ETHERTYPE_IPV4).write(&mut frame)?;
    let (source, destination) = (Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 1, 0, 9));
    let rest = Ipv4::new(source, destination, PROTOCOL_UDP, payload + 8)?.write(rest)?;
    let rest = Udp::new(49_152, PORT_ROCE, payload)?.write(rest)?;
    let [_, bytes @ ..] = (0x100 + pair).to_be_bytes();
    Bth::new(0x04, QueuePair::from_be_bytes(bytes), sequence).write(rest)?;
    wire::icrc::fill(frame.get_mut(14..).unwrap_or_default())?;
    Ok(frame)
}

/// A UDP super-frame of frames of one length.
fn joined(mut whole: Vec<u8>, length: usize, ifindex: u32) -> Result<TxFrame, Error> {
    let too_long = |_| Error::from("a super-frame is too long");
    let payload = u16::try_from(whole.len() - HEADERS).map_err(too_long)?;
    let headers =
        whole.get_mut(14..).and_then(<[u8]>::first_chunk_mut).ok_or("a frame without headers")?;
    speak_for(headers, payload);
    let size = u16::try_from(length - HEADERS).map_err(too_long)?;
    let offload = Offload {
        checksum: Checksum::Partial { start: 34, offset: 6 },
        gso: Some(Gso { kind: GsoKind::Udp, size, ecn: false }),
    };
    let to = Destination::Uplink { ifindex, path: 0, by_default: false, impaired: false };
    Ok(TxFrame::new(to, 0, Payload::Owned(whole.into()), offload))
}
