//! TAPs with a virtio-net header (`Documentation/networking/tuntap.rst`, `drivers/net/tun.c`).

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use netlink::{LinkChange, Requests};
use nix::sys::uio::{readv, writev};
use pipeline::{Batch, DropReason, Received, Transmit};

use crate::outbox::vnet_header;
use crate::packet::{BATCH, VnetHeader, offload};

const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const TUNSETPERSIST: libc::Ioctl = 0x4004_54cb;
const TUNSETOWNER: libc::Ioctl = 0x4004_54cc;
const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0;
const TUNSETVNETHDRSZ: libc::Ioctl = 0x4004_54d8;

/// `TUN_F_CSUM`, `_TSO4`, `_TSO6` and `_TSO_ECN`: the interface may hand over partial checksums and TCP super-frames.
const TCP_OFFLOADS: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x08;
/// `TUN_F_USO4` and `_USO6` (Linux 6.2).
const UDP_OFFLOADS: libc::c_ulong = 0x20 | 0x40;

/// How a TAP is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapTerms {
    /// Name of the interface, 1 to 15 octets.
    pub name: String,
    /// The user who may open it beside root.
    pub owner: Option<u32>,
    /// Whether the interface stays when vtepd ends, with its addresses.
    pub persistent: bool,
    /// Queues, 1 to 256 (`MAX_TAP_QUEUES`).
    pub queues: u16,
    /// MTU in bytes, layer 3.
    pub mtu: u32,
}

/// An open TAP: what its interface sends is read here.
#[derive(Debug)]
pub struct Tap {
    name: String,
    /// At least one.
    queues: Vec<File>,
    /// The queue that is read first next.
    turn: usize,
}

impl Tap {
    /// Makes the interface in the calling thread's namespace, or opens a persistent one of that name, and brings it up.
    ///
    /// # Errors
    /// When `/dev/net/tun` cannot be opened, somebody has the TAP open, or a privilege is missing (CAP_NET_ADMIN).
    pub fn open(terms: &TapTerms) -> io::Result<Self> {
        let queues: io::Result<Vec<File>> = (0..terms.queues.max(1)).map(|_| queue(terms)).collect();
        let tap = Self { name: terms.name.clone(), queues: queues?, turn: 0 };
        if let Some(file) = tap.queues.first() {
            if let Some(owner) = terms.owner {
                control(file, TUNSETOWNER, owner.into())?;
            }
            control(file, TUNSETPERSIST, terms.persistent.into())?;
        }
        let mut requests = Requests::open().map_err(io::Error::other)?;
        let link = requests.link(&terms.name).map_err(io::Error::other)?;
        let ifindex = link.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?.ifindex;
        let change = LinkChange { up: Some(true), mtu: Some(terms.mtu), ..LinkChange::default() };
        requests.set_link(ifindex, &change).map_err(io::Error::other)?;
        Ok(tap)
    }

    /// What to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.queues.iter().map(AsFd::as_fd)
    }

    /// Fills the batch (which is cleared first) with what the interface has sent; does not wait. Queues take turns in being first.
    ///
    /// # Errors
    /// As readv(2): when somebody has deleted the interface.
    pub fn receive(&mut self, batch: &mut Batch) -> io::Result<()> {
        batch.clear();
        self.turn = (self.turn + 1) % self.queues.len().max(1);
        let (later, first) = self.queues.split_at(self.turn);
        let mut received: [Option<Received>; BATCH] = [None; BATCH];
        let mut queues = first.iter().chain(later);
        let mut queue = queues.next();
        for (place, room) in received.iter_mut().zip(batch.room()) {
            // A queue that is empty leaves its room to the next.
            while let Some(current) = queue {
                *place = read(current, room).map_err(|error| self.lost(&error))?;
                if place.is_some() {
                    break;
                }
                queue = queues.next();
            }
        }
        received.into_iter().flatten().for_each(|about| batch.push(about));
        Ok(())
    }

    /// Hands frames to the interface. `outcome` is told what became of each, in order.
    pub fn transmit(
        &mut self,
        batch: &Batch,
        frames: &[Transmit],
        mut outcome: impl FnMut(&Transmit, Result<(), DropReason>),
    ) {
        let Some(queue) = self.queues.first() else { return };
        for frame in frames {
            let header = vnet_header(&frame.offload).bytes();
            let pieces = [&header, frame.head(), frame.body(batch)].map(IoSlice::new);
            outcome(frame, writev(queue, &pieces).map(drop).map_err(refusal));
        }
    }

    fn lost(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("the TAP {} cannot be read any more ({error})", self.name))
    }
}

/// Reads one frame; `None` if there is none.
fn read(queue: &File, room: &mut [u8]) -> io::Result<Option<Received>> {
    let mut header = [0; size_of::<VnetHeader>()];
    let read = readv(queue, &mut [IoSliceMut::new(&mut header), IoSliceMut::new(room)]);
    let length = match read {
        Ok(length) => length.saturating_sub(header.len()),
        Err(nix::Error::EAGAIN | nix::Error::EINTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // A frame that cannot be used is an empty one, which the pipeline counts as unreadable.
    let about =
        offload(&VnetHeader::from_bytes(header)).map(|offload| Received { length, vlan: None, offload });
    Ok(Some(about.unwrap_or_default()))
}

/// One queue of the interface, which is made with the first.
fn queue(terms: &TapTerms) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun");
    let file = file.map_err(|error| io::Error::new(error.kind(), format!("/dev/net/tun: {error}")))?;
    let many = if terms.queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | many;
    // SAFETY: ifreq is plain data for which zero bytes are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last octet stays zero.
    let room = request.ifr_name.len() - 1;
    for (octet, letter) in request.ifr_name.iter_mut().take(room).zip(terms.name.bytes()) {
        *octet = letter as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    let mut size = size_of::<VnetHeader>() as libc::c_int;
    // SAFETY: both requests read or write what the pointers point at, an ifreq and an int, which outlive the calls.
    let done = unsafe {
        match libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) {
            0 => libc::ioctl(file.as_raw_fd(), TUNSETVNETHDRSZ, &raw mut size),
            error => error,
        }
    };
    if done < 0 {
        return Err(explained(io::Error::last_os_error()));
    }
    control(&file, TUNSETOFFLOAD, TCP_OFFLOADS | UDP_OFFLOADS)
        .or_else(|_| control(&file, TUNSETOFFLOAD, TCP_OFFLOADS))?;
    Ok(file)
}

/// Why there is no TAP of that name for us, with what the error's number alone does not say.
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

/// A request whose argument is a number.
fn control(file: &File, request: libc::Ioctl, argument: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the requests made here take their argument by value.
    match unsafe { libc::ioctl(file.as_raw_fd(), request, argument) } {
        result if result < 0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Why the interface did not take a frame.
const fn refusal(error: nix::Error) -> DropReason {
    match error {
        nix::Error::EIO | nix::Error::EBADFD | nix::Error::ENETDOWN => DropReason::LinkDown,
        nix::Error::EAGAIN | nix::Error::ENOBUFS | nix::Error::ENOMEM => DropReason::TransmitBusy,
        _ => DropReason::TransmitError,
    }
}
