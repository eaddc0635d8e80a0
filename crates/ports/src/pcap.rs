//! Capture files in the format of `tcpdump -w` (pcap-savefile(5)): one is read as the frames that
//! arrive at a port, another is written with the frames that it sends.

use core::ops::Range;
use std::io::{self, Write};

use frame::{Batch, Checksum, DropReason, Frame, Offload, TxBatch, VlanTag};
use wire::checksum::checksum;

use crate::port::Port;

/// Magic number of a file with time stamps in microseconds.
const MAGIC: u32 = 0xa1b2_c3d4;
/// `LINKTYPE_ETHERNET`.
const ETHERNET: u32 = 1;
/// Bytes of the file's header, and of the header of each frame.
const FILE_HEADER: usize = 24;
const FRAME_HEADER: usize = 16;
/// Maximum number of frames in a batch.
const BATCH: usize = 64;

/// The frames of a capture file, in its order.
#[derive(Debug, Clone)]
pub struct PcapFrames<'a> {
    rest: &'a [u8],
    big_endian: bool,
}

impl<'a> PcapFrames<'a> {
    /// Checks the header of a file that was read into memory.
    ///
    /// # Errors
    /// `InvalidData` when it is no pcap file of Ethernet frames with time stamps in microseconds.
    pub fn new(file: &'a [u8]) -> io::Result<Self> {
        let (header, rest) = file
            .split_first_chunk::<FILE_HEADER>()
            .ok_or_else(|| invalid("this is no pcap file"))?;
        let magic = header.first_chunk().map_or(0, |magic| u32::from_be_bytes(*magic));
        let frames = Self { rest, big_endian: magic == MAGIC };
        if magic != MAGIC && magic.swap_bytes() != MAGIC {
            return Err(invalid("this is no pcap file with time stamps in microseconds"));
        }
        if frames.word(header, 20) != Some(ETHERNET) {
            return Err(invalid("the frames are not of Ethernet"));
        }
        Ok(frames)
    }

    fn word(&self, bytes: &[u8], at: usize) -> Option<u32> {
        let word = *bytes.get(at..)?.first_chunk()?;
        Some(if self.big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) })
    }
}

impl<'a> Iterator for PcapFrames<'a> {
    type Item = &'a [u8];

    /// The next frame. A file that is cut short ends before the frame that is not whole.
    fn next(&mut self) -> Option<&'a [u8]> {
        let (header, rest) = self.rest.split_first_chunk::<FRAME_HEADER>()?;
        let length = self.word(header, 8)? as usize;
        let (frame, rest) = rest.split_at_checked(length)?;
        self.rest = rest;
        Some(frame)
    }
}

/// Writes a capture file. The time stamp of each frame is its number in microseconds, so that equal
/// traffic gives equal files.
#[derive(Debug)]
pub struct PcapWriter<W> {
    file: W,
    frames: u32,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file's header.
    ///
    /// # Errors
    /// As the writer.
    pub fn new(mut file: W) -> io::Result<Self> {
        let version = u32::from(2_u16) << 16 | 4;
        for word in [MAGIC, version, 0, 0, 0x0004_0000, ETHERNET] {
            file.write_all(&word.to_be_bytes())?;
        }
        Ok(Self { file, frames: 0 })
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// As the writer.
    pub fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        let (seconds, microseconds) = (self.frames / 1_000_000, self.frames % 1_000_000);
        for word in [seconds, microseconds, length, length] {
            self.file.write_all(&word.to_be_bytes())?;
        }
        self.frames += 1;
        self.file.write_all(frame)
    }

    /// The writer.
    pub fn into_inner(self) -> W {
        self.file
    }
}

/// A port that replays a capture file and writes another one.
///
/// As in a capture on the sender, super-frames are written whole. Checksums that are left to the
/// kernel are completed.
#[derive(Debug)]
pub struct PcapPort<'a, W> {
    frames: PcapFrames<'a>,
    batch: Batch<'a>,
    written: PcapWriter<W>,
    /// The tag with which all frames arrive.
    tag: Option<VlanTag>,
}

impl<'a, W: Write> PcapPort<'a, W> {
    /// A port at which these frames arrive.
    #[must_use]
    pub fn new(frames: PcapFrames<'a>, written: PcapWriter<W>) -> Self {
        Self { frames, batch: Batch::new(BATCH), written, tag: None }
    }

    /// Lets all frames arrive with this tag beside their bytes, as the far end of a punt pair
    /// delivers them.
    #[must_use]
    pub const fn with_tag(mut self, tag: Option<VlanTag>) -> Self {
        self.tag = tag;
        self
    }

    /// The file with the frames that were sent.
    pub fn into_written(self) -> W {
        self.written.into_inner()
    }
}

impl<W: Write> Port for PcapPort<'_, W> {
    fn receive(&mut self) -> io::Result<&Batch<'_>> {
        self.batch.clear();
        while !self.batch.is_full()
            && let Some(data) = self.frames.next()
        {
            self.batch.push(Frame { data, vlan: self.tag, offload: Offload::default() });
        }
        Ok(&self.batch)
    }

    fn batch(&self) -> &Batch<'_> {
        &self.batch
    }

    fn transmit(&mut self, batch: &Batch<'_>, out: &mut TxBatch, groups: Range<usize>) {
        for index in groups {
            let Some(group) = out.groups().list.get(index) else { return };
            let mut whole = out.to_vec(group, batch);
            complete(&mut whole, group.offload.checksum);
            let outcome = self.written.write(&whole).map_err(|_| DropReason::TransmitError);
            if let Some(group) = out.groups_mut().list.get_mut(index) {
                group.outcome = outcome;
            }
        }
    }
}

/// Completes a checksum that is left to the kernel: the field holds the sum of the pseudo header.
fn complete(frame: &mut [u8], state: Checksum) {
    let Checksum::Partial { start, offset } = state else { return };
    let Some(covered) = frame.get_mut(usize::from(start)..) else { return };
    let sum = match checksum(covered) {
        // A UDP checksum of zero means that there is none (RFC 768).
        0 => 0xffff,
        sum => sum,
    };
    if let Some(field) = covered.get_mut(usize::from(offset)..).and_then(<[u8]>::first_chunk_mut) {
        *field = sum.to_be_bytes();
    }
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_frames_are_read_again_in_both_byte_orders() {
        let mut writer = PcapWriter::new(Vec::new()).unwrap();
        let frames = [vec![1; 60], vec![2; 1514], Vec::new()];
        frames.iter().for_each(|frame| writer.write(frame).unwrap());
        let file = writer.into_inner();
        assert_eq!(PcapFrames::new(&file).unwrap().collect::<Vec<_>>(), frames);
        let cut = &file[..file.len() - FRAME_HEADER - 1];
        assert_eq!(PcapFrames::new(cut).unwrap().count(), 1, "the last frame is not whole");
        // The headers of a little-endian machine.
        let mut little = Vec::new();
        for word in [MAGIC, 0x0004_0002, 0, 0, 0x0004_0000, ETHERNET, 7, 8, 3, 3] {
            little.extend(word.to_le_bytes());
        }
        little.extend([7; 3]);
        assert_eq!(PcapFrames::new(&little).unwrap().collect::<Vec<_>>(), [[7; 3]]);
    }

    #[test]
    fn other_files_are_refused() {
        let file = PcapWriter::new(Vec::new()).unwrap().into_inner();
        assert!(PcapFrames::new(&file).is_ok());
        for (at, octet) in [(0, 0), (3, 0x4d), (23, 113)] {
            let mut other = file.clone();
            other[at] = octet;
            let error = PcapFrames::new(&other).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "byte {at}");
        }
        assert!(PcapFrames::new(&file[..23]).is_err());
    }
}
