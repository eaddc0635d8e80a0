//! Frames to send, and the super-frames from which the kernel can make them.

use wire::checksum::Sum;
use wire::{Ethernet, Ipv4, Udp, number};

const IP: usize = Ethernet::LENGTH;
const UDP: usize = IP + Ipv4::LENGTH;
/// Length of the Ethernet, IPv4 and UDP headers.
const HEADERS: usize = UDP + Udp::LENGTH;
/// Maximum number of frames of a super-frame: `UDP_MAX_SEGMENTS` until Linux 6.9
/// (include/linux/udp.h).
const SEGMENTS: usize = 64;
/// Maximum length of a super-frame in bytes: the largest IPv4 packet and its Ethernet header.
const SUPER_FRAME: usize = IP + u16::MAX as usize;

/// Frames in one buffer, in order.
#[derive(Debug, Clone, Default)]
pub struct Frames {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ends: Vec<usize>,
}

impl Frames {
    /// Removes all frames and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// The number of frames.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no frame.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The frames, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(self.ends.iter().copied());
        ranges.filter_map(|(start, end)| self.bytes.get(start..end))
    }

    /// The frames in groups, in order. Consecutive frames of a queue pair are in one group if the
    /// kernel can make them from a super-frame.
    pub fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let mut frames = self.iter().peekable();
        let mut start = 0;
        std::iter::from_fn(move || {
            let first = frames.next()?;
            let mut group = Group { bytes: first, frame: first.len(), count: 1 };
            let mut last = first;
            while let Some(next) = frames.next_if(|next| group.accepts(last, next)) {
                let end = start + group.bytes.len() + next.len();
                group.bytes = self.bytes.get(start..end)?;
                group.count += 1;
                last = next;
            }
            start += group.bytes.len();
            Some(group)
        })
    }
}

/// Consecutive frames that UDP segmentation can make from one super-frame. Their headers are equal
/// but for what the kernel writes: lengths, checksums and an identification that counts up
/// (`inet_gso_segment()` in net/ipv4/af_inet.c, `__udp_gso_segment()` in net/ipv4/udp_offload.c).
/// All have the same length, but the last one may be shorter.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    bytes: &'a [u8],
    /// Length of each frame but the last.
    frame: usize,
    count: usize,
}

impl<'a> Group<'a> {
    /// The frames, in order.
    pub fn frames(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks(self.frame)
    }

    /// Bytes behind the UDP header in each frame but the last, which may have fewer.
    #[must_use]
    pub const fn segment(&self) -> usize {
        self.frame - HEADERS
    }

    /// The headers of a super-frame behind which [`Group::payloads`] follow. The UDP checksum is
    /// the sum of the pseudo header, which the kernel completes for each frame. `None` if there is
    /// only one frame, which is sent as it is.
    #[must_use]
    pub fn headers(&self) -> Option<[u8; HEADERS]> {
        if self.count < 2 {
            return None;
        }
        let mut headers: [u8; HEADERS] = *self.bytes.first_chunk()?;
        let payload = self.bytes.len() - self.count * HEADERS;
        let length = u16::try_from(Udp::LENGTH + payload).ok()?;
        let (mut ip, rest) = Ipv4::parse_mut(headers.get_mut(IP..)?).ok()?;
        ip.set_total_length(length + Ipv4::LENGTH as u16).set_checksum(0);
        let checksum = wire::checksum::checksum(ip.as_bytes());
        ip.set_checksum(checksum);
        let (source, destination) = (ip.source(), ip.destination());
        let pseudo = Sum::new().pseudo_ipv4(source, destination, number::PROTOCOL_UDP, length);
        Udp::parse_mut(rest).ok()?.0.set_length(length).set_checksum(pseudo.fold());
        Some(headers)
    }

    /// What each frame has behind its UDP header.
    pub fn payloads(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.frames().filter_map(|frame| frame.get(HEADERS..))
    }

    /// Whether `next` can be the segment after `last`, the last one so far.
    fn accepts(&self, last: &[u8], next: &[u8]) -> bool {
        let room = self.count < SEGMENTS
            && self.bytes.len() - (self.count - 1) * HEADERS + next.len() <= SUPER_FRAME;
        room && last.len() == self.frame
            && next.len() <= self.frame
            && common(last)
                .zip(common(next))
                .is_some_and(|((headers, number), next)| next == (headers, number.wrapping_add(1)))
    }
}

/// The headers of a frame without what segmentation writes, and the identification.
fn common(frame: &[u8]) -> Option<([u8; HEADERS], u16)> {
    let mut headers: [u8; HEADERS] = *frame.first_chunk()?;
    let (mut ip, rest) = Ipv4::parse_mut(headers.get_mut(IP..)?).ok()?;
    let identification = ip.identification();
    ip.set_total_length(0).set_identification(0).set_checksum(0);
    Udp::parse_mut(rest).ok()?.0.set_length(0);
    Some((headers, identification))
}

#[cfg(test)]
mod tests {
    use wire::roce::opcode;
    use wire::{MacAddr, QueuePair};

    use super::*;
    use crate::packet::{Address, Header, Template};
    use wire::Psn;

    fn template(port: u16) -> Template {
        let host =
            |last| Address { mac: MacAddr([2, 0, 0, 0, 0, last]), ip: [192, 0, 2, last].into() };
        Template::new(host(1), host(2), port, 0)
    }

    /// Appends frames with payloads of these lengths.
    fn append(frames: &mut Frames, template: &mut Template, lengths: &[usize]) {
        for (length, number) in lengths.iter().zip(0..) {
            let (pair, psn) = (QueuePair::from_be_bytes([0, 0, 9]), Psn::new(number));
            let header = Header::new(opcode::RC_WRITE_MIDDLE, pair, psn);
            let fill = |out: &mut [u8]| {
                out.fill(number as u8);
                true
            };
            template.append(frames, &header, *length, fill).unwrap();
        }
    }

    fn counts(frames: &Frames) -> Vec<usize> {
        frames.groups().map(|group| group.frames().count()).collect()
    }

    /// The frames that segmentation makes of a group, as `inet_gso_segment()` and
    /// `__udp_gso_segment()` do, but for the UDP checksum, which stays 0.
    fn segments(group: &Group<'_>) -> Vec<Vec<u8>> {
        let Some(headers) = group.headers() else {
            return group.frames().map(<[u8]>::to_vec).collect();
        };
        let payload: Vec<u8> = group.payloads().flatten().copied().collect();
        let (ip, _) = Ipv4::parse(&headers[IP..]).unwrap();
        assert_eq!(usize::from(ip.total_length()), headers.len() - IP + payload.len());
        let segments = payload.chunks(group.segment()).zip(ip.identification()..);
        let segment = |(payload, identification): (&[u8], u16)| {
            let mut frame = [&headers[..], payload].concat();
            let length = frame.len();
            let (mut ip, rest) = Ipv4::parse_mut(&mut frame[IP..]).unwrap();
            ip.set_total_length((length - IP) as u16).set_identification(identification);
            ip.set_checksum(0);
            let sum = wire::checksum::checksum(ip.as_bytes());
            ip.set_checksum(sum);
            let mut udp = Udp::parse_mut(rest).unwrap().0;
            udp.set_length((length - UDP) as u16).set_checksum(0);
            frame
        };
        segments.map(segment).collect()
    }

    #[test]
    fn segmentation_makes_the_frames_of_a_group() {
        let mut frames = Frames::default();
        append(&mut frames, &mut template(49152), &[1024, 1024, 1024, 100, 100, 7]);
        assert_eq!(counts(&frames), [4, 2]);
        let made: Vec<Vec<u8>> = frames.groups().flat_map(|group| segments(&group)).collect();
        assert_eq!(made, frames.iter().map(<[u8]>::to_vec).collect::<Vec<_>>());
    }

    #[test]
    fn a_group_ends_where_segmentation_could_not_make_the_next_frame() {
        // A longer frame, and the frame after a shorter one.
        let mut frames = Frames::default();
        append(&mut frames, &mut template(1), &[64, 64, 128, 64, 64]);
        assert_eq!(counts(&frames), [2, 2, 1]);
        // Another flow, and a gap in the identification.
        let (mut one, mut other) = (template(1), template(2));
        let mut frames = Frames::default();
        append(&mut frames, &mut one, &[64; 3]);
        append(&mut frames, &mut other, &[64; 3]);
        append(&mut Frames::default(), &mut other, &[64]);
        append(&mut frames, &mut other, &[64; 2]);
        assert_eq!(counts(&frames), [3, 3, 2]);
        assert!(Frames::default().groups().next().is_none());
    }

    #[test]
    fn a_group_has_a_limited_length_and_a_limited_number_of_frames() {
        let mut frames = Frames::default();
        append(&mut frames, &mut template(1), &[64; 150]);
        assert_eq!(counts(&frames), [64, 64, 22]);
        for (length, most) in [(1024, 62), (4096, 15)] {
            let mut frames = Frames::default();
            append(&mut frames, &mut template(1), &vec![length; most + 1]);
            assert_eq!(counts(&frames), [most, 1]);
            let group = frames.groups().next().unwrap();
            let bytes = HEADERS - IP + group.payloads().map(<[u8]>::len).sum::<usize>();
            assert!(
                bytes <= usize::from(u16::MAX) && bytes + group.segment() > usize::from(u16::MAX)
            );
        }
    }
}
