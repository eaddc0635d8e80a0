//! The receive ring of an AF_PACKET socket, in memory shared with the kernel. Frames are read in
//! place, without a system call (`TPACKET_V2`, `tpacket_rcv()` in `net/packet/af_packet.c`,
//! Documentation/networking/packet_mmap.rst).
//!
//! All slots have one size, which fits the frames that the links carry. A longer frame (a
//! super-frame) waits in the socket's queue, and its slot is marked. Small slots keep more of the
//! ring in the CPU caches and in the TLB. See docs/adr/0005-tpacket-v2.md for the choice of
//! `TPACKET_V2`.

use core::ops::Range;
use std::io::{self, IoSliceMut};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use frame::{Batch, Checksum, FRAME_CAPACITY, Frame, Offload, VlanTag};
use nix::sys::socket::{MsgFlags, recvmsg};

use crate::packet::{BATCH, VnetHeader, offload, set_option};

/// Size of a receive ring: the number and length of frames that it holds while the worker does not
/// run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSize {
    /// Number of frames.
    pub frames: usize,
    /// Bytes of the longest frame for a slot, without tags that the kernel removes. A longer frame
    /// costs a system call. The socket's queue holds `frames` times [`Self::LONGEST`] bytes of
    /// them.
    pub longest: usize,
}

impl RingSize {
    /// Maximum of `longest`: a frame with RoCE's longest packet (4,096 bytes of payload) and the
    /// headers of a tunnel.
    pub const LONGEST: usize = 4500;
    /// For few frames of any length.
    pub const LITTLE: Self = Self { frames: 224, longest: Self::LONGEST };

    /// Bytes of a slot: an odd number of cache lines, so that the slots of a block start in
    /// different cache sets.
    const fn slot(self) -> usize {
        let longest = if self.longest < Self::LONGEST { self.longest } else { Self::LONGEST };
        ((BEFORE + longest).div_ceil(LINE) | 1) * LINE
    }
}

/// Bytes of a slot before its frame: the kernel's header and address, the virtio-net header, and
/// room for a tag (`TPACKET2_HDRLEN` and what `tpacket_rcv()` adds to it).
const BEFORE: usize = 96;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a block, which is contiguous for the kernel.
const BLOCK: usize = 64 << 10;
/// Bytes of both MAC addresses, and of a tag.
const MACS: usize = 12;
const TAG: usize = 4;
/// Maximum number of long frames in a batch.
const LONG: usize = 64;
/// `enum tpacket_versions` (`include/uapi/linux/if_packet.h`).
const TPACKET_V2: libc::c_int = 1;
const _: () = assert!(LINE.is_multiple_of(libc::TPACKET_ALIGNMENT) && BLOCK.is_multiple_of(4096));

/// The receive ring of a socket.
pub(crate) struct Ring {
    memory: NonNull<u8>,
    room: RingSize,
    layout: Layout,
    /// The first slot of the batch, or the one that the kernel fills next.
    next: Slot,
    /// Number of slots from `next` on whose frames are in the batch.
    taken: usize,
    /// Buffer for long frames.
    long: Box<[u8]>,
    /// Whether tags that the kernel removed are put back into the frames.
    tagged: bool,
    /// Whether a frame arrived since the last call of [`Self::check`].
    used: bool,
    /// Long frames that did not fit the socket's queue, since the last call of [`Self::take_cut`].
    cut: u64,
    batch: Batch<'static>,
}

// SAFETY: the memory belongs to the ring alone, and nothing refers to the thread that created it.
unsafe impl Send for Ring {}

impl Ring {
    /// Makes a socket receive into a new ring.
    pub(crate) fn attach(socket: &OwnedFd, room: RingSize) -> io::Result<Self> {
        let layout = Layout::of(room);
        set_option(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &TPACKET_V2)?;
        let on: libc::c_int = 1;
        // With any value but 0, long frames wait whole, as long as the receive buffer has room.
        set_option(socket, libc::SOL_PACKET, libc::PACKET_COPY_THRESH, &on)?;
        let buffer =
            libc::c_int::try_from(room.frames * RingSize::LONGEST).unwrap_or(libc::c_int::MAX);
        set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &buffer)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: layout.blocks as u32,
            tp_frame_size: layout.slot as u32,
            tp_frame_nr: layout.slots() as u32,
        };
        set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of the ring that was just created, with its exact size; it is
        // unmapped when dropped. The kernel maps all its pages immediately, so there are no page
        // faults later, and they cannot be swapped.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                layout.bytes(),
                access,
                libc::MAP_SHARED,
                socket.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory =
            NonNull::new(memory.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        let long = vec![0; LONG * FRAME_CAPACITY].into();
        let batch = Batch::new(BATCH);
        Ok(Self {
            memory,
            room,
            layout,
            next: Slot::default(),
            taken: 0,
            long,
            tagged: false,
            used: false,
            cut: 0,
            batch,
        })
    }

    /// Replaces the ring if it is stuck. `lost` is the number of frames that the kernel could not
    /// put into it since the last call.
    ///
    /// A ring is stuck if it lost frames, is empty, and received nothing. The reason is a frame
    /// whose offload the kernel cannot describe (SCTP super-frames, and UDP ones before Linux 6.2).
    /// The kernel never releases the slot of such a frame (`rx_owner_map`), and all further frames
    /// are lost.
    pub(crate) fn check(mut self, socket: &OwnedFd, lost: u64) -> io::Result<Self> {
        // SAFETY: as in `receive`.
        let next = unsafe { status(self.next.of(self.memory)) }.load(Ordering::Acquire);
        if std::mem::take(&mut self.used) || lost == 0 || next != libc::TP_STATUS_KERNEL {
            return Ok(self);
        }
        let (room, tagged) = (self.room, self.tagged);
        // A ring that is still mapped cannot be removed.
        drop(self);
        // SAFETY: tpacket_req is plain data for which zero bytes are a valid value.
        let none: libc::tpacket_req = unsafe { zeroed() };
        set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &none)?;
        let mut ring = Self::attach(socket, room)?;
        ring.tagged = tagged;
        Ok(ring)
    }

    /// Whether [`Self::take_cut`] would return more than 0.
    pub(crate) const fn has_cut(&self) -> bool {
        self.cut > 0
    }

    /// Returns how many long frames did not fit the queue since the last call.
    pub(crate) const fn take_cut(&mut self) -> u64 {
        std::mem::replace(&mut self.cut, 0)
    }

    /// Keeps VLAN tags in the frames.
    pub(crate) const fn keep_tags(&mut self) {
        self.tagged = true;
    }

    /// Frames that have arrived since the last call. The slots of the batch before go back to the
    /// kernel.
    pub(crate) fn receive(&mut self, socket: BorrowedFd<'_>) -> &Batch<'_> {
        self.release();
        let Self { memory, layout, next, taken, long, tagged, used, cut, batch, .. } = self;
        let mut place = *next;
        let mut long = long.chunks_exact_mut(FRAME_CAPACITY);
        // A super-frame counts as its segments, so that a batch is a bounded amount of work.
        // Otherwise the worker could return to its rings so late that the watchdog reports it.
        let mut segments = 0;
        while *taken < layout.slots() && segments < BATCH {
            let slot = place.of(*memory);
            // SAFETY: the slot is inside the ring's memory, and its first word is only accessed by
            // atomic operations.
            let status = unsafe { status(slot) }.load(Ordering::Acquire);
            if status & libc::TP_STATUS_USER == 0 {
                break;
            }
            // SAFETY: the slot belongs to us until its status is written, which only `release`
            // does. The kernel has written the header, and the bytes that it describes are inside
            // the slot.
            let (header, bytes) = unsafe {
                let header: libc::tpacket2_hdr = slot.cast().read();
                (header, std::slice::from_raw_parts_mut(slot.as_ptr(), layout.slot))
            };
            let start = usize::from(header.tp_mac);
            let end = start + header.tp_snaplen as usize;
            let vnet = start
                .checked_sub(size_of::<VnetHeader>())
                .and_then(|before| bytes.get(before..start));
            let vnet = vnet
                .and_then(|bytes| bytes.first_chunk())
                .map(|bytes| VnetHeader::from_bytes(*bytes));
            let mut tag = vlan(&header, status);
            let mut about = vnet.and_then(|header| offload(&header));
            let waits = status & libc::TP_STATUS_COPY != 0;
            let room = if waits { long.next() } else { None };
            if waits && room.is_none() {
                break;
            }
            *taken += 1;
            place = layout.after(place);
            *used = true;
            let data = if let Some(room) = room {
                // Room for the tag before the frame.
                room.split_at_mut_checked(TAG)
                    .and_then(|(_, frame)| receive_long(socket, frame))
                    .and_then(|length| {
                        let end = TAG + length;
                        match tag.filter(|_| *tagged) {
                            Some(tag) => put_back(room, TAG..end, tag),
                            None => room.get(TAG..end),
                        }
                    })
            } else if header.tp_snaplen < header.tp_len {
                // The frame is truncated: the socket's queue had no room for the whole frame.
                *cut += 1;
                continue;
            } else {
                match tag.filter(|_| *tagged) {
                    Some(tag) => put_back(bytes, start..end, tag),
                    None => bytes.get(start..end),
                }
            };
            if *tagged
                && tag.take().is_some()
                && let Some(Offload { checksum: Checksum::Partial { start, .. }, .. }) = &mut about
            {
                *start = start.saturating_add(TAG as u16);
            }
            // A frame that cannot be used becomes empty; the pipeline counts it as unreadable.
            let (data, offload) = data.zip(about).unwrap_or_default();
            segments +=
                offload.gso.map_or(1, |gso| data.len().div_ceil(usize::from(gso.size.max(1))));
            // SAFETY: the batch is only lent for as long as the ring is. It forgets its frames
            // before their slots go back to the kernel and before `long` is written again.
            let data = unsafe { std::slice::from_raw_parts(data.as_ptr(), data.len()) };
            batch.push(Frame { data, vlan: tag, offload });
        }
        &self.batch
    }

    /// The batch that [`Self::receive`] returned last.
    pub(crate) const fn batch(&self) -> &Batch<'_> {
        &self.batch
    }

    /// Gives the slots of the batch back to the kernel.
    fn release(&mut self) {
        self.batch.clear();
        for _ in 0..std::mem::take(&mut self.taken) {
            // SAFETY: as in `receive`.
            let status = unsafe { status(self.next.of(self.memory)) };
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = self.layout.after(self.next);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `attach` with this size, and not used after.
        let _ = unsafe { libc::munmap(self.memory.as_ptr().cast(), self.layout.bytes()) };
    }
}

/// Positions of the slots: each block starts with a slot, and no slot crosses blocks.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Bytes of a slot.
    slot: usize,
    /// Slots of a block.
    per_block: usize,
    blocks: usize,
}

/// The position of a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Slot {
    /// Its offset in the ring, in bytes.
    start: usize,
    /// Its index in its block.
    number: usize,
}

impl Layout {
    fn of(room: RingSize) -> Self {
        let slot = room.slot();
        let per_block = BLOCK / slot;
        Self { slot, per_block, blocks: room.frames.div_ceil(per_block).max(1) }
    }

    const fn slots(&self) -> usize {
        self.blocks * self.per_block
    }

    const fn bytes(&self) -> usize {
        self.blocks * BLOCK
    }

    /// The next slot; after the last one, the first.
    const fn after(&self, Slot { start, number }: Slot) -> Slot {
        if number + 1 < self.per_block {
            return Slot { start: start + self.slot, number: number + 1 };
        }
        let start = start - number * self.slot + BLOCK;
        Slot { start: if start < self.bytes() { start } else { 0 }, number: 0 }
    }
}

impl Slot {
    /// The first byte of the slot in the mapped ring.
    fn of(self, memory: NonNull<u8>) -> NonNull<u8> {
        // SAFETY: `Layout::after` only returns slots inside the mapping.
        unsafe { memory.add(self.start) }
    }
}

/// The status word of a slot, which tells whether the kernel or the process owns it.
///
/// # Safety
/// `slot` is the first byte of a slot in a mapping that outlives the result.
unsafe fn status<'a>(slot: NonNull<u8>) -> &'a AtomicU32 {
    // SAFETY: slots are aligned to 16 bytes; the caller guarantees the rest.
    unsafe { slot.cast::<AtomicU32>().as_ref() }
}

/// Reads the next long frame from the socket's queue and returns its length. The queue has the
/// order of the marked slots. `None` if it cannot be read or does not fit `room`.
fn receive_long(socket: BorrowedFd<'_>, room: &mut [u8]) -> Option<usize> {
    let mut header = [0; size_of::<VnetHeader>()];
    // A pending error (ENETDOWN) is returned once, before the frame.
    for _ in 0..2 {
        let mut vectors = [IoSliceMut::new(&mut header), IoSliceMut::new(room)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let Ok(read) = recvmsg::<()>(socket.as_raw_fd(), &mut vectors, None, flags) else {
            continue;
        };
        if let Some(length) = read.bytes.checked_sub(size_of::<VnetHeader>()) {
            return (!read.flags.contains(MsgFlags::MSG_TRUNC)).then_some(length);
        }
    }
    None
}

/// Inserts a tag after the MAC addresses of a frame. The addresses move into the four bytes before
/// the frame.
fn put_back(memory: &mut [u8], frame: Range<usize>, tag: VlanTag) -> Option<&[u8]> {
    let start = frame.start.checked_sub(TAG)?;
    if frame.len() < MACS || frame.end > memory.len() {
        return None;
    }
    memory.copy_within(frame.start..frame.start + MACS, start);
    let bytes = tag.tpid.to_be_bytes().into_iter().chain(tag.tci.to_be_bytes());
    memory
        .get_mut(start + MACS..start + MACS + TAG)?
        .iter_mut()
        .zip(bytes)
        .for_each(|(place, byte)| *place = byte);
    memory.get(start..frame.end)
}

/// The tag that the kernel removed from the frame.
fn vlan(header: &libc::tpacket2_hdr, status: u32) -> Option<VlanTag> {
    let tpid =
        if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { header.tp_vlan_tpid } else { 0x8100 };
    (status & libc::TP_STATUS_VLAN_VALID != 0).then_some(VlanTag { tpid, tci: header.tp_vlan_tci })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_what_they_are_for_and_lie_where_the_kernel_puts_them() {
        for (longest, slot) in
            [(60, 192), (1568, 1728), (4204, 4416), (RingSize::LONGEST, 4672), (9000, 4672)]
        {
            let layout = Layout::of(RingSize { frames: 3584, longest });
            assert_eq!(layout.slot, slot, "{longest}");
            // A frame begins at byte 76: `tpacket_rcv()` aligns 52 bytes of headers and 16 more to
            // 16, adds 10 for virtio-net, and subtracts 14 for the Ethernet header.
            assert!(slot >= 76 + longest.min(RingSize::LONGEST));
            assert!(layout.slots() >= 3584);
            // The positions that `packet_lookup_frame()` computes.
            let mut place = Slot::default();
            for number in 0..layout.slots() {
                let (block, within) = (number / layout.per_block, number % layout.per_block);
                assert_eq!(place, Slot { start: block * BLOCK + within * slot, number: within });
                assert!(place.start + slot <= layout.bytes());
                place = layout.after(place);
            }
            assert_eq!(place, Slot::default());
        }
        assert_eq!(Layout::of(RingSize { frames: 0, longest: 0 }).blocks, 1);
    }

    #[test]
    fn a_tag_goes_back_to_where_it_was() {
        let mut memory: Vec<u8> = (0..40).collect();
        let tag = VlanTag { tpid: 0x8100, tci: 0xb065 };
        let whole = put_back(&mut memory, 10..40, tag).unwrap();
        let expected: Vec<u8> = (10..22).chain([0x81, 0, 0xb0, 0x65]).chain(22..40).collect();
        assert_eq!(whole, expected);
        // No room before the frame, no whole addresses, or an end outside the buffer.
        assert_eq!(put_back(&mut memory, 3..40, tag), None);
        assert_eq!(put_back(&mut memory, 10..21, tag), None);
        assert_eq!(put_back(&mut memory, 10..41, tag), None);
    }
}
