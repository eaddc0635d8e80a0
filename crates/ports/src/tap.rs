//! TAP interfaces with a virtio-net header (`Documentation/networking/tuntap.rst`,
//! `drivers/net/tun.c`).

use core::ops::Range;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use frame::{Batch, DropReason, FRAME_CAPACITY, Frame, Offload, TxBatch};
use netlink::{LinkChange, Requests};
use nix::sys::uio::{readv, writev};

use crate::packet::{VnetHeader, offload};
use crate::port::Port;
use crate::tx::vnet_header;

/// The interface may hand over partial checksums and TCP super-frames.
const TCP_OFFLOADS: libc::c_uint =
    libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
/// The interface may also hand over UDP super-frames (Linux 6.2).
const UDP_OFFLOADS: libc::c_uint = libc::TUN_F_USO4 | libc::TUN_F_USO6;

/// Maximum number of frames in a batch.
const BATCH: usize = 64;

/// Settings of a TAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapSettings {
    /// Name of the interface, 1 to 15 octets.
    pub name: String,
    /// User identifier that may open it, in addition to root.
    pub owner: Option<u32>,
    /// Whether the interface and its addresses stay when vtepd ends.
    pub persistent: bool,
    /// Number of queues, 1 to 256 (`MAX_TAP_QUEUES`).
    pub queues: u16,
    /// MTU in bytes.
    pub mtu: u32,
}

/// An open TAP. What its interface sends is read here.
#[derive(Debug)]
pub struct Tap {
    name: String,
    /// At least one.
    queues: Vec<File>,
    /// The queue that the last call of [`Self::receive`] read first.
    turn: usize,
    /// Buffer for a batch.
    memory: Box<[u8]>,
    batch: Batch<'static>,
}

impl Tap {
    /// Creates the interface in the calling thread's namespace, or opens a persistent one of that
    /// name, and brings it up.
    ///
    /// # Errors
    /// When `/dev/net/tun` cannot be opened, when another process has the TAP open, or without
    /// CAP_NET_ADMIN.
    pub fn open(settings: &TapSettings) -> io::Result<Self> {
        let queues: io::Result<Vec<File>> =
            (0..settings.queues.max(1)).map(|_| queue(settings)).collect();
        let memory = vec![0; BATCH * FRAME_CAPACITY].into();
        let tap = Self {
            name: settings.name.clone(),
            queues: queues?,
            turn: 0,
            memory,
            batch: Batch::new(BATCH),
        };
        if let Some(file) = tap.queues.first() {
            if let Some(owner) = settings.owner {
                control(file, libc::TUNSETOWNER, owner.into())?;
            }
            control(file, libc::TUNSETPERSIST, settings.persistent.into())?;
        }
        let mut requests = Requests::open().map_err(io::Error::other)?;
        let link = requests.link(&settings.name).map_err(io::Error::other)?;
        let ifindex = link.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?.ifindex;
        let change =
            LinkChange { up: Some(true), mtu: Some(settings.mtu), ..LinkChange::default() };
        requests.set_link(ifindex, &change).map_err(io::Error::other)?;
        Ok(tap)
    }
}

impl Port for Tap {
    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(AsFd::as_fd)
    }

    /// The queues take turns in being read first.
    fn receive(&mut self) -> io::Result<&Batch<'_>> {
        self.batch.clear();
        self.turn = (self.turn + 1) % self.queues.len().max(1);
        let (later, first) = self.queues.split_at(self.turn);
        let mut queues = first.iter().chain(later);
        let mut queue = queues.next();
        for room in self.memory.chunks_exact_mut(FRAME_CAPACITY) {
            // When a queue is empty, the next queue uses the remaining room.
            while let Some(current) = queue {
                match read(current, room) {
                    Ok(Some((length, offload))) => {
                        let data = room.get(..length).unwrap_or_default();
                        // SAFETY: the batch is only lent for as long as the TAP is, and forgets its
                        // frames before their memory is written again.
                        let data = unsafe { std::slice::from_raw_parts(data.as_ptr(), data.len()) };
                        self.batch.push(Frame { data, vlan: None, offload });
                        break;
                    }
                    Ok(None) => queue = queues.next(),
                    Err(error) => {
                        let text =
                            format!("the TAP {} cannot be read any more ({error})", self.name);
                        return Err(io::Error::new(error.kind(), text));
                    }
                }
            }
        }
        Ok(&self.batch)
    }

    fn batch(&self) -> &Batch<'_> {
        &self.batch
    }

    fn transmit(&mut self, batch: &Batch<'_>, out: &mut TxBatch, groups: Range<usize>) {
        let Some(queue) = self.queues.first() else { return };
        for index in groups {
            let Some(group) = out.groups().list.get(index) else { return };
            let header = vnet_header(&group.offload).bytes();
            // Frames for access ports are not grouped.
            let Some(frame) = out.first(group) else { continue };
            let pieces = [&header, frame.head(), frame.body(batch)].map(IoSlice::new);
            let outcome = writev(queue, &pieces).map(drop).map_err(refusal);
            if let Some(group) = out.groups_mut().list.get_mut(index) {
                group.outcome = outcome;
            }
        }
    }
}

/// Reads one frame and returns its length and offload; `None` if there is none.
fn read(queue: &File, room: &mut [u8]) -> io::Result<Option<(usize, Offload)>> {
    let mut header = [0; size_of::<VnetHeader>()];
    let read = readv(queue, &mut [IoSliceMut::new(&mut header), IoSliceMut::new(room)]);
    let length = match read {
        Ok(length) => length.saturating_sub(header.len()),
        Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // A frame that cannot be used becomes empty; the pipeline counts it as unreadable.
    Ok(Some(
        offload(&VnetHeader::from_bytes(header))
            .map_or_else(Default::default, |offload| (length, offload)),
    ))
}

/// Opens a queue of the interface. The first one creates the interface.
fn queue(settings: &TapSettings) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun");
    let file =
        file.map_err(|error| io::Error::new(error.kind(), format!("/dev/net/tun: {error}")))?;
    let many = if settings.queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | many;
    // SAFETY: ifreq is plain data for which zero bytes are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last octet stays zero.
    let room = request.ifr_name.len() - 1;
    for (octet, letter) in request.ifr_name.iter_mut().take(room).zip(settings.name.bytes()) {
        *octet = letter as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    let mut size = size_of::<VnetHeader>() as libc::c_int;
    // SAFETY: both requests read or write what the pointers point at, an ifreq and an int, which
    // outlive the calls.
    let done = unsafe {
        match libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) {
            0 => libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw mut size),
            error => error,
        }
    };
    if done < 0 {
        return Err(explained(io::Error::last_os_error()));
    }
    control(&file, libc::TUNSETOFFLOAD, (TCP_OFFLOADS | UDP_OFFLOADS).into())
        .or_else(|_| control(&file, libc::TUNSETOFFLOAD, TCP_OFFLOADS.into()))?;
    Ok(file)
}

/// Explains an error of TUNSETIFF where its number alone is unclear.
fn explained(error: io::Error) -> io::Error {
    let text = match error.raw_os_error() {
        Some(libc::EBUSY) => "another process has this TAP open",
        Some(libc::EINVAL) => {
            "an interface of this name is there and no TAP, or a TAP with one queue where many are wanted or the reverse; \
             delete it first, or give it another name"
        }
        Some(libc::EPERM) => "vtepd needs CAP_NET_ADMIN for a TAP",
        _ => return error,
    };
    io::Error::new(error.kind(), text)
}

/// An ioctl(2) whose argument is a number.
fn control(file: &File, request: libc::Ioctl, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the requests used here take their argument by value.
    match unsafe { libc::ioctl(file.as_raw_fd(), request, argument) } {
        result if result < 0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The drop reason for an error of writev(2).
const fn refusal(error: nix::Error) -> DropReason {
    match error {
        nix::Error::EIO | nix::Error::EBADFD | nix::Error::ENETDOWN => DropReason::LinkDown,
        nix::Error::EAGAIN | nix::Error::ENOBUFS | nix::Error::ENOMEM => DropReason::TransmitBusy,
        _ => DropReason::TransmitError,
    }
}
