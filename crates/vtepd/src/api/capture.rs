//! A capture: packets of the uplinks, the frames in them, and frames that workers and programs drop.
//!
//! Packet sockets on the uplinks see what programs, workers and the kernel send and receive alike,
//! so nothing that forwards knows of a capture. Each capture is a thread. If its reader is slow, the
//! thread waits, and the kernel drops and counts what finds no room in the sockets.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use api::v1;
use pipeline::dropped::{DroppedFrame, DroppedFrames, Origin};
use pipeline::{DropReason, gso};
use ports::{CaptureFilter, CaptureSocket, Poller, capture::with_tag};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::Status;
use wire::Vni;

use crate::api::captured::{Tunnelled, Wanted, Words, because, message};
use crate::handle::Handle;

/// Captures at the same time.
pub(super) const MOST: usize = 4;
/// Messages that wait for the reader.
const WAITING: usize = 8;
/// Bytes of packets in a message, apart from the last packet.
const MESSAGE: usize = 256 << 10;
/// Packets that are read from one uplink before the next one has its turn.
const TURN: usize = 256;
/// How long the thread sleeps at most. Then it looks for dropped frames, and for its end.
const PAUSE: Duration = Duration::from_millis(20);
/// How often uplinks are looked for.
const LOOK: Duration = Duration::from_secs(1);

/// The answer to one capture more than there may be.
pub(super) fn too_many() -> Status {
    Status::resource_exhausted(format!("{MOST} captures run already: end one of them first"))
}

/// The answer if the kernel refuses a capture.
pub(super) fn failed(error: io::Error) -> Status {
    Status::internal(format!("the uplinks cannot be captured: {error}"))
}

/// What a stream of packets yields.
pub(super) type Packets = mpsc::Receiver<Result<v1::Captured, Status>>;

/// A capture whose sockets are open.
pub(super) struct Capture {
    handle: Arc<Handle>,
    wanted: Wanted,
    snap_length: usize,
    /// UDP ports of VXLAN.
    ports: Vec<u16>,
    /// The socket of each uplink, with its name.
    uplinks: BTreeMap<u32, (String, CaptureSocket)>,
    looked: Instant,
    words: Words,
    /// For each worker and for the programs, and for each reason, how many dropped frames were read.
    dropped: Vec<Vec<u64>>,
    /// The same, how many were missed.
    missed: Vec<u64>,
    lost: u64,
}

impl Capture {
    /// Opens the sockets. Packets and dropped frames count from now on.
    ///
    /// # Errors
    /// When the kernel refuses a socket.
    pub(super) fn open(
        handle: Arc<Handle>,
        wanted: Wanted,
        snap_length: usize,
    ) -> io::Result<Self> {
        let seen = |reason: &DropReason, frames: &DroppedFrames| frames.since(*reason, u64::MAX).1;
        let dropped = droppers(&handle)
            .map(|(frames, _)| DropReason::ALL.iter().map(|reason| seen(reason, frames)).collect())
            .collect();
        let missed = droppers(&handle).map(|(_, missed)| missed).collect();
        let mut capture = Self {
            wanted,
            snap_length: if snap_length == 0 { usize::MAX } else { snap_length },
            ports: Vec::new(),
            uplinks: BTreeMap::new(),
            looked: Instant::now(),
            words: Words::new(),
            dropped,
            missed,
            lost: 0,
            handle,
        };
        capture.look()?;
        Ok(capture)
    }

    /// Starts the thread. It ends with the receiver, which the place of the capture outlives.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn start(mut self, place: OwnedSemaphorePermit) -> io::Result<Packets> {
        let (sender, packets) = mpsc::channel(WAITING);
        let run = move || {
            let _place = place;
            if let Err(error) = self.run(&sender) {
                let _ = sender
                    .blocking_send(Err(Status::aborted(format!("the capture ended: {error}"))));
            }
        };
        std::thread::Builder::new().name("capture".to_owned()).spawn(run)?;
        Ok(packets)
    }

    fn run(&mut self, sender: &mpsc::Sender<Result<v1::Captured, Status>>) -> io::Result<()> {
        let (mut poller, mut told) = (Poller::default(), 0);
        loop {
            if self.looked.elapsed() > LOOK {
                self.look()?;
            }
            let sockets = self.uplinks.values().map(|(_, socket)| socket.as_fd());
            poller.wait(sockets, Some(PAUSE))?;
            let mut packets = self.dropped();
            self.captured(&mut packets)?;
            // Frames of one packet keep their order.
            packets.sort_by_key(|packet| packet.time_ns);
            if packets.is_empty() && self.lost == told {
                if sender.is_closed() {
                    return Ok(());
                }
                continue;
            }
            told = self.lost;
            let message = v1::Captured { packets, lost: self.lost };
            // The reader may be slow. Packets wait in the sockets meanwhile.
            if sender.blocking_send(Ok(message)).is_err() {
                return Ok(());
            }
        }
    }

    /// Captures on uplinks that are new, and not on those that are gone.
    fn look(&mut self) -> io::Result<()> {
        self.looked = Instant::now();
        let snapshot = self.handle.snapshot();
        let mut ports: Vec<u16> =
            snapshot.vnis().map(|table| table.tunnel.destination_port).collect();
        ports.extend(snapshot.kernel_vnis().values().map(|vni| vni.tunnel.destination_port));
        ports.push(wire::number::PORT_VXLAN);
        ports.sort_unstable();
        ports.dedup();
        if ports != self.ports {
            self.uplinks.clear();
            self.ports = ports;
        }
        let uplinks: BTreeMap<u32, String> = {
            let status = self.handle.status.borrow();
            status.plan.uplinks.iter().map(|one| (one.ifindex, one.name.clone())).collect()
        };
        self.uplinks.retain(|ifindex, _| uplinks.contains_key(ifindex));
        let filter = CaptureFilter::Vxlan { ports: self.ports.clone(), vni: self.wanted.vni };
        for (ifindex, name) in uplinks {
            let Entry::Vacant(place) = self.uplinks.entry(ifindex) else { continue };
            match CaptureSocket::open(ifindex, &filter) {
                Ok(socket) => drop(place.insert((name, socket))),
                // It is gone since.
                Err(error) if error.raw_os_error() == Some(nix::libc::ENODEV) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what the sockets have, up to a message, and what they have lost.
    fn captured(&mut self, packets: &mut Vec<v1::CapturedPacket>) -> io::Result<()> {
        let Self { handle, wanted, snap_length, ports, uplinks, words, lost, .. } = self;
        let mut bytes = 0;
        for (ifindex, (name, socket)) in uplinks {
            for _ in 0..TURN {
                if bytes >= MESSAGE {
                    break;
                }
                let captured = match socket.receive() {
                    Ok(Some(captured)) => captured,
                    Ok(None) => break,
                    // It was set down, and goes on once it is up.
                    Err(error) if error.raw_os_error() == Some(nix::libc::ENETDOWN) => break,
                    Err(error) => return Err(error),
                };
                for packet in gso::packets(&captured.frame) {
                    let packet = match captured.frame.vlan {
                        Some(tag) => with_tag(&packet, tag),
                        None => packet,
                    };
                    let direction = (*ifindex, captured.outgoing);
                    let about = Packet { data: &packet, time: captured.time, direction, name };
                    let before = packets.len();
                    about.show((handle, words), (wanted, ports, *snap_length), packets);
                    bytes += packets.iter().skip(before).map(size).sum::<usize>();
                }
            }
            *lost += socket.lost()?;
        }
        Ok(())
    }

    /// The frames that workers and programs have dropped since the last call.
    fn dropped(&mut self) -> Vec<v1::CapturedPacket> {
        let Self { handle, wanted, dropped, missed, lost, ports, .. } = self;
        let snapshot = handle.snapshot();
        let (now, clock) = (Instant::now(), SystemTime::now());
        let clock = clock.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut packets = Vec::new();
        for (((frames, all_missed), seen), missed) in droppers(handle).zip(dropped).zip(missed) {
            for (reason, seen) in DropReason::ALL.iter().zip(seen) {
                let (new, count) = frames.since(*reason, *seen);
                *lost += count.saturating_sub(*seen).saturating_sub(new.len() as u64);
                *seen = count;
                for frame in &new {
                    let table = snapshot.vnis().find(|one| one.index.get() == frame.slot);
                    let vni = table.map(|table| table.tunnel.vni);
                    if wanted.is_all() || is_wanted(wanted, frame, vni, ports) {
                        let ago = now.saturating_duration_since(frame.time);
                        let of = vni.map(|vni| format!(", VNI {vni}")).unwrap_or_default();
                        let from = match frame.origin {
                            Origin::Underlay | Origin::Decapsulated => "an uplink",
                            Origin::Hosts => "hosts",
                            Origin::Worker => "a worker",
                        };
                        let comment = format!("dropped, from {from}{of}: {}", because(*reason));
                        let data = (frame.headers(), frame.length);
                        packets.push(message(
                            "dropped",
                            None,
                            clock.saturating_sub(ago),
                            data,
                            comment,
                        ));
                    }
                }
            }
            *lost += all_missed.saturating_sub(std::mem::replace(missed, all_missed));
        }
        packets
    }
}

/// The dropped frames of each worker and of the programs, and how many of them are not remembered.
fn droppers(handle: &Handle) -> impl Iterator<Item = (&DroppedFrames, u64)> {
    let workers = handle.workers().iter().map(|worker| &worker.dropped_frames);
    let workers = workers.map(|frames| (frames, frames.missed()));
    workers.chain([(&handle.program_drops.frames, handle.program_drops.missed())])
}

/// Whether a dropped frame is wanted.
fn is_wanted(wanted: &Wanted, frame: &DroppedFrame, vni: Option<Vni>, ports: &[u16]) -> bool {
    match frame.origin {
        Origin::Hosts | Origin::Decapsulated | Origin::Worker => wanted.has(vni, frame.headers()),
        Origin::Underlay => Tunnelled::parse(frame.headers(), ports)
            .is_some_and(|packet| wanted.has_packet(&packet)),
    }
}

fn size(packet: &v1::CapturedPacket) -> usize {
    packet.data.len() + packet.comment.len() + 64
}

/// A packet of an uplink.
struct Packet<'a> {
    data: &'a [u8],
    time: Duration,
    /// The uplink's index, and whether it sent the packet.
    direction: (u32, bool),
    /// The uplink's name.
    name: &'a str,
}

impl Packet<'_> {
    /// Appends the packet, and the frame in it if that passed the leaf, in the order in which they
    /// passed.
    fn show(
        &self,
        (handle, words): (&Handle, &mut Words),
        (wanted, ports, snap_length): (&Wanted, &[u16], usize),
        packets: &mut Vec<v1::CapturedPacket>,
    ) {
        let Self { data, time, direction, name } = *self;
        let (_, outgoing) = direction;
        let cut = |bytes: &[u8]| (bytes.get(..snap_length).unwrap_or(bytes).to_vec(), bytes.len());
        let show = |interface: &str, outgoing: bool, bytes: &[u8], comment: String| {
            let (data, length) = cut(bytes);
            message(interface, Some(outgoing), time, (&data, length), comment)
        };
        let Some(packet) = Tunnelled::parse(data, ports) else {
            if wanted.is_all() {
                packets.push(show(name, outgoing, data, "no VXLAN packet of a VNI".to_owned()));
            }
            return;
        };
        if !wanted.has_packet(&packet) {
            return;
        }
        let (comment, passed) = words.about(handle, direction, &packet);
        let inner = passed.then(|| show("inner", !outgoing, packet.inner, comment.clone()));
        let outer = show(name, outgoing, data, comment);
        let (first, second) = if outgoing { (inner, Some(outer)) } else { (Some(outer), inner) };
        packets.extend(first.into_iter().chain(second));
    }
}
