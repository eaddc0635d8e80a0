//! What is asserted of any input, one function per fuzz target.
//!
//! They are ordinary functions so that each input which once failed can stand in a test.

#![allow(missing_docs, clippy::missing_panics_doc, reason = "a fuzz target panics, that is how it speaks")]

use std::net::Ipv4Addr;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use entropy::{Entropy, Policy, Settings};
use fpm::{Frame as FpmFrame, Framer};
use frames::leaf::Leaf;
use pipeline::{
    Batch, Checksum, Counters, Explanation, Frame, Gso, GsoKind, Offload, Outgoing, Pipeline, Transmit, VlanTag,
    explain,
};
use tables::{Slot, Snapshot};

const LEAF_1: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const LEAF_2: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);
/// Of the leaves' only VNI.
const SLOT: u16 = 1;

static HERE: LazyLock<Snapshot> = LazyLock::new(|| Leaf::default().snapshot().unwrap());
static THERE: LazyLock<Snapshot> = LazyLock::new(|| Leaf::default().peer().unwrap());

/// Every offset lies within the frame, and every policy decides within its range.
pub fn dissect(data: &[u8]) {
    let Some(dissection) = wire::dissect(data) else {
        assert!(data.len() < 14);
        return;
    };
    assert!(usize::from(dissection.l3_offset) <= data.len());
    if let Some(transport) = dissection.transport {
        assert!(usize::from(transport.offset) <= data.len());
    }
    if let Some(length) = dissection.gso_header_length(data) {
        assert!(length <= data.len());
    }
    for policy in Policy::ALL {
        let entropy = Entropy::new(Settings { policy, ..Settings::default() }).unwrap();
        let explanation = entropy.explain(&dissection);
        assert_eq!(explanation.decision, entropy.decide(&dissection));
        assert!(explanation.range.contains(explanation.decision.source_port));
    }
}

/// The first ten bytes say what the kernel would have said beside the frame.
fn offload(data: &[u8]) -> Option<(Offload, &[u8])> {
    let (&[checksum, s0, s1, o0, o1, gso, g0, g1, ecn, _], frame) = data.split_first_chunk()?;
    let checksum = match checksum % 4 {
        0 => Checksum::AsIs,
        1 => Checksum::Valid,
        _ => Checksum::Partial { start: u16::from_be_bytes([s0, s1]), offset: u16::from_be_bytes([o0, o1]) },
    };
    let kind = match gso % 4 {
        0 => None,
        1 => Some(GsoKind::TcpV4),
        2 => Some(GsoKind::TcpV6),
        _ => Some(GsoKind::Udp),
    };
    let size = u16::from_be_bytes([g0, g1]);
    Some((Offload { checksum, gso: kind.map(|kind| Gso { kind, size, ecn: ecn & 1 == 1 }) }, frame))
}

/// Runs one frame through a pipeline and checks its accounts; returns what is sent.
fn run(
    frame: Frame<'_>,
    forward: impl FnOnce(&mut Pipeline, &Batch<'_>, &mut Outgoing),
) -> Vec<(Transmit, Vec<u8>)> {
    let mut pipeline = Pipeline::new(Arc::new(Counters::new()));
    let (mut batch, mut out) = (Batch::new(1), Outgoing::new());
    assert!(batch.push(frame));
    forward(&mut pipeline, &batch, &mut out);
    for transmit in &out {
        pipeline.account(transmit, Ok(()));
    }
    let counters = pipeline.counters();
    let received = counters.bridge_received.get() + counters.underlay_received.get();
    assert_eq!(
        received + counters.copies.get(),
        counters.sent.get() + counters.dropped_in_all() + counters.held.get()
    );
    out.iter().map(|transmit| (transmit.clone(), transmit.to_vec(&batch))).collect()
}

/// Every frame is accounted for, `explain` tells what is done, and the other end gets what was sent.
pub fn encapsulate(data: &[u8]) {
    let Some((offload, data)) = offload(data) else { return };
    if data.len() > 0xffff {
        return;
    }
    let vlan = Some(VlanTag { tpid: 0x88a8, tci: SLOT });
    let frame = Frame { data, vlan, offload };
    let sent = run(frame, |pipeline, batch, out| pipeline.encapsulate(batch, &HERE, Instant::now(), out));
    let ports: Vec<_> = sent.iter().map(|(_, bytes)| u16::from_be_bytes([bytes[34], bytes[35]])).collect();
    let told: Vec<_> = match explain(&frame, Slot::new(SLOT).unwrap(), &HERE) {
        Explanation::Dropped(_) => Vec::new(),
        Explanation::Forwarded(forwarded) => forwarded
            .copies
            .iter()
            .filter_map(|copy| copy.route.as_ref().ok())
            .map(|route| route.source_port)
            .collect(),
    };
    assert_eq!(ports, told);
    for (_, bytes) in &sent {
        let outer = Frame { data: bytes, vlan: None, offload: Offload::default() };
        let got = run(outer, |pipeline, batch, out| pipeline.decapsulate(batch, &THERE, Instant::now(), out));
        if bytes[56] & 1 == 1 || bytes[56..62] == [0; 6] {
            assert!(got.is_empty(), "no station has this address");
            continue;
        }
        let [(_, tagged)] = got.as_slice() else { panic!("{} frames out of one packet", got.len()) };
        assert_eq!([&tagged[..12], &tagged[16..]].concat(), bytes[50..]);
    }
}

/// Every frame is accounted for, and nothing is handed to the bridge that is no part of the packet.
pub fn decapsulate(data: &[u8]) {
    let Some((offload, data)) = offload(data) else { return };
    if data.len() > 0xffff {
        return;
    }
    // An outer header that is accepted, unless the input wants to speak about that, too.
    let (&wild, inner) = data.split_first().unwrap_or((&0, &[]));
    let mut frame = data.to_vec();
    if wild & 1 == 0 && inner.len() < 60_000 {
        let length = inner.len() as u16;
        frame = vec![2; 12];
        frame.extend([8, 0]);
        let ip = wire::Ipv4::new(LEAF_1, LEAF_2, 17, usize::from(length) + 16).unwrap();
        frame.extend(ip.as_bytes());
        let mut ip = *ip.as_bytes();
        ip[1] = wild >> 6;
        ip[10..12].fill(0);
        let sum = wire::checksum::checksum(&ip).to_be_bytes();
        ip[10..12].copy_from_slice(&sum);
        frame[14..].copy_from_slice(&ip);
        frame.extend([0xc0, 0, 0x12, 0xb5]);
        frame.extend((length + 16).to_be_bytes());
        frame.extend([0, 0, 8, 0, 0, 0, 0, 0x27, 0x1a, 0]);
        frame.extend(inner);
    }
    let received = Frame { data: &frame, vlan: None, offload };
    let sent = run(received, |pipeline, batch, out| pipeline.decapsulate(batch, &THERE, Instant::now(), out));
    let total: usize = sent.iter().map(|(_, bytes)| bytes.len() + 50 - 4 - 42).sum();
    assert!(sent.is_empty() || total <= frame.len() - 42);
}

/// Frames are the same wherever the stream is cut, and each decodes or says why not.
pub fn fpm_stream(data: &[u8]) {
    let (&size, stream) = data.split_first().unwrap_or((&0, &[]));
    let read = |chunk: usize| {
        let (mut framer, mut frames) = (Framer::new(), Vec::<FpmFrame>::new());
        for bytes in stream.chunks(chunk) {
            framer.push(bytes);
            loop {
                match framer.next_frame() {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(error) => return (frames, Some(error)),
                }
            }
        }
        (frames, None)
    };
    let whole = read(stream.len().max(1));
    assert_eq!(whole, read(usize::from(size).max(1)));
    for frame in &whole.0 {
        if let Err(error) = fpm::decode_frame(frame) {
            assert!(!error.to_string().is_empty());
        }
    }
}

/// Decoding ends, and nothing follows a message whose own length is wrong.
pub fn netlink_decode(data: &[u8]) {
    let mut failed = false;
    let mut messages = 0;
    for message in netlink::decode(data) {
        assert!(!failed, "a message behind one without an end");
        match message {
            Ok(message) => assert!(!format!("{message:?}").is_empty()),
            Err(error) => {
                assert!(error.offset <= data.len());
                failed = matches!(
                    error.what,
                    netlink::Malformed::MessageHeader { .. } | netlink::Malformed::MessageLength { .. }
                );
            }
        }
        messages += 1;
        assert!(messages <= data.len() / 16 + 1);
    }
}

#[cfg(test)]
mod tests {
    /// A frame of every kind passes through every target.
    #[test]
    fn the_targets_accept_ordinary_input() {
        let frame = frames::leaf::roce(64, 0x11, 1).unwrap();
        super::dissect(&frame);
        for header in [[0; 10], [2, 0, 34, 0, 6, 0, 0, 0, 0, 0], [2, 0, 34, 0, 6, 3, 0, 12, 0, 0]] {
            super::encapsulate(&[&header[..], &frame].concat());
            super::decapsulate(&[&header[..], &[0], &frame].concat());
            super::decapsulate(&[&header[..], &frame].concat());
        }
        super::fpm_stream(&[1, 1, 1, 0, 4, 1, 1, 0, 20, 16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        super::netlink_decode(&[16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
