//! `vtepctl explain`: describes the flow or reads the frame to explain.

use std::io::Write;

use api::v1;
use wire::number::{ETHERTYPE_IPV4, PORT_VXLAN, PROTOCOL_UDP};
use wire::{Ethernet, Ipv4Packet, UdpDatagram, Vxlan};

use crate::arguments::{Explain, Flow, Output};
use crate::output::Failure;
use crate::session::Session;
use crate::{explain_text, pcap};

/// Asks about a captured frame, or about a frame of a described flow.
///
/// # Errors
/// When there is no such frame, or the daemon refuses the request.
pub(crate) async fn print<W: Write>(
    session: &mut Session<'_, W>,
    explain: Explain,
) -> Result<(), Failure> {
    let Explain { vni, pcap, received, frame: number, flow } = explain;
    if let (true, Some(file)) = (received, &pcap) {
        let request = v1::ExplainReceivedRequest { frame: pcap::frame(file, number)? };
        let answer = session.client.explain_received(request).await?.into_inner();
        return session.print(&answer, |out| explain_text::received(out, &answer));
    }
    let mut sent_by = None;
    let mut pieces = 1;
    let (vni, frame, flow) = match (pcap, vni) {
        (Some(file), vni) => {
            let frame = pcap::frame(&file, number)?;
            match (decapsulate(&frame), vni) {
                (_, Some(vni)) => (vni, frame, None),
                (Some(packet), None) => {
                    sent_by = Some(packet.source_port);
                    pieces = packet.pieces;
                    (packet.vni, packet.inner, None)
                }
                (None, None) => {
                    let text = "the captured frame is no VXLAN packet to port 4789: say with --vni which VNI it is sent in";
                    return Err(Failure::Input(text.to_owned()));
                }
            }
        }
        (None, Some(vni)) => (vni, Vec::new(), Some(message(&flow)?)),
        (None, None) => return Err(Failure::Input("which VNI? Name it with --vni".to_owned())),
    };
    let answer =
        session.client.explain(v1::ExplainRequest { vni, frame, flow }).await?.into_inner();
    session.print(&answer, |out| explain_text::write(out, &answer))?;
    if pieces > 1 && session.output == Output::Table {
        writeln!(
            session.out,
            "\nThe captured packet is a super-frame of {pieces} frames, which leave one by one: this is the first, and all of them have \
             one outer source port"
        )?;
    }
    if let (Some(port), Output::Table) = (sent_by, session.output) {
        let same = answer.copies.iter().all(|copy| copy.source_port == u32::from(port));
        let verdict = if same { "the same" } else { "another one: another policy, seed or sender" };
        writeln!(session.out, "\nThe captured packet has outer source port {port}: {verdict}")?;
    }
    Ok(())
}

/// The flow as the API describes it.
fn message(flow: &Flow) -> Result<v1::Flow, Failure> {
    if flow.dst_mac.is_none() && flow.dst.is_none() {
        let text = "the destination is missing: name its MAC address with --dst-mac, or its IP \
                    address with --dst (and --src)";
        return Err(Failure::Input(text.to_owned()));
    }
    Ok(v1::Flow {
        destination_mac: flow.dst_mac.map(|mac| mac.to_string()),
        source_mac: Some(flow.src_mac.to_string()),
        source: flow.src.map(|address| address.to_string()),
        destination: flow.dst.map(|address| address.to_string()),
        queue_pair: flow.qp,
        protocol: Some(flow.proto.into()),
        source_port: Some(flow.sport.into()),
        destination_port: Some(flow.dport.into()),
        payload: Some(flow.payload.into()),
    })
}

/// The content of a VXLAN packet.
struct Packet {
    source_port: u16,
    vni: u32,
    inner: Vec<u8>,
    /// Number of frames: a capture shows a super-frame before it is split.
    pieces: usize,
}

/// Length of an IPv4 frame according to its IP header. `None` if the frame may be padded or is not
/// IPv4.
fn frame_length(frame: &[u8]) -> Option<usize> {
    let (header, packet) = Ethernet::parse(frame).ok()?;
    let ip = Ipv4Packet::parse(packet).ok().filter(|_| header.ethertype() == ETHERTYPE_IPV4)?;
    let length = frame.len() - packet.len() + usize::from(ip.header.total_length());
    // A shorter frame may be padded to the minimum length of Ethernet.
    (length >= 60).then_some(length)
}

fn decapsulate(frame: &[u8]) -> Option<Packet> {
    let (_, packet) = Ethernet::parse(frame).ok()?;
    let ip = Ipv4Packet::parse(packet).ok()?;
    if ip.header.protocol() != PROTOCOL_UDP {
        return None;
    }
    let udp = UdpDatagram::parse(ip.payload).ok()?;
    if udp.header.destination_port() != PORT_VXLAN {
        return None;
    }
    let (vxlan, inner) = Vxlan::parse(udp.payload).ok()?;
    // A super-frame holds several VXLAN headers, each with a frame of the same length.
    let length = frame_length(inner).unwrap_or(inner.len());
    let (first, rest) = inner.split_at_checked(length).unwrap_or((inner, &[]));
    let is_whole = rest.is_empty()
        || Vxlan::parse(rest).is_ok_and(|(next, _)| next.as_bytes() == vxlan.as_bytes());
    let inner = if is_whole { first } else { inner };
    Some(Packet {
        pieces: udp.payload.len().div_ceil(Vxlan::LENGTH + inner.len()),
        source_port: udp.header.source_port(),
        vni: vxlan.vni().ok()?.get(),
        inner: inner.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use wire::number::PROTOCOL_TCP;
    use wire::{Ipv4, MacAddr, Udp};

    use super::*;

    /// A datagram to port 4789 that holds VXLAN packets in a row.
    fn packet(frames: &[Vec<u8>]) -> Vec<u8> {
        let vxlan = Vxlan::new(10.try_into().unwrap());
        let payload: Vec<u8> = frames
            .iter()
            .flat_map(|frame| [&vxlan.as_bytes()[..], frame.as_slice()].concat())
            .collect();
        let udp = Udp::new(50_000, PORT_VXLAN, payload.len()).unwrap();
        ipv4(PROTOCOL_UDP, &[&udp.as_bytes()[..], payload.as_slice()].concat())
    }

    fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let [from, to] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(std::net::Ipv4Addr::from);
        let ip = Ipv4::new(from, to, protocol, payload.len()).unwrap();
        let ethernet = Ethernet::new(MacAddr([2; 6]), MacAddr([4; 6]), ETHERTYPE_IPV4);
        [&ethernet.as_bytes()[..], ip.as_bytes(), payload].concat()
    }

    #[test]
    fn a_captured_super_frame_is_many_frames() {
        let (frame, short) = (ipv4(PROTOCOL_TCP, &[7; 100]), ipv4(PROTOCOL_TCP, &[7; 60]));
        let seen = |frames: &[Vec<u8>]| {
            decapsulate(&packet(frames)).map(|seen| (seen.inner, seen.pieces)).unwrap()
        };
        assert_eq!(seen(std::slice::from_ref(&frame)), (frame.clone(), 1));
        assert_eq!(seen(&[frame.clone(), frame.clone(), short]), (frame.clone(), 3));
        // Bytes after a frame are not further frames.
        let padded = [frame.as_slice(), &[0; 30]].concat();
        assert_eq!(seen(std::slice::from_ref(&padded)), (padded, 1));
    }
}
