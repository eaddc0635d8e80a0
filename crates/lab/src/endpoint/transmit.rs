//! Sends the frames of an endpoint. Where the kernel cuts UDP super-frames before they leave the
//! interface, consecutive frames of a queue pair go to the kernel as one super-frame. The frames on
//! the link are the same, but the kernel adds UDP checksums, which RoCE does not use.

use std::io;

use frame::{
    Batch, Checksum, Destination, DropReason, ETHERNET, Frame, Gso, GsoGroup, GsoKind, Offload,
    Payload, Queue, SHARED_HEADERS, TxBatch,
};
use ports::{PacketSocket, ethtool};
use roce::{Frames, Group};

/// The feature of interfaces that take UDP super-frames whole.
const SEGMENTATION: &str = "tx-udp-segmentation";
/// Where the UDP header is in a frame, and where the checksum is in it.
const UDP: u16 = 34;
const UDP_CHECKSUM: u16 = 6;
/// Frames leave by the interface of the socket.
const TO: Destination = Destination::Port(0);

/// Has the kernel cut the UDP super-frames that leave by an interface of the calling thread's
/// namespace. Otherwise a veth link carries them whole. Endpoints that are opened afterwards send
/// super-frames.
///
/// # Errors
/// When the kernel refuses.
pub fn cut_super_frames(interface: &str) -> io::Result<()> {
    ethtool::switch_off(interface, &[SEGMENTATION])
}

/// What is sent, and how.
#[derive(Debug)]
pub(super) struct Transmit {
    out: TxBatch,
    /// Whether super-frames may be sent.
    groups: bool,
}

impl Transmit {
    /// Frames that leave by an interface of the calling thread's namespace. The longest has
    /// `longest` bytes. No super-frames are sent if a queueing discipline would see them, or if a
    /// frame may exceed the MTU: the kernel does not report that for super-frames.
    pub(super) fn new(interface: &str, longest: usize) -> Self {
        let link = netlink::Requests::open().and_then(|mut requests| requests.link(interface));
        let fits = link
            .ok()
            .flatten()
            .is_some_and(|link| link.qdisc == "noqueue" && longest <= link.mtu as usize + ETHERNET);
        let groups = fits && ethtool::is_off(interface, SEGMENTATION).unwrap_or(false);
        Self { out: TxBatch::new(), groups }
    }

    /// Sends frames. A full queue drops frames, as a NIC's does.
    ///
    /// # Errors
    /// Why the first frame that could not be sent was refused.
    pub(super) fn send(
        &mut self,
        socket: &mut PacketSocket,
        frames: &Frames,
    ) -> Result<(), DropReason> {
        let mut batch = Batch::new(frames.len());
        self.out.clear();
        for group in frames.groups() {
            self.add(&mut batch, &group);
        }
        let count = self.out.len() as u32;
        let (_, groups) = self.out.split_mut();
        groups.next.extend(1..=count);
        groups.set_queue(Queue::Ports, 0);
        let all = 0..groups.list.len();
        socket.transmit(&batch, &mut self.out, all);
        match self.out.outcome() {
            // Linux before 6.2 takes no UDP super-frames. The peer ignores what arrives twice.
            Err(DropReason::TransmitError) if std::mem::take(&mut self.groups) => {
                self.send(socket, frames)
            }
            Err(DropReason::TransmitBusy) => Ok(()),
            outcome => outcome,
        }
    }

    /// Adds a group as one super-frame, or its frames one by one.
    fn add<'a>(&mut self, batch: &mut Batch<'a>, group: &Group<'a>) {
        let headers = if self.groups { group.headers() } else { None };
        let start = if headers.is_some() { SHARED_HEADERS as u32 } else { 0 };
        let first = self.out.len() as u32;
        for (data, number) in group.frames().zip(0..) {
            let body = Payload::Received { frame: first + number, range: start..data.len() as u32 };
            batch.push(Frame { data, vlan: None, offload: Offload::default() });
            let Some(frame) = self.out.append(TO, 0, body, Offload::default()) else { return };
            if let Some(headers) = headers.filter(|_| number == 0) {
                // The headers fit: a head has room for more.
                let _ = frame.extend_head(&headers);
            }
        }
        let (frames, groups) = self.out.split_mut();
        let singles = frames.iter().zip(0..).skip(first as usize);
        let mut singles = singles.map(|(frame, index)| GsoGroup::single(frame, index));
        if headers.is_none() {
            groups.list.extend(singles);
        } else if let Some(single) = singles.next() {
            let gso = Gso { kind: GsoKind::Udp, size: group.segment() as u16, ecn: false };
            let checksum = Checksum::Partial { start: UDP, offset: UDP_CHECKSUM };
            let offload = Offload { checksum, gso: Some(gso) };
            let last = frames.len() as u32 - 1;
            groups.list.push(GsoGroup { last, frames: last - first + 1, offload, ..single });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use roce::{
        Address, Connection, End, Endpoint, Operation, Pattern, Place, Psn, Settings, SourcePort,
        WorkRequest,
    };
    use wire::checksum::{self, Sum};
    use wire::{Ipv4Packet, MacAddr, QueuePair};

    use ports::RingSize;

    use super::*;
    use fabric::netns::{Namespace, veth};

    const MTU: u32 = 1500;

    /// A namespace with an end of a link, and a packet socket there.
    fn end(namespace: &Namespace) -> PacketSocket {
        let index = || nix::net::if_::if_nametoindex("eth1").unwrap();
        let room = RingSize { frames: 1024, longest: MTU as usize };
        namespace.enter(|| PacketSocket::open(index(), room).unwrap()).unwrap()
    }

    fn pair() -> [Namespace; 2] {
        static PAIRS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let pair = PAIRS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = |end: &str| format!("lab-gso-{}-{pair}-{end}", std::process::id());
        let [a, b] = ["a", "b"].map(|end| Namespace::create(name(end)).unwrap());
        veth((&a, "eth1"), (&b, "eth1"), MTU).unwrap();
        [a, b]
    }

    /// The frames of two queue pairs that write messages of many packets, the last ones short.
    fn frames() -> Frames {
        let settings = Settings { burst: 20, ..Settings::default() };
        let mut endpoint = Endpoint::new(settings).unwrap();
        for number in 1..3 {
            let end = |last| End {
                number: QueuePair::from_be_bytes([0, 0, number]),
                first: Psn::new(7),
                address: Address {
                    mac: MacAddr([2, 0, 0, 0, 0, last]),
                    ip: [192, 0, 2, last].into(),
                },
            };
            let source_port = SourcePort::PerQueuePair;
            let connection = Connection { local: end(1), remote: end(2), source_port };
            let handle = endpoint.connect(&connection).unwrap();
            for length in [30 * 1024 + 5, 1024, 17] {
                let operation = Operation::Write { remote: Place::default(), immediate: Some(1) };
                let work = WorkRequest { id: 0, operation, local: Place::default(), length };
                endpoint.post(handle, work, 0).unwrap();
            }
        }
        let mut frames = Frames::default();
        endpoint.transmit(0, &mut frames, 1000, &Pattern::new(1));
        assert_eq!(frames.len(), 66);
        frames
    }

    /// The frames that arrive, with a UDP checksum of 0, and whether each had one, which is right.
    fn arriving(socket: &mut PacketSocket, count: usize) -> (Vec<Vec<u8>>, Vec<bool>) {
        let (mut seen, start) = ((Vec::new(), Vec::new()), Instant::now());
        while seen.0.len() < count {
            assert!(start.elapsed() < Duration::from_secs(5), "{} of {count}", seen.0.len());
            let ours = |frame: &&Frame<'_>| frame.data.get(12..14) == Some(&[8, 0]);
            for frame in socket.receive().frames().filter(ours) {
                assert_eq!(frame.offload.gso, None, "a frame is cut before the link");
                let mut bytes = frame.data.to_vec();
                if let Checksum::Partial { start, offset } = frame.offload.checksum {
                    checksum::complete(&mut bytes, start.into(), offset.into()).unwrap();
                }
                let has_checksum = bytes[40..42] != [0, 0];
                if has_checksum {
                    let Ipv4Packet { header, payload, .. } =
                        Ipv4Packet::parse(&bytes[14..]).unwrap();
                    let (source, destination) = (header.source(), header.destination());
                    let length = payload.len() as u16;
                    let sum = Sum::new().pseudo_ipv4(source, destination, 17, length);
                    assert!(sum.bytes(payload).is_intact(), "{bytes:02x?}");
                    bytes[40..42].fill(0);
                }
                seen.0.push(bytes);
                seen.1.push(has_checksum);
            }
        }
        seen
    }

    #[test]
    fn the_link_carries_the_same_frames_as_without_super_frames() {
        if !nix::unistd::geteuid().is_root() {
            println!(
                "SKIPPED the_link_carries_the_same_frames_as_without_super_frames: needs root"
            );
            return;
        }
        let [a, b] = pair();
        let (mut sender, mut receiver) = (end(&a), end(&b));
        let frames = frames();
        let expected: Vec<Vec<u8>> = frames.iter().map(<[u8]>::to_vec).collect();
        for cut in [false, true] {
            if cut {
                a.enter(|| cut_super_frames("eth1").unwrap()).unwrap();
            }
            let mut transmit = a.enter(|| Transmit::new("eth1", 1200)).unwrap();
            assert_eq!(transmit.groups, cut);
            transmit.send(&mut sender, &frames).unwrap();
            let (bytes, checksums) = arriving(&mut receiver, frames.len());
            assert!(bytes == expected, "{bytes:02x?}");
            // The kernel gives the frames of groups a checksum. Linux before 6.2 refuses groups.
            let in_group = |group: Group<'_>| {
                let frames = group.frames().count();
                std::iter::repeat_n(frames > 1 && transmit.groups, frames)
            };
            assert_eq!(checksums, frames.groups().flat_map(in_group).collect::<Vec<_>>());
        }
        assert_eq!(receiver.overruns().unwrap(), 0);
    }

    #[test]
    fn no_super_frames_where_they_could_go_wrong() {
        if !nix::unistd::geteuid().is_root() {
            println!("SKIPPED no_super_frames_where_they_could_go_wrong: needs root");
            return;
        }
        let [a, _b] = pair();
        let groups = |longest| a.enter(|| Transmit::new("eth1", longest).groups).unwrap();
        assert!(!groups(1200), "the link carries super-frames whole");
        a.enter(|| cut_super_frames("eth1").unwrap()).unwrap();
        assert!(groups(1514) && !groups(1515), "a frame that is too long has to be refused");
        a.run(&["tc", "qdisc", "add", "dev", "eth1", "root", "pfifo"]).unwrap();
        assert!(!groups(1200), "a queueing discipline has to see frames");
    }
}
