//! Sends RoCE frames of several queue pairs, in super-frames that a link splits. The sender
//! therefore needs less CPU time than the datapath that is measured.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use fabric::Namespace;
use frame::{Batch, Checksum, Destination, Gso, GsoKind, Offload, Payload, TxBatch, TxFrame};
use pipeline::grouping::patch_lengths;
use ports::Port as _;
use wire::number::{ETHERTYPE_IPV4, PORT_ROCE, PORT_VXLAN, PROTOCOL_UDP};
use wire::outer::{Address as _, OuterHeaders};
use wire::roce::Bth;
use wire::{Ethernet, Ipv4, MacAddr, QueuePair, Udp, Vni};

use crate::topology::{
    HEADERS, HOST, UPLINK, local_station, peer_station, remote_station, udp_segmentation,
};
use crate::{Error, Testbed};

/// The maximum number of frames in a super-frame.
const MAX_FRAMES: usize = 32;
/// The maximum with many queue pairs in bursts, so that the sender's memory fits in its caches.
const MAX_FRAMES_MANY_PAIRS: usize = 8;
/// The maximum size of a super-frame in bytes.
const MAX_BYTES: usize = 60_000;
/// [`MAX_FRAMES_MANY_PAIRS`] applies to more queue pairs than this.
const MANY_PAIRS: usize = 64;
/// The number of super-frames that one [`Sender::send_some`] call sends.
pub const SUPER_FRAMES_PER_CALL: usize = 8;
const GATEWAY: MacAddr = MacAddr([2, 0xaa, 0, 0, 0, 2]);
/// A MAC address that no interface has.
const UNUSED_MAC: MacAddr = MacAddr([2, 0xee, 0, 0, 0, 9]);

/// Where frames come from, and in which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Input {
    /// The host, as single frames.
    Host,
    /// The peer, as single encapsulated frames, as kernel VXLAN sends them.
    Singles,
    /// The peer, as encapsulated super-frames, as vtepd sends them.
    SuperFrames,
}

/// A description of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Traffic {
    /// The source and form of the frames.
    pub input: Input,
    /// The length of an inner frame in bytes, at least 58.
    pub length: usize,
    /// The number of queue pairs.
    pub queue_pairs: u32,
    /// Whether queue pairs send in bursts of several frames; otherwise they take turns frame by
    /// frame.
    pub bursts: bool,
}

/// A sender of prepared super-frames.
#[derive(Debug)]
pub struct Sender {
    socket: ports::PacketSocket,
    super_frames: TxBatch,
    /// The number of frames in each super-frame.
    frames: u64,
}

impl Sender {
    /// A sender in the testbed. Frames from the peer that are not to be `forwarded` get a
    /// destination MAC address that no interface has.
    ///
    /// # Errors
    /// Without `CAP_NET_RAW` or ethtool, or if the length is too small.
    pub fn new(testbed: &Testbed, traffic: Traffic, forwarded: bool) -> Result<Self, Error> {
        let (namespace, link) = match traffic.input {
            Input::Host => (&testbed.host, "eth0"),
            Input::Singles | Input::SuperFrames => (&testbed.peer, "down1"),
        };
        if traffic.input != Input::Host {
            udp_segmentation(namespace, link, traffic.input == Input::SuperFrames)?;
        }
        let to = if forwarded { UPLINK } else { UNUSED_MAC };
        Self::at(namespace, link, traffic, to)
    }

    /// A sender on any interface. Frames from a peer are addressed to `uplink`.
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
            Ok((nix::net::if_::if_nametoindex(link)?, ports::PacketSocket::open_sender()?))
        };
        let (ifindex, socket) = namespace.enter(open)??;
        let pairs = traffic.queue_pairs.max(1) as usize;
        let encapsulated = traffic.input != Input::Host;
        // Encapsulated super-frames consist of one flow, as those of a vtepd.
        let runs = traffic.bursts || encapsulated;
        let max_frames =
            if runs && pairs > MANY_PAIRS { MAX_FRAMES_MANY_PAIRS } else { MAX_FRAMES };
        let most = (MAX_BYTES / (traffic.length + 8)).min(max_frames);
        let count =
            if runs { pairs } else { pairs.div_ceil(most) }.next_multiple_of(SUPER_FRAMES_PER_CALL);
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
        Ok(Self { socket, super_frames: TxBatch::of(super_frames), frames: most as u64 })
    }

    /// Sends at the maximum rate for `time`. Returns the number of frames and the elapsed time.
    pub fn send(&mut self, time: Duration) -> (u64, Duration) {
        let (start, mut sent) = (Instant::now(), 0);
        while start.elapsed() < time {
            for index in (0..self.super_frames.len()).step_by(SUPER_FRAMES_PER_CALL) {
                sent += self.send_some(index);
                if start.elapsed() >= time {
                    break;
                }
            }
        }
        (sent, start.elapsed())
    }

    /// Sends [`SUPER_FRAMES_PER_CALL`] super-frames from `index` on, modulo their number. Returns the
    /// number of frames in them.
    pub fn send_some(&mut self, index: usize) -> u64 {
        let index = index % self.super_frames.len().max(1);
        let end = (index + SUPER_FRAMES_PER_CALL).min(self.super_frames.len());
        self.socket.transmit(&Batch::none(), &mut self.super_frames, index..end);
        let groups = self.super_frames.groups().list.get(index..end).unwrap_or_default();
        let taken = groups.iter().filter(|group| group.outcome.is_ok()).count();
        taken as u64 * self.frames
    }
}

/// Builds a frame of a queue pair, encapsulated if it comes from the peer.
fn frame(traffic: Traffic, uplink: MacAddr, pair: u32, sequence: u32) -> Result<Vec<u8>, Error> {
    let station = (pair % 256) as u8;
    if traffic.input == Input::Host {
        return inner(remote_station(station), HOST, traffic.length, pair, sequence);
    }
    let inner =
        inner(local_station(station), peer_station(station), traffic.length, pair, sequence)?;
    let mut frame = vec![0; Ipv4Addr::OUTER];
    let headers = OuterHeaders {
        macs: (GATEWAY, uplink),
        ends: (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1)),
        ports: (49_152 + (pair.wrapping_mul(0x9e37) % 16_384) as u16, PORT_VXLAN),
        tos: 0,
        ttl: 64,
        identification: 0,
        dont_fragment: false,
        flow_label: 0,
        l3_length: u16::try_from(Ipv4Addr::OUTER - Ethernet::LENGTH + inner.len())
            .map_err(|_| Error::from("a frame is too long"))?,
        udp_checksum: false,
        vni: Vni::try_from(1)?,
    };
    headers.write(&mut frame);
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

/// Builds a UDP super-frame from frames of one length.
fn joined(mut whole: Vec<u8>, length: usize, ifindex: u32) -> Result<TxFrame, Error> {
    let too_long = |_| Error::from("a super-frame is too long");
    let payload = u16::try_from(whole.len() - HEADERS).map_err(too_long)?;
    let headers =
        whole.get_mut(14..).and_then(<[u8]>::first_chunk_mut).ok_or("a frame without headers")?;
    patch_lengths(headers, payload);
    let size = u16::try_from(length - HEADERS).map_err(too_long)?;
    let offload = Offload {
        checksum: Checksum::Partial { start: 34, offset: 6 },
        gso: Some(Gso { kind: GsoKind::Udp, size, ecn: false }),
    };
    let to = Destination::Uplink { ifindex, path: 0, by_default: false, impaired: false };
    Ok(TxFrame::new(to, 0, Payload::Owned(whole.into()), offload))
}
