//! Frames of hosts and of the underlay: dissection, encapsulation and decapsulation.

use std::net::Ipv4Addr;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use ::frames::leaf::Leaf;
use path::{Entropy, Policy, Settings};
use pipeline::explain_received::{Fate, explain_received};
use pipeline::{
    Batch, Checksum, Counters, DropReason, Explanation, Frame, Gso, GsoKind, Offload, Pipeline,
    TxBatch, TxFrame, VlanTag, explain,
};
use tables::{Snapshot, VniIndex};
use wire::ecn::Egress;

const LEAF_1: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const LEAF_2: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);
/// VniIndex of the leaves' only VNI.
const SLOT: u16 = 1;
/// Length of the outer headers in bytes.
const OUTER: usize = 50;
/// The shortest inner frame that a worker takes: an Ethernet header, a tag and its EtherType. The
/// steering program passes packets with shorter ones to the kernel.
const SHORTEST_INNER: usize = 20;

static HERE: LazyLock<Snapshot> = LazyLock::new(|| Leaf::default().snapshot().unwrap());
/// The snapshot of the receiving leaf.
pub(crate) static THERE: LazyLock<Snapshot> = LazyLock::new(|| Leaf::default().peer().unwrap());

/// Every offset lies within the frame, and every policy chooses a port within its range.
pub fn dissect(data: &[u8]) {
    let Some(dissection) = wire::dissect(data) else {
        assert!(data.len() < 14);
        return;
    };
    assert_eq!(
        (dissection.destination.0, dissection.source.0),
        (data[..6].try_into().unwrap(), data[6..12].try_into().unwrap())
    );
    assert!((14..=data.len()).contains(&usize::from(dissection.l3_offset)));
    let ethertype = &data[usize::from(dissection.l3_offset) - 2..][..2];
    assert_eq!(dissection.ethertype.to_be_bytes(), ethertype);
    if let Some(transport) = dissection.transport {
        assert!(
            (usize::from(dissection.l3_offset) + 20..=data.len())
                .contains(&usize::from(transport.offset))
        );
    }
    if let Some(length) = dissection.gso_header_length(data) {
        assert!(length > usize::from(dissection.l3_offset) && length <= data.len());
    }
    for policy in Policy::ALL {
        let entropy = Entropy::new(Settings { policy, ..Settings::default() }).unwrap();
        let explanation = entropy.explain(&dissection);
        assert_eq!(explanation.decision, entropy.decide(&dissection));
        assert!(explanation.range.contains(explanation.decision.source_port));
    }
}

/// Reads the kernel's metadata of a frame from the first ten bytes.
fn offload(data: &[u8]) -> Option<(Offload, &[u8])> {
    let (&[checksum, s0, s1, o0, o1, gso, g0, g1, ecn, _], frame) = data.split_first_chunk()?;
    let checksum = match checksum % 4 {
        0 => Checksum::AsIs,
        1 => Checksum::Valid,
        _ => Checksum::Partial {
            start: u16::from_be_bytes([s0, s1]),
            offset: u16::from_be_bytes([o0, o1]),
        },
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

/// The result of one frame in a pipeline.
pub(crate) struct Done {
    pub(crate) sent: Vec<(TxFrame, Vec<u8>)>,
    /// The drop reasons, one for each dropped frame.
    pub(crate) dropped: Vec<DropReason>,
}

/// Runs one frame through a pipeline and checks its counters.
pub(crate) fn run(
    frame: Frame<'_>,
    forward: impl FnOnce(&mut Pipeline, &Batch<'_>, &mut TxBatch),
) -> Done {
    let mut pipeline = Pipeline::new(Arc::new(Counters::new()));
    let (mut batch, mut out) = (Batch::new(1), TxBatch::new());
    assert!(batch.push(frame));
    forward(&mut pipeline, &batch, &mut out);
    for transmit in &out {
        pipeline.account_frame(transmit, Ok(()));
    }
    let counters = pipeline.counters();
    let received = counters.bridge_received.get() + counters.underlay_received.get();
    assert_eq!(received, 1);
    assert_eq!(
        received + counters.copies.get(),
        counters.sent.get() + counters.dropped_in_all() + counters.held.get()
    );
    assert_eq!(counters.held.get(), 0, "the MAC address of each next hop is known");
    let of = |reason: &DropReason| vec![*reason; counters.dropped(*reason) as usize];
    Done {
        dropped: DropReason::ALL.iter().flat_map(of).collect(),
        sent: out.iter().map(|transmit| (transmit.clone(), transmit.to_vec(&batch))).collect(),
    }
}

/// Every frame is counted, `explain` reports what is done, and the receiving leaf gets what was
/// sent.
pub fn encapsulate(data: &[u8]) {
    let Some((offload, data)) = offload(data) else { return };
    if data.len() > 0xffff {
        return;
    }
    let vlan = Some(VlanTag { tpid: 0x88a8, tci: SLOT });
    let frame = Frame { data, vlan, offload };
    let done =
        run(frame, |pipeline, batch, out| pipeline.encapsulate(batch, &HERE, Instant::now(), out));
    let ports: Vec<_> =
        done.sent.iter().map(|(_, bytes)| u16::from_be_bytes([bytes[34], bytes[35]])).collect();
    match explain(
        &frame,
        VniIndex::new(SLOT).unwrap(),
        &HERE,
        Instant::now(),
        &path::Pins::default(),
    ) {
        Explanation::Dropped(reason) => {
            assert_eq!((ports.len(), done.dropped.as_slice()), (0, [reason].as_slice()));
        }
        Explanation::Forwarded(forwarded) => {
            let routes = || forwarded.copies.iter().map(|copy| &copy.route);
            let explained: Vec<_> =
                routes().filter_map(|route| Some(route.as_ref().ok()?.source_port)).collect();
            assert_eq!(ports, explained);
            let mut refused: Vec<_> =
                routes().filter_map(|route| route.as_ref().err().copied()).collect();
            refused.sort();
            assert_eq!(done.dropped, refused);
        }
    }
    if offload == Offload::default()
        && let [(_, bytes)] = done.sent.as_slice()
    {
        assert!(bytes[OUTER..] == *data, "a frame without offloads is sent as it came");
    }
    done.sent.iter().for_each(|(_, bytes)| arrives(bytes));
}

/// The receiving leaf forwards what was sent, or counts the reason for a drop.
fn arrives(bytes: &[u8]) {
    let outer = Frame { data: bytes, vlan: None, offload: Offload::default() };
    let got =
        run(outer, |pipeline, batch, out| pipeline.decapsulate(batch, &THERE, Instant::now(), out));
    let inner = &bytes[OUTER..];
    let refused = if inner.len() < SHORTEST_INNER {
        Some(DropReason::InnerTruncated)
    } else if inner[6] & 1 == 1 || inner[6..12] == [0; 6] {
        Some(DropReason::InvalidSource)
    } else {
        None
    };
    assert_eq!(got.dropped, Vec::from_iter(refused));
    if refused.is_none() {
        let [(_, tagged)] = got.sent.as_slice() else {
            panic!("{} frames out of one packet", got.sent.len())
        };
        assert_eq!([&tagged[..12], &tagged[16..]].concat(), inner);
    }
}

/// An inner frame with Ethernet, IPv4, UDP and VXLAN headers that the receiving leaf accepts.
pub(crate) fn encapsulated(to: [u8; 6], tos: u8, inner: &[u8]) -> Vec<u8> {
    let vteps = (LEAF_1.octets(), LEAF_2.octets());
    let fields = test_frames::Ipv4 { tos, ..Default::default() };
    test_frames::tunnelled(([2; 6], to), vteps, 0xc000, 10_010, inner, fields)
}

/// A frame of the underlay. If the first byte is even, the frame gets valid outer headers with the
/// byte's upper two bits as the ECN field. If it is odd, the rest of the input is the frame.
pub(crate) fn underlay_frame(to: [u8; 6], data: &[u8]) -> Vec<u8> {
    match data.split_first() {
        Some((wild, inner)) if wild & 1 == 0 && inner.len() < 60_000 => {
            encapsulated(to, wild >> 6, inner)
        }
        Some((_, frame)) => frame.to_vec(),
        None => Vec::new(),
    }
}

/// Every frame is counted, `explain_received` reports what is done, and the bridge gets only the
/// inner frame.
pub fn decapsulate(data: &[u8]) {
    let Some((offload, data)) = offload(data) else { return };
    if data.len() > 0xffff {
        return;
    }
    let frame = underlay_frame([2; 6], data);
    let received = Frame { data: &frame, vlan: None, offload };
    let done = run(received, |pipeline, batch, out| {
        pipeline.decapsulate(batch, &THERE, Instant::now(), out);
    });
    let total: usize = done.sent.iter().map(|(_, bytes)| bytes.len() + OUTER - 4 - 42).sum();
    assert!(done.sent.is_empty() || total <= frame.len() - 42);
    if offload != Offload::default() {
        return;
    }
    match explain_received(&received, &THERE, &[], Instant::now()).fate {
        // The worker drops it. In operation the programs pass such a packet to the kernel.
        Fate::Kernel(_) => assert_eq!((done.sent.len(), done.dropped.len()), (0, 1)),
        Fate::Dropped(reason) => assert_eq!((done.sent.len(), done.dropped), (0, vec![reason])),
        Fate::Host { .. } => panic!("no host port is open"),
        // A partial outer checksum is known only from the kernel's metadata, which is absent here.
        Fate::Bridge(_) if done.dropped == [DropReason::OuterUdpChecksum] => {
            assert_eq!(frame[40..42], pseudo_header_sum(&frame).to_be_bytes());
        }
        Fate::Bridge(ecn) => {
            assert_eq!(done.dropped, []);
            let [(_, tagged)] = done.sent.as_slice() else { panic!("{} frames", done.sent.len()) };
            assert_eq!(tagged[12..16], [0x88, 0xa8, 0, SLOT as u8]);
            let bridged = [&tagged[..12], &tagged[16..]].concat();
            same_but_for_congestion(&bridged, &frame, ecn);
        }
    }
}

/// The pseudo-header sum that a partial checksum leaves in the UDP header.
fn pseudo_header_sum(frame: &[u8]) -> u16 {
    let word = |at: usize| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let sum: u32 = [26, 28, 30, 32, 38].into_iter().map(word).sum::<u32>() + 17;
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The bridge gets the packet's inner frame. Only the ECN field may have changed, and the IPv4
/// header checksum with it.
fn same_but_for_congestion(bridged: &[u8], frame: &[u8], ecn: Option<Egress>) {
    let end = 34 + usize::from(u16::from_be_bytes([frame[38], frame[39]]));
    let mut inner = frame[OUTER..end].to_vec();
    if let Some(Egress::Set(codepoint)) = ecn {
        let l3 = usize::from(wire::dissect(&inner).unwrap().l3_offset);
        if inner[l3] >> 4 == 4 {
            assert!(wire::ecn::set(&mut inner[l3..], codepoint));
            let [before, after] = [&frame[OUTER + l3..], bridged[l3..].as_ref()]
                .map(|ip| wire::checksum::Sum::new().bytes(&ip[..20]).is_intact());
            assert!(after || !before, "the header checksum follows the ECN field");
        } else {
            assert!(wire::ecn::set(&mut inner[l3..], codepoint));
        }
    }
    assert_eq!(bridged, inner);
}
