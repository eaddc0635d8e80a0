//! RoCEv2 frames over IPv4: building and reading them.

use std::net::Ipv4Addr;

use wire::ecn::Codepoint;
use wire::roce::{Aeth, Bth, Cnp, ImmDt, Reth, opcode};
use wire::{Ethernet, Ipv4, Ipv4Packet, MacAddr, QueuePair, Udp, UdpDatagram, icrc, number};

use crate::early::Sack;
use crate::frames::Frames;
use wire::Psn;

const IP: usize = Ethernet::LENGTH;
const UDP: usize = IP + Ipv4::LENGTH;
const BTH: usize = UDP + Udp::LENGTH;
/// Length of the headers up to the base transport header.
const HEADERS: usize = BTH + Bth::LENGTH;

/// Length of a frame without extension headers and payload: all headers and the ICRC.
pub const OVERHEAD: usize = HEADERS + icrc::LENGTH;

/// A host on the link: its MAC and IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// The MAC address.
    pub mac: MacAddr,
    /// The IPv4 address.
    pub ip: Ipv4Addr,
}

/// Remote memory of a request, as in a RETH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) length: u32,
}

/// The transport headers of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) opcode: u8,
    pub(crate) destination: QueuePair,
    pub(crate) psn: Psn,
    /// Requests an acknowledgement.
    pub(crate) acknowledge: bool,
    pub(crate) remote: Option<Remote>,
    /// Syndrome and message sequence number.
    pub(crate) syndrome: Option<(u8, u32)>,
    pub(crate) immediate: Option<u32>,
    /// Backward congestion: in a notification, or in an acknowledgement that a mark caused.
    pub(crate) congestion: bool,
    /// With [`SELECTIVE`].
    pub(crate) sack: Option<Sack>,
}

/// The kind of a syndrome, its bits 5 and 6, that stands for a selective acknowledgement. It is
/// reserved (InfiniBand architecture table 43).
pub(crate) const SELECTIVE: u8 = 2;

impl Header {
    pub(crate) const fn new(opcode: u8, destination: QueuePair, psn: Psn) -> Self {
        Self {
            opcode,
            destination,
            psn,
            acknowledge: false,
            remote: None,
            syndrome: None,
            immediate: None,
            congestion: opcode == opcode::CONGESTION_NOTIFICATION,
            sack: None,
        }
    }

    /// Length of the extension headers in bytes.
    const fn extensions(&self) -> usize {
        (if self.opcode == opcode::CONGESTION_NOTIFICATION { Cnp::LENGTH } else { 0 })
            + (if self.remote.is_some() { Reth::LENGTH } else { 0 })
            + (if self.syndrome.is_some() { Aeth::LENGTH } else { 0 })
            + (if self.immediate.is_some() { ImmDt::LENGTH } else { 0 })
            + (if self.sack.is_some() { Sack::LENGTH } else { 0 })
    }

    /// Writes base transport header and extension headers.
    fn write(&self, pad: usize, out: &mut [u8]) -> Result<(), wire::WireError> {
        let mut bth = Bth::new(self.opcode, self.destination, self.psn.get());
        bth.set_acknowledge(self.acknowledge).set_pad_count(pad as u8);
        bth.set_becn(self.congestion);
        let mut rest = bth.write(out)?;
        if let Some(remote) = self.remote {
            let mut reth = Reth::zeroed();
            reth.set_virtual_address(remote.address).set_remote_key(remote.key);
            reth.set_dma_length(remote.length);
            rest = reth.write(rest)?;
        }
        if let Some((syndrome, sequence)) = self.syndrome {
            let mut aeth = Aeth::zeroed();
            aeth.set_syndrome(syndrome).set_message_sequence(sequence);
            rest = aeth.write(rest)?;
        }
        if let Some(immediate) = self.immediate {
            ImmDt::zeroed().set_immediate(immediate).write(rest)?;
        } else if let Some(sack) = self.sack {
            // The frame has room for it.
            let _ = sack.write(rest);
        }
        Ok(())
    }
}

/// Ethernet, IPv4 and UDP headers of the frames of a queue pair.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    headers: [u8; BTH],
    /// The IPv4 identification of the next frame. It counts up, because it also does in frames that
    /// the kernel makes from a super-frame, and the ICRC covers it.
    identification: u16,
}

impl Template {
    /// Headers with "don't fragment" and this type of service, without UDP checksum.
    pub(crate) fn new(from: Address, to: Address, source_port: u16, tos: u8) -> Self {
        let mut bytes = [0; BTH];
        let build = |out: &mut [u8]| -> Result<(), wire::WireError> {
            let rest = Ethernet::new(to.mac, from.mac, number::ETHERTYPE_IPV4).write(out)?;
            let mut ip = Ipv4::new(from.ip, to.ip, number::PROTOCOL_UDP, Udp::LENGTH)?;
            let rest = ip.set_dont_fragment(true).set_tos(tos).write(rest)?;
            Udp::new(source_port, number::PORT_ROCE, 0)?.write(rest)?;
            Ok(())
        };
        // The buffer has the length of these headers, so they always fit.
        let _ = build(&mut bytes);
        Self { headers: bytes, identification: 0 }
    }

    /// Appends a frame. `fill` writes `length` bytes of payload; if it returns `false`, no frame is
    /// appended. Returns the length of the frame.
    pub(crate) fn append(
        &mut self,
        frames: &mut Frames,
        header: &Header,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Option<usize> {
        let start = frames.bytes.len();
        let pad = length.next_multiple_of(4) - length;
        let payload = HEADERS + header.extensions();
        let total = payload + length + pad + icrc::LENGTH;
        frames.bytes.extend_from_slice(&self.headers);
        frames.bytes.resize(start + total, 0);
        let written = frames.bytes.get_mut(start..).is_some_and(|frame| {
            frame.get_mut(payload..payload + length).is_some_and(fill)
                && finish(frame, header, (pad, self.identification)).is_some()
        });
        if written {
            frames.ends.push(start + total);
            self.identification = self.identification.wrapping_add(1);
        } else {
            frames.bytes.truncate(start);
        }
        written.then_some(total)
    }
}

/// Writes lengths, identification, checksums and transport headers of a frame whose payload is in
/// place.
fn finish(frame: &mut [u8], header: &Header, (pad, identification): (usize, u16)) -> Option<()> {
    let datagram = u16::try_from(frame.len() - UDP).ok()?;
    let total = u16::try_from(frame.len() - IP).ok()?;
    header.write(pad, frame.get_mut(BTH..)?).ok()?;
    let (mut ip, rest) = Ipv4::parse_mut(frame.get_mut(IP..)?).ok()?;
    ip.set_total_length(total).set_identification(identification).set_checksum(0);
    let sum = wire::checksum::checksum(ip.as_bytes());
    ip.set_checksum(sum);
    Udp::parse_mut(rest).ok()?.0.set_length(datagram);
    let icrc = icrc::of_plain(frame.get(IP..)?)?;
    *frame.last_chunk_mut()? = icrc.to_le_bytes();
    Some(())
}

/// A received RoCEv2 packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet<'a> {
    pub(crate) header: Header,
    /// The source address of the frame.
    pub(crate) source: Ipv4Addr,
    /// Whether the ECN field says "congestion experienced".
    pub(crate) congested: bool,
    /// The payload without padding.
    pub(crate) payload: &'a [u8],
}

/// What a received frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen<'a> {
    /// A RoCEv2 packet with the right ICRC.
    Packet(Packet<'a>),
    /// A RoCEv2 packet with a wrong ICRC, or with headers that do not fit its length.
    Damaged,
    /// Any other frame.
    Foreign,
}

/// Reads a frame. `reth_in_each`: each packet of a write has a RETH.
pub(crate) fn see(frame: &[u8], reth_in_each: bool) -> Seen<'_> {
    let Some((ip, udp)) = datagram(frame) else { return Seen::Foreign };
    let end = IP + usize::from(ip.header.total_length());
    let right = udp.payload.last_chunk().and_then(|found| {
        let icrc = if ip.options.is_empty() {
            icrc::of_plain(frame.get(IP..end)?)?
        } else {
            icrc::compute(frame.get(IP..end)?).ok()?
        };
        (icrc == u32::from_le_bytes(*found)).then_some(())
    });
    right.and_then(|()| transport(ip, udp, reth_in_each)).map_or(Seen::Damaged, Seen::Packet)
}

fn datagram(frame: &[u8]) -> Option<(Ipv4Packet<'_>, UdpDatagram<'_>)> {
    let (ethernet, packet) = Ethernet::parse(frame).ok()?;
    let ip = (ethernet.ethertype() == number::ETHERTYPE_IPV4)
        .then(|| Ipv4Packet::parse(packet).ok())
        .flatten()?;
    let whole = !ip.header.more_fragments() && ip.header.fragment_offset() == 0;
    if ip.header.protocol() != number::PROTOCOL_UDP || !whole {
        return None;
    }
    let udp = UdpDatagram::parse(ip.payload).ok()?;
    (udp.header.destination_port() == number::PORT_ROCE).then_some((ip, udp))
}

fn transport<'a>(
    ip: Ipv4Packet<'a>,
    udp: UdpDatagram<'a>,
    reth_in_each: bool,
) -> Option<Packet<'a>> {
    let (bth, rest) = Bth::parse(udp.payload).ok()?;
    let (mut rest, _) = rest.split_last_chunk::<{ icrc::LENGTH }>()?;
    let code = bth.opcode();
    let mut header = Header::new(code, bth.destination(), Psn::new(bth.sequence()));
    (header.acknowledge, header.congestion) = (bth.acknowledge(), bth.becn());
    let has_reth = match code {
        opcode::RC_WRITE_FIRST
        | opcode::RC_WRITE_ONLY
        | opcode::RC_WRITE_ONLY_IMMEDIATE
        | opcode::RC_READ_REQUEST => true,
        opcode::RC_WRITE_MIDDLE | opcode::RC_WRITE_LAST | opcode::RC_WRITE_LAST_IMMEDIATE => {
            reth_in_each
        }
        _ => false,
    };
    if has_reth {
        let (reth, behind) = Reth::parse(rest).ok()?;
        let (address, key) = (reth.virtual_address(), reth.remote_key());
        header.remote = Some(Remote { address, key, length: reth.dma_length() });
        rest = behind;
    }
    if let opcode::RC_READ_RESPONSE_FIRST
    | opcode::RC_READ_RESPONSE_LAST
    | opcode::RC_READ_RESPONSE_ONLY
    | opcode::RC_ACKNOWLEDGE = code
    {
        let (aeth, behind) = Aeth::parse(rest).ok()?;
        header.syndrome = Some((aeth.syndrome(), aeth.message_sequence()));
        rest = behind;
        if code == opcode::RC_ACKNOWLEDGE && aeth.syndrome() >> 5 == SELECTIVE {
            let (sack, behind) = Sack::parse(rest)?;
            header.sack = Some(sack);
            rest = behind;
        }
    }
    if let opcode::RC_SEND_LAST_IMMEDIATE
    | opcode::RC_SEND_ONLY_IMMEDIATE
    | opcode::RC_WRITE_LAST_IMMEDIATE
    | opcode::RC_WRITE_ONLY_IMMEDIATE = code
    {
        let (immediate, behind) = ImmDt::parse(rest).ok()?;
        header.immediate = Some(immediate.immediate());
        rest = behind;
    }
    let payload = rest.get(..rest.len().checked_sub(bth.pad_count().into())?)?;
    let congested = Codepoint::of(ip.header.tos()) == Codepoint::Ce;
    Some(Packet { header, source: ip.header.source(), congested, payload })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::early::Map;

    fn address(last: u8) -> Address {
        Address { mac: MacAddr([2, 0, 0, 0, 0, last]), ip: Ipv4Addr::new(10, 0, 0, last) }
    }

    fn headers() -> Vec<Header> {
        let number = QueuePair::try_from(0x12_3456).unwrap();
        let header = |code| Header::new(code, number, Psn::new(0xab_cdef));
        let remote = Some(Remote { address: 0x1122_3344_5566_7788, key: 9, length: 77 });
        vec![
            Header { acknowledge: true, ..header(opcode::RC_SEND_ONLY) },
            Header { remote, ..header(opcode::RC_WRITE_FIRST) },
            Header { remote, immediate: Some(5), ..header(opcode::RC_WRITE_ONLY_IMMEDIATE) },
            Header { syndrome: Some((0x1f, 3)), ..header(opcode::RC_READ_RESPONSE_LAST) },
            Header { immediate: Some(6), ..header(opcode::RC_SEND_LAST_IMMEDIATE) },
            Header {
                syndrome: Some((SELECTIVE << 5, 3)),
                sack: Some(Sack { cause: Psn::new(5), map: Map::default() }),
                congestion: true,
                ..header(opcode::RC_ACKNOWLEDGE)
            },
        ]
    }

    #[test]
    fn a_frame_reads_as_it_was_written() {
        let mut template = Template::new(address(1), address(2), 0xc001, 2);
        for header in headers() {
            for length in [0, 1, 2, 3, 4, 1023, 4096] {
                let payload: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
                let mut frames = Frames::default();
                let written = template.append(&mut frames, &header, length, |out| {
                    out.copy_from_slice(&payload);
                    true
                });
                let frame = frames.iter().next().unwrap();
                assert_eq!(written, Some(frame.len()));
                let Seen::Packet(packet) = see(frame, false) else { panic!("{header:?}") };
                assert_eq!((packet.header, packet.payload), (header, &payload[..]));
                assert_eq!((packet.source, packet.congested), (address(1).ip, false));
                // What looks for each field agrees, and the IP checksum is right.
                assert_eq!(icrc::is_right(&frame[14..]), Ok(true));
                assert_eq!(wire::checksum::checksum(&frame[14..34]), 0);
                let mut marked = frame.to_vec();
                assert!(wire::ecn::set(&mut marked[14..], Codepoint::Ce));
                assert!(matches!(see(&marked, false), Seen::Packet(packet) if packet.congested));
            }
        }
    }

    #[test]
    fn truncated_and_damaged_frames_are_refused() {
        let mut template = Template::new(address(1), address(2), 0xc001, 0);
        for header in headers() {
            let mut frames = Frames::default();
            template.append(&mut frames, &header, 10, |_| true);
            let frame = frames.iter().next().unwrap();
            for length in 0..frame.len() {
                assert!(!matches!(see(&frame[..length], false), Seen::Packet(_)), "{length}");
            }
            for bit in HEADERS * 8..frame.len() * 8 {
                let mut frame = frame.to_vec();
                frame[bit / 8] ^= 0x80 >> (bit % 8);
                assert_eq!(see(&frame, false), Seen::Damaged, "bit {bit}");
            }
        }
    }

    #[test]
    fn unreadable_payload_leaves_no_frame() {
        let mut frames = Frames::default();
        let mut template = Template::new(address(1), address(2), 0xc001, 0);
        assert_eq!(template.append(&mut frames, &headers()[0], 10, |_| false), None);
        assert!(frames.is_empty() && frames.iter().next().is_none());
    }
}
