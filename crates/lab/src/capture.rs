//! `lab capture`: packets of several leaves and links in one file, in the order of their times.
//!
//! Each source is a thread: it asks the vtepd of a leaf, or has a packet socket on an interface. If
//! the file is written too slowly, the sources wait, and the kernel drops and counts what finds no
//! room in their sockets.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use api::{Address, v1};
use fabric::deployed::Deployed;
use fabric::netns::NetnsError;
use fabric::topology::Endpoint;
use nix::net::if_::if_nametoindex;
use pcapng::{Direction, Packet, Writer};
use pipeline::gso;
use ports::capture::{CapturedFrame, with_tag};
use ports::{CaptureFilter, CaptureSocket, Poller};

use study::ask::AskError;

/// Messages of all sources that wait for the file.
const WAITING: usize = 32;
/// Packets of a message from an interface.
const MESSAGE: usize = 256;
/// How long a source sleeps at most.
const PAUSE: Duration = Duration::from_millis(20);
/// Packets wait so long for earlier ones of other sources.
const ORDER: Duration = Duration::from_millis(500);
/// The most packets that wait for that.
const MOST_WAITING: usize = 65_536;

/// A capture of several sources failed.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// A namespace cannot be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// A leaf's vtepd cannot be asked.
    #[error("{leaf}: {error}")]
    Leaf {
        /// The leaf.
        leaf: String,
        /// Why.
        error: AskError,
    },
    /// An interface cannot be captured.
    #[error("{end} cannot be captured: {error}")]
    Interface {
        /// The interface.
        end: Endpoint,
        /// Why.
        error: io::Error,
    },
    /// The file cannot be written.
    #[error("the capture cannot be written: {0}")]
    Output(#[from] io::Error),
}

/// What is captured.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Leaves whose vtepd is asked.
    pub leaves: Vec<String>,
    /// Interfaces, with all their packets.
    pub interfaces: Vec<Endpoint>,
    /// Which packets of the leaves.
    pub request: v1::CaptureRequest,
    /// End after so many packets.
    pub count: Option<u64>,
}

/// What a capture wrote, and what it lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Packets in the file.
    pub packets: u64,
    /// Packets that were lost because the file was written too slowly.
    pub lost: u64,
}

/// What a source tells.
enum Message {
    /// It captures from now on.
    Begun,
    /// Packets of the source with this number, and how many it has lost so far.
    Captured(usize, v1::Captured),
    /// It ends, and the capture with it.
    Ended,
}

/// A source that is a thread.
struct Source {
    number: usize,
    node: String,
    sender: SyncSender<Message>,
    stop: Arc<AtomicBool>,
}

type Thread = JoinHandle<Result<Result<(), CaptureError>, NetnsError>>;

/// Captures until `is_over` or until there are as many packets as wanted. Calls `begun` once all
/// sources capture.
///
/// # Errors
/// [`CaptureError`]. What was captured before is in the file.
pub fn capture(
    deployed: &Deployed,
    wanted: &Wanted,
    file: impl Write,
    begun: impl FnOnce(),
    is_over: impl Fn() -> bool,
) -> Result<Written, CaptureError> {
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, messages) = sync_channel(WAITING);
    let mut threads = Vec::new();
    let source = |node: &str, number| Source {
        number,
        node: node.to_owned(),
        sender: sender.clone(),
        stop: Arc::clone(&stop),
    };
    for leaf in &wanted.leaves {
        let (source, request) = (source(leaf, threads.len()), wanted.request.clone());
        threads.push(
            deployed.namespace(leaf)?.thread(move || source.run(|source| source.leaf(request)))?,
        );
    }
    for end in &wanted.interfaces {
        let (source, end) = (source(&end.node, threads.len()), end.clone());
        threads.push(
            deployed
                .namespace(&end.node)?
                .thread(move || source.run(|source| source.interface(&end)))?,
        );
    }
    drop(sender);
    let mut merged = Merged::new(file, wanted.count, threads.len())?;
    let written = merged.fill(&messages, begun, &is_over);
    stop.store(true, Ordering::Relaxed);
    // Sources that wait for room go on, and end.
    for message in &messages {
        merged.add(message);
    }
    let ended = threads.into_iter().try_for_each(join);
    written.and_then(|()| merged.finish())?;
    ended.map(|()| merged.written())
}

fn join(thread: Thread) -> Result<(), CaptureError> {
    thread.join().map_err(|_| io::Error::other("a thread of the capture panicked"))??
}

impl Source {
    /// Captures, and tells of the end.
    fn run(
        self,
        capture: impl FnOnce(&Self) -> Result<(), CaptureError>,
    ) -> Result<(), CaptureError> {
        let ended = capture(&self);
        // Nobody waits for it at the end of the capture.
        let _ = self.sender.send(Message::Ended);
        ended
    }

    /// Hands packets over. Returns `false` at the end of the capture.
    fn tell(&self, captured: v1::Captured) -> bool {
        let told = self.sender.send(Message::Captured(self.number, captured));
        told.is_ok() && !self.stop.load(Ordering::Relaxed)
    }

    /// Asks the vtepd of this thread's namespace for packets.
    fn leaf(&self, request: v1::CaptureRequest) -> Result<(), CaptureError> {
        let node = self.node.clone();
        let failed = |error: AskError| CaptureError::Leaf { leaf: node.clone(), error };
        let refused =
            |status: tonic::Status| failed(AskError::Refused(status.message().to_owned()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| failed(AskError::Runtime(error)))?.block_on(async {
            let client = api::connect(&Address::default()).await;
            let mut client = client.map_err(|error| failed(error.into()))?;
            let mut packets = client.capture(request).await.map_err(refused)?.into_inner();
            let _ = self.sender.send(Message::Begun);
            while !self.stop.load(Ordering::Relaxed) {
                let Ok(message) = tokio::time::timeout(PAUSE, packets.message()).await else {
                    continue;
                };
                let Some(mut captured) = message.map_err(refused)? else { break };
                for packet in &mut captured.packets {
                    packet.interface = format!("{node}:{}", packet.interface);
                }
                if !self.tell(captured) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Captures on an interface of this thread's namespace.
    fn interface(&self, end: &Endpoint) -> Result<(), CaptureError> {
        self.socket(end).map_err(|error| CaptureError::Interface { end: end.clone(), error })
    }

    fn socket(&self, end: &Endpoint) -> io::Result<()> {
        let mut socket =
            CaptureSocket::open(if_nametoindex(end.interface.as_str())?, &CaptureFilter::All)?;
        let (mut poller, mut lost, name) = (Poller::default(), 0, format!("link {end}"));
        let _ = self.sender.send(Message::Begun);
        loop {
            poller.wait([socket.as_fd()].into_iter(), Some(PAUSE))?;
            let mut packets = Vec::new();
            while packets.len() < MESSAGE {
                match socket.receive() {
                    Ok(Some(captured)) => packets.extend(of_interface(&name, &captured)),
                    Ok(None) => break,
                    // It was set down, and goes on once it is up.
                    Err(error) if error.raw_os_error() == Some(nix::libc::ENETDOWN) => break,
                    Err(error) => return Err(error),
                }
            }
            lost += socket.lost()?;
            if !self.tell(v1::Captured { packets, lost }) {
                return Ok(());
            }
        }
    }
}

/// The packets that a frame of an interface is on the wire.
fn of_interface<'a>(
    name: &'a str,
    captured: &CapturedFrame<'_>,
) -> impl Iterator<Item = v1::CapturedPacket> + use<'a> {
    let CapturedFrame { frame, time, outgoing } = *captured;
    let tag = frame.vlan;
    gso::packets(&frame).into_iter().map(move |data| {
        let data = tag.map_or_else(|| data.clone(), |tag| with_tag(&data, tag));
        v1::CapturedPacket {
            interface: name.to_owned(),
            direction: if outgoing { "out" } else { "in" }.to_owned(),
            time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            length: u32::try_from(data.len()).unwrap_or(u32::MAX),
            data,
            comment: String::new(),
        }
    })
}

/// Packets of all sources, in the order of their times.
struct Merged<W> {
    file: Writer<W>,
    /// Packets that wait, by their time and in the order in which they came.
    waiting: BTreeMap<(u64, u64), v1::CapturedPacket>,
    number: u64,
    /// How many packets each source has lost.
    lost: Vec<u64>,
    /// How many sources have not begun.
    silent: usize,
    packets: u64,
    most: u64,
}

impl<W: Write> Merged<W> {
    fn new(file: W, count: Option<u64>, sources: usize) -> io::Result<Self> {
        let mut file = Writer::new(file, "lab")?;
        file.flush()?;
        let (lost, most) = (vec![0; sources], count.unwrap_or(u64::MAX));
        let (waiting, number, packets) = (BTreeMap::new(), 0, 0);
        Ok(Self { file, waiting, number, lost, silent: sources, packets, most })
    }

    fn fill(
        &mut self,
        messages: &Receiver<Message>,
        begun: impl FnOnce(),
        is_over: impl Fn() -> bool,
    ) -> Result<(), CaptureError> {
        let mut begun = Some(begun);
        while !is_over() && self.packets < self.most {
            match messages.recv_timeout(PAUSE) {
                // Its result says why.
                Ok(Message::Ended) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(message) => self.add(message),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.silent == 0
                && let Some(begun) = begun.take()
            {
                begun();
            }
            let old = now().saturating_sub(nanoseconds(ORDER));
            self.write(|time, waiting| time <= old || waiting > MOST_WAITING)?;
        }
        Ok(())
    }

    fn add(&mut self, message: Message) {
        let (source, captured) = match message {
            Message::Captured(source, captured) => (source, captured),
            Message::Begun => {
                self.silent = self.silent.saturating_sub(1);
                return;
            }
            Message::Ended => return,
        };
        if let Some(lost) = self.lost.get_mut(source) {
            *lost = captured.lost;
        }
        for packet in captured.packets {
            self.number += 1;
            self.waiting.insert((packet.time_ns, self.number), packet);
        }
    }

    /// Writes the earliest packets, while `is_next` says so of the time of the first and of the number
    /// of those that wait.
    fn write(&mut self, is_next: impl Fn(u64, usize) -> bool) -> io::Result<()> {
        let before = self.packets;
        while self.packets < self.most {
            let waiting = self.waiting.len();
            let Some(first) = self.waiting.first_entry() else { break };
            let (time, _) = *first.key();
            if !is_next(time, waiting) {
                break;
            }
            let packet = first.remove();
            self.packets += 1;
            self.file.packet(&Packet {
                interface: &packet.interface,
                time,
                data: &packet.data,
                length: packet.length,
                direction: Direction::named(&packet.direction),
                comment: &packet.comment,
            })?;
        }
        if self.packets > before { self.file.flush() } else { Ok(()) }
    }

    /// Writes all that wait.
    fn finish(&mut self) -> Result<(), CaptureError> {
        self.write(|_, _| true)?;
        Ok(self.file.flush()?)
    }

    fn written(&self) -> Written {
        Written { packets: self.packets, lost: self.lost.iter().sum() }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn now() -> u64 {
    nanoseconds(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_all_sources_are_in_the_order_of_their_times() {
        let mut file = Vec::new();
        let mut merged = Merged::new(&mut file, Some(4), 2).unwrap();
        let packet = |interface: &str, time_ns| v1::CapturedPacket {
            interface: interface.to_owned(),
            time_ns,
            ..v1::CapturedPacket::default()
        };
        let old = now() - nanoseconds(2 * ORDER);
        let of = |source: usize, times: &[u64], lost| {
            let interface = ["one", "two"][source];
            let packets = times.iter().map(|time| packet(interface, *time)).collect();
            Message::Captured(source, v1::Captured { packets, lost })
        };
        let (sender, messages) = sync_channel(9);
        for message in [
            Message::Begun,
            of(0, &[old + 3, u64::MAX], 5),
            Message::Begun,
            of(1, &[old + 1, old + 4], 1),
            of(0, &[old + 5], 7),
        ] {
            sender.send(message).unwrap();
        }
        drop(sender);
        // The first message is written before the second is read: its time has passed.
        let mut begun = false;
        merged.fill(&messages, || begun = true, || false).unwrap();
        assert!(begun);
        assert_eq!(merged.written(), Written { packets: 4, lost: 8 });
        assert_eq!(merged.waiting.len(), 1, "the packet of a time that is to come");
        merged.finish().unwrap();
        assert_eq!(merged.written().packets, 4, "no more than wanted");
    }
}
