//! The FPM header, and splitting a stream into frames.
//!
//! ```text
//!  0         1         2                   4
//! +---------+---------+-------------------+---------
//! | version | type    | length, big end   | payload
//! +---------+---------+-------------------+---------
//! ```
//! The version is 1. Type 1 is netlink, 2 protobuf. The length includes these four bytes. Source:
//! `fpm/fpm.h` of FRR.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes of the header.
const HEADER: usize = 4;

/// The encoding of a frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Type 1: netlink messages.
    Netlink,
    /// Type 2: one protobuf message.
    Protobuf,
}

/// One FPM frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Byte offset of the frame's header in the stream, from 0.
    pub offset: u64,
    /// The encoding of the payload.
    pub encoding: Encoding,
    /// The payload, 0 to 65531 bytes.
    pub payload: Bytes,
}

impl Frame {
    /// Byte offset of the payload in the stream.
    #[must_use]
    pub const fn payload_offset(&self) -> u64 {
        self.offset.saturating_add(HEADER as u64)
    }

    /// Appends the whole frame to `out`. A payload is truncated to 65531 bytes.
    pub fn write(&self, out: &mut BytesMut) {
        let room = usize::from(u16::MAX) - HEADER;
        let payload = self.payload.get(..room).unwrap_or(&self.payload);
        let kind = match self.encoding {
            Encoding::Netlink => 1,
            Encoding::Protobuf => 2,
        };
        out.put_u8(1);
        out.put_u8(kind);
        out.put_u16(u16::try_from(HEADER + payload.len()).unwrap_or(u16::MAX));
        out.put_slice(payload);
    }
}

/// An invalid FPM header. The rest of the stream cannot be read. Offsets are in bytes of the
/// stream, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The version is not 1.
    #[error("byte {offset}: FPM version {version} instead of 1")]
    Version {
        /// Offset of the header.
        offset: u64,
        /// The version.
        version: u8,
    },
    /// The length is shorter than the header.
    #[error("byte {offset}: a frame length of {length}, which must count the header's 4 bytes")]
    Length {
        /// Offset of the header.
        offset: u64,
        /// The length.
        length: u16,
    },
    /// The type is neither netlink nor protobuf.
    #[error("byte {offset}: FPM message type {kind}, neither netlink (1) nor protobuf (2)")]
    Type {
        /// Offset of the header.
        offset: u64,
        /// The type.
        kind: u8,
    },
}

/// Splits a stream into frames.
#[derive(Debug, Default)]
pub struct Framer {
    buffer: BytesMut,
    offset: u64,
}

impl Framer {
    /// A framer at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The buffer, so that a reader can append the next bytes of the stream itself.
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// Number of bytes of a frame that is not complete yet, after [`Framer::next_frame`] returned
    /// `None`.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// The next frame, or `None` until more bytes are pushed.
    ///
    /// # Errors
    /// When the next header is invalid. Every further call returns the same error.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let offset = self.offset;
        let Some(&[version, kind, high, low]) = self.buffer.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        if version != 1 {
            return Err(FrameError::Version { offset, version });
        }
        let encoding = match kind {
            1 => Encoding::Netlink,
            2 => Encoding::Protobuf,
            _ => return Err(FrameError::Type { offset, kind }),
        };
        let length = u16::from_be_bytes([high, low]);
        if usize::from(length) < HEADER {
            return Err(FrameError::Length { offset, length });
        }
        if self.buffer.len() < usize::from(length) {
            return Ok(None);
        }
        let mut payload = self.buffer.split_to(length.into()).freeze();
        payload.advance(HEADER);
        self.offset = offset.saturating_add(length.into());
        Ok(Some(Frame { offset, encoding, payload }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(frames: &[(bool, Vec<u8>)]) -> Vec<u8> {
        let one = |(protobuf, payload): &(bool, Vec<u8>)| {
            let length = u16::try_from(payload.len() + HEADER).unwrap().to_be_bytes();
            [&[1, 1 + u8::from(*protobuf)], &length[..], payload].concat()
        };
        frames.iter().flat_map(one).collect()
    }

    proptest! {
        /// Frames survive any split of the stream, and keep their offsets.
        #[test]
        fn frames_survive_any_split(
            frames in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..300)), 0..20),
            cuts in prop::collection::vec(1usize..200, 1..50),
        ) {
            let stream = encoded(&frames);
            let mut framer = Framer::new();
            let mut seen = Vec::new();
            let mut rest = stream.as_slice();
            for cut in cuts.iter().cycle() {
                let (piece, tail) = rest.split_at((*cut).min(rest.len()));
                framer.push(piece);
                rest = tail;
                while let Some(frame) = framer.next_frame().unwrap() {
                    prop_assert_eq!(&stream[frame.payload_offset() as usize..][..frame.payload.len()], &frame.payload[..]);
                    let mut written = BytesMut::new();
                    frame.write(&mut written);
                    prop_assert_eq!(&stream[frame.offset as usize..][..written.len()], &written[..]);
                    seen.push((frame.encoding == Encoding::Protobuf, frame.payload.to_vec()));
                }
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(seen, frames);
            prop_assert_eq!(framer.pending(), 0);
        }

        /// Any input yields frames, then a permanent error or `None`.
        #[test]
        fn no_bytes_make_it_panic(stream in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut framer = Framer::new();
            framer.push(&stream);
            let end = loop {
                match framer.next_frame() {
                    Ok(Some(_)) => {}
                    end => break end,
                }
            };
            prop_assert_eq!(framer.next_frame(), end);
        }
    }
}
