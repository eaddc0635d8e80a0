//! Splits a super-frame into the frames that belong on the wire. It follows `tcp_gso_segment`,
//! `__udp_gso_segment`, `inet_gso_segment` and `skb_udp_tunnel_segment` in the kernel
//! (`net/ipv4/{tcp_offload,udp_offload,af_inet}.c`).

use core::ops::Range;

use frame::{Checksum, DropReason, Frame, Gso, GsoKind, Offload};
use wire::checksum::{Sum, checksum};
use wire::number::{PROTOCOL_TCP, PROTOCOL_UDP};
use wire::roce::Bth;
use wire::{Dissection, Fragment, Network, Roce, Tcp};

use crate::csum_offload::{INNER_CAPACITY, InnerHead};

const UDP_LENGTH: usize = 4;
const UDP_CHECKSUM: usize = 6;

/// A network header and the start of the transport header behind it. Offsets count from the frame's
/// first byte.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layer {
    pub(crate) l3: usize,
    pub(crate) l4: usize,
    pub(crate) ipv6: bool,
    pub(crate) protocol: u8,
}

impl Layer {
    /// The layer in a dissection of a frame that starts at `base`. `None` for fragments and for
    /// packets without a transport header.
    fn of(dissection: &Dissection, base: usize) -> Option<Self> {
        let transport = dissection.transport?;
        let (ipv6, fragment) = match &dissection.network {
            Network::Ipv4(ip) => (false, ip.fragment),
            Network::Ipv6(ip) => (true, ip.fragment),
            Network::Other => return None,
        };
        let (l3, l4) =
            (base + usize::from(dissection.l3_offset), base + usize::from(transport.offset));
        (fragment == Fragment::Whole).then_some(Self { l3, l4, ipv6, protocol: transport.protocol })
    }

    /// The sum of the pseudo header without the length.
    pub(crate) fn pseudo(&self, frame: &[u8]) -> Option<Sum> {
        let addresses =
            if self.ipv6 { self.l3 + 8..self.l3 + 40 } else { self.l3 + 12..self.l3 + 20 };
        Some(Sum::new().bytes(frame.get(addresses)?).word(u16::from(self.protocol)))
    }

    /// Patches length, IPv4 identification and checksum in the network header of segment `index`.
    /// `l4_length` is the length of transport header and payload in bytes.
    pub(crate) fn patch(&self, headers: &mut [u8], index: usize, l4_length: usize) -> Option<()> {
        let length = self.l4 - self.l3 + l4_length;
        if self.ipv6 {
            return put(headers, self.l3 + 4, u16::try_from(length.checked_sub(40)?).ok()?);
        }
        put(headers, self.l3 + 2, u16::try_from(length).ok()?)?;
        let id = u16::from_be_bytes(*headers.get(self.l3 + 4..)?.first_chunk()?);
        put(headers, self.l3 + 4, id.wrapping_add(index as u16))?;
        put(headers, self.l3 + 10, 0)?;
        let sum = checksum(headers.get(self.l3..self.l4)?);
        put(headers, self.l3 + 10, sum)
    }
}

/// A super-frame that can be split.
#[derive(Debug)]
pub struct Segmenter<'a> {
    frame: &'a [u8],
    gso: Gso,
    /// The UDP tunnel around the segments, if hosts use one of their own (VXLAN or Geneve between
    /// containers).
    tunnel: Option<Layer>,
    layer: Layer,
    header_length: usize,
    /// The sum of the pseudo header without the length.
    pseudo: Sum,
}

impl<'a> Segmenter<'a> {
    /// Checks that the headers fit the requested segmentation.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`] if they do not, or if there are more than [`Gso::MOST_SEGMENTS`];
    /// [`DropReason::TooBig`] if they are too long to repeat.
    pub fn new(
        frame: &'a [u8],
        dissection: &Dissection,
        gso: Gso,
        checksum: Checksum,
    ) -> Result<Self, DropReason> {
        let segmenter =
            Self::build(frame, dissection, gso, checksum).ok_or(DropReason::BadOffload)?;
        if segmenter.header_length > INNER_CAPACITY {
            Err(DropReason::TooBig)
        } else if !gso.has_few_segments(frame.len() - segmenter.header_length) {
            Err(DropReason::BadOffload)
        } else {
            Ok(segmenter)
        }
    }

    fn build(
        frame: &'a [u8],
        dissection: &Dissection,
        gso: Gso,
        checksum: Checksum,
    ) -> Option<Self> {
        let first = Layer::of(dissection, 0)?;
        let partial = match checksum {
            Checksum::Partial { start, offset } => Some((usize::from(start), usize::from(offset))),
            Checksum::AsIs | Checksum::Valid => None,
        };
        let (tunnel, layer, header_length) = match partial {
            Some((start, _)) if start != first.l4 => {
                let (layer, header_length) = tunnelled(frame, first, start)?;
                (Some(first), layer, header_length)
            }
            _ => (None, first, dissection.gso_header_length(frame)?),
        };
        let (protocol, offset) = match gso.kind {
            GsoKind::TcpV4 | GsoKind::TcpV6 => (PROTOCOL_TCP, Tcp::CHECKSUM_OFFSET),
            GsoKind::Udp => (PROTOCOL_UDP, UDP_CHECKSUM),
        };
        let family = match gso.kind {
            GsoKind::TcpV4 => !layer.ipv6,
            GsoKind::TcpV6 => layer.ipv6,
            GsoKind::Udp => true,
        };
        if layer.protocol != protocol || !family || gso.size == 0 {
            return None;
        }
        let pseudo = match partial {
            // The sender's own sum is also right behind a routing header, where the visible
            // addresses are not the summed ones.
            Some((_, at)) if at == offset => {
                let sum = u16::from_be_bytes(*frame.get(layer.l4 + offset..)?.first_chunk()?);
                Sum::of_partial(sum).word(!u16::try_from(frame.len() - layer.l4).ok()?)
            }
            Some(_) => return None,
            None => layer.pseudo(frame)?,
        };
        Some(Self { frame, gso, tunnel, layer, header_length, pseudo })
    }

    /// Number of segments, at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        let payload = self.frame.len() - self.header_length;
        payload.div_ceil(usize::from(self.gso.size)).max(1)
    }

    /// Segment `index` as a separate frame with all checksums.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`] if the headers turn out inconsistent.
    pub fn frame(&self, index: usize) -> Result<Vec<u8>, DropReason> {
        let mut head = InnerHead::default();
        let payload = self.segment(index, &mut head)?;
        Ok([head.as_slice(), self.frame.get(payload).unwrap_or_default()].concat())
    }

    /// Writes the headers of segment `index` to `head`. Returns the range of its payload in the
    /// frame.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`] if the headers turn out inconsistent.
    pub(crate) fn segment(
        &self,
        index: usize,
        head: &mut InnerHead,
    ) -> Result<Range<usize>, DropReason> {
        self.cut(index, head).ok_or(DropReason::BadOffload)
    }

    /// The RoCE header of the segment with this payload. A UDP super-frame can hold packets of
    /// several queue pairs.
    pub(crate) fn roce(&self, dissection: &Dissection, payload: Range<usize>) -> Option<Roce> {
        if self.tunnel.is_some() || self.gso.kind != GsoKind::Udp {
            return dissection.roce;
        }
        let port = dissection.transport?.ports?.1;
        let (bth, _) = Bth::parse(self.frame.get(payload)?).ok()?;
        (port == wire::number::PORT_ROCE).then(|| Roce {
            opcode: bth.opcode(),
            destination: bth.destination(),
            sequence: bth.sequence(),
        })
    }

    fn cut(&self, index: usize, head: &mut InnerHead) -> Option<Range<usize>> {
        let size = usize::from(self.gso.size);
        let start = self.header_length + index * size;
        let end = (start + size).min(self.frame.len());
        let payload = self.frame.get(start..end)?;
        let headers = head.start(self.frame.get(..self.header_length)?)?;
        let length_from = |l4: usize| self.header_length - l4 + payload.len();

        let Layer { l4, .. } = self.layer;
        let l4_length = length_from(l4);
        self.layer.patch(headers, index, l4_length)?;
        let pseudo = self.pseudo.word(u16::try_from(l4_length).ok()?);
        if self.gso.kind == GsoKind::Udp {
            put(headers, l4 + UDP_LENGTH, u16::try_from(l4_length).ok()?)?;
            finish(headers, l4, UDP_CHECKSUM, pseudo, payload)?;
        } else {
            let last = end == self.frame.len();
            self.patch_tcp(headers.get_mut(l4..)?, index, last)?;
            finish(headers, l4, Tcp::CHECKSUM_OFFSET, pseudo, payload)?;
        }

        if let Some(tunnel) = &self.tunnel {
            let l4_length = length_from(tunnel.l4);
            tunnel.patch(headers, index, l4_length)?;
            let length = u16::try_from(l4_length).ok()?;
            put(headers, tunnel.l4 + UDP_LENGTH, length)?;
            // A tunnel without checksums stays without.
            if headers.get(tunnel.l4 + UDP_CHECKSUM..)?.first_chunk::<2>()? != &[0, 0] {
                let pseudo = tunnel.pseudo(headers)?.word(length);
                finish(headers, tunnel.l4, UDP_CHECKSUM, pseudo, payload)?;
            }
        }
        Some(start..end)
    }

    /// Patches sequence number and flags. If the sender requested ECN segmentation, CWR stays in
    /// the first segment only. Otherwise it is a bit of Accurate ECN's counter (RFC 9768), which
    /// all segments repeat.
    fn patch_tcp(&self, tcp: &mut [u8], index: usize, last: bool) -> Option<()> {
        let (mut tcp, _) = Tcp::parse_mut(tcp).ok()?;
        let advance = (index * usize::from(self.gso.size)) as u32;
        tcp.set_sequence(tcp.sequence().wrapping_add(advance));
        let mut flags = tcp.flags();
        if !last {
            flags &= !(Tcp::FIN | Tcp::PSH);
        }
        if index > 0 && self.gso.ecn {
            flags &= !Tcp::CWR;
        }
        tcp.set_flags(flags);
        Some(())
    }
}

/// The packets that a frame is on the wire, with their checksums. A super-frame that cannot be cut is
/// one packet.
#[must_use]
pub fn packets(frame: &Frame<'_>) -> Vec<Vec<u8>> {
    let Frame { data, offload: Offload { checksum, gso }, .. } = *frame;
    let cut = || -> Option<Vec<_>> {
        let dissection = wire::dissect(data)?;
        let segmenter = Segmenter::new(data, &dissection, gso?, checksum).ok()?;
        (0..segmenter.count()).map(|index| segmenter.frame(index).ok()).collect()
    };
    cut().unwrap_or_else(|| {
        let mut whole = data.to_vec();
        if let Checksum::Partial { start, offset } = checksum {
            // Offsets behind the frame's end change nothing.
            let _ = wire::checksum::complete(&mut whole, start.into(), offset.into());
        }
        vec![whole]
    })
}

/// Finds the Ethernet frame inside a UDP tunnel by the start of its transport header. Returns its
/// layer and the length of all headers in bytes.
fn tunnelled(frame: &[u8], tunnel: Layer, start: usize) -> Option<(Layer, usize)> {
    if tunnel.protocol != PROTOCOL_UDP {
        return None;
    }
    // The candidates are IPv4 and IPv6 headers without options, behind an Ethernet header.
    [14 + 20, 14 + 40].into_iter().find_map(|headers| {
        let base = start.checked_sub(headers).filter(|&base| base >= tunnel.l4 + 8)?;
        let inner = frame.get(base..)?;
        let dissection = wire::dissect(inner)?;
        let layer = Layer::of(&dissection, base).filter(|layer| layer.l4 == start)?;
        Some((layer, base + dissection.gso_header_length(inner)?))
    })
}

/// Computes the checksum over the transport header at `l4` and the payload behind it. The transport
/// header must have an even length.
fn finish(headers: &mut [u8], l4: usize, offset: usize, pseudo: Sum, payload: &[u8]) -> Option<()> {
    put(headers, l4 + offset, 0)?;
    let sum = pseudo.bytes(headers.get(l4..)?).bytes(payload);
    put(
        headers,
        l4 + offset,
        if offset == UDP_CHECKSUM { sum.checksum_not_zero() } else { sum.checksum() },
    )
}

fn put(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut::<2>()? = value.to_be_bytes();
    Some(())
}
