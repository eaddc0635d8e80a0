//! Super-frames that an endpoint sends: the link carries the same frames as without.

use std::time::{Duration, Instant};

use fabric::netns::Namespace;
use fabric::super_frames::cut_super_frames;
use frame::{Checksum, Frame};
use ports::{PacketSocket, Port as _, RingSize};
use roce::{
    Address, Connection, End, Endpoint, Frames, Group, Operation, Pattern, Place, Settings,
    SourcePort, WorkRequest,
};
use root_test::root_test;
use traffic::endpoint::Transmit;
use wire::checksum::{self, Sum};
use wire::{Ipv4Packet, MacAddr, Psn, QueuePair};

use crate::pair;

const MTU: u32 = 1500;

/// A namespace with an end of a link, and a packet socket there.
fn end(namespace: &Namespace) -> PacketSocket {
    let index = || nix::net::if_::if_nametoindex("eth1").unwrap();
    let room = RingSize { frames: 1024, longest: MTU as usize };
    namespace.enter(|| PacketSocket::open(index(), room).unwrap()).unwrap()
}

/// The frames of two queue pairs that write messages of many packets, the last ones short.
fn frames() -> Frames {
    let settings = Settings { burst: 20, ..Settings::default() };
    let mut endpoint = Endpoint::new(settings).unwrap();
    for number in 1..3 {
        let end = |last| End {
            number: QueuePair::from_be_bytes([0, 0, number]),
            first: Psn::new(7),
            address: Address { mac: MacAddr([2, 0, 0, 0, 0, last]), ip: [192, 0, 2, last].into() },
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
        assert!(start.elapsed() < Duration::from_secs(60), "{} of {count}", seen.0.len());
        let ours = |frame: &&Frame<'_>| frame.data.get(12..14) == Some(&[8, 0]);
        for frame in socket.receive().frames().filter(ours) {
            assert_eq!(frame.offload.gso, None, "a frame is cut before the link");
            let mut bytes = frame.data.to_vec();
            if let Checksum::Partial { start, offset } = frame.offload.checksum {
                checksum::complete(&mut bytes, start.into(), offset.into()).unwrap();
            }
            let has_checksum = bytes[40..42] != [0, 0];
            if has_checksum {
                let Ipv4Packet { header, payload, .. } = Ipv4Packet::parse(&bytes[14..]).unwrap();
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

#[root_test]
fn the_link_carries_the_same_frames_as_without_super_frames() {
    let [a, b] = pair("gso", MTU);
    let (mut sender, mut receiver) = (end(&a), end(&b));
    let frames = frames();
    let expected: Vec<Vec<u8>> = frames.iter().map(<[u8]>::to_vec).collect();
    for cut in [false, true] {
        if cut {
            a.enter(|| cut_super_frames("eth1").unwrap()).unwrap();
        }
        let mut transmit = a.enter(|| Transmit::new("eth1", 1200)).unwrap();
        assert_eq!(transmit.has_super_frames(), cut);
        transmit.send(&mut sender, &frames).unwrap();
        let (bytes, checksums) = arriving(&mut receiver, frames.len());
        assert!(bytes == expected, "{bytes:02x?}");
        // The kernel gives the frames of groups a checksum. Linux before 6.2 refuses groups.
        let in_group = |group: Group<'_>| {
            let frames = group.frames().count();
            std::iter::repeat_n(frames > 1 && transmit.has_super_frames(), frames)
        };
        assert_eq!(checksums, frames.groups().flat_map(in_group).collect::<Vec<_>>());
    }
    assert_eq!(receiver.overruns().unwrap(), 0);
}

#[root_test]
fn no_super_frames_where_they_could_go_wrong() {
    let [a, _b] = pair("whole", MTU);
    let groups = |longest| a.enter(|| Transmit::new("eth1", longest).has_super_frames()).unwrap();
    assert!(!groups(1200), "the link carries super-frames whole");
    a.enter(|| cut_super_frames("eth1").unwrap()).unwrap();
    assert!(groups(1514) && !groups(1515), "a frame that is too long has to be refused");
    a.run(&["tc", "qdisc", "add", "dev", "eth1", "root", "pfifo"]).unwrap();
    assert!(!groups(1200), "a queueing discipline has to see frames");
}
