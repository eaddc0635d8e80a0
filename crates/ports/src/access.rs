//! Access ports: interfaces to which stations of a VNI without a kernel bridge are attached.

use core::ops::Range;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use frame::{Batch, TxBatch};
use netlink::{Link, Requests};

use crate::packet::PacketSocket;
use crate::port::Port;
use crate::ring::RingSize;
use crate::tap::{Tap, TapSettings};

/// Slots of an interface's receive ring.
const FRAMES: usize = 1792;
/// Bytes of an Ethernet header and a tag.
const HEADER: usize = 18;

/// The batch of a port that is gone.
static NOTHING: Batch<'static> = Batch::none();

/// An access port of a standalone VNI.
#[derive(Debug)]
pub enum AccessPort {
    /// An existing interface: a veth, a network card, or the host's side of a virtual machine's
    /// TAP.
    Interface(PacketSocket),
    /// A TAP that vtepd created. Its interface is the station's side.
    Tap(Tap),
    /// The interface or TAP was deleted.
    Gone,
}

impl AccessPort {
    /// Opens an interface of the calling thread's namespace.
    ///
    /// # Errors
    /// When there is no interface of that name, or as [`PacketSocket::open`].
    pub fn interface(name: &str) -> io::Result<Self> {
        let link = Self::find(name)?;
        let room = RingSize { frames: FRAMES, longest: link.mtu as usize + HEADER };
        let mut socket = PacketSocket::open(link.ifindex, room)?;
        socket.keep_tags();
        socket.listen_to_all()?;
        Ok(Self::Interface(socket))
    }

    /// Finds the interface that [`Self::interface`] would open.
    ///
    /// # Errors
    /// When there is no interface of that name.
    pub fn find(name: &str) -> io::Result<Link> {
        let link = Requests::open()
            .and_then(|mut requests| requests.link(name))
            .map_err(io::Error::other)?;
        let missing = || {
            let text = format!(
                "there is no such interface; make it first, or have vtepd make a TAP: {{ tap = \"{name}\" }}"
            );
            io::Error::new(io::ErrorKind::NotFound, text)
        };
        link.ok_or_else(missing)
    }

    /// Creates a TAP in the calling thread's namespace, or opens a persistent one.
    ///
    /// # Errors
    /// As [`Tap::open`].
    pub fn tap(settings: &TapSettings) -> io::Result<Self> {
        Tap::open(settings).map(Self::Tap)
    }

    /// The interface whose frames the namespace's IP stack must not receive, if any.
    #[must_use]
    pub const fn shared_interface(&self) -> Option<u32> {
        match self {
            Self::Interface(socket) => Some(socket.ifindex()),
            Self::Tap(_) | Self::Gone => None,
        }
    }
}

impl Port for AccessPort {
    /// VLAN tags are in the bytes of the frames. A port that fails is gone afterwards.
    fn receive(&mut self) -> io::Result<&Batch<'_>> {
        let failed = match self {
            Self::Interface(socket) => {
                socket.receive();
                None
            }
            Self::Tap(tap) => tap.receive().err(),
            Self::Gone => None,
        };
        if let Some(error) = failed {
            *self = Self::Gone;
            return Err(error);
        }
        Ok(self.batch())
    }

    fn batch(&self) -> &Batch<'_> {
        match self {
            Self::Interface(socket) => socket.batch(),
            Self::Tap(tap) => tap.batch(),
            Self::Gone => &NOTHING,
        }
    }

    /// A port that is gone sends nothing.
    fn transmit(&mut self, batch: &Batch<'_>, out: &mut TxBatch, groups: Range<usize>) {
        match self {
            Self::Interface(socket) => socket.transmit(batch, out, groups),
            Self::Tap(tap) => tap.transmit(batch, out, groups),
            Self::Gone => {}
        }
    }

    /// A TAP's interface counts its own (`tx_dropped`).
    fn overruns(&mut self) -> io::Result<u64> {
        match self {
            Self::Interface(socket) => socket.overruns(),
            Self::Tap(_) | Self::Gone => Ok(0),
        }
    }

    fn has_overruns(&self) -> bool {
        match self {
            Self::Interface(socket) => socket.has_overruns(),
            Self::Tap(_) | Self::Gone => false,
        }
    }

    /// An interface can receive super-frames that the kernel cannot describe.
    fn may_stick(&self) -> bool {
        matches!(self, Self::Interface(_))
    }

    fn clear_error(&self) {
        if let Self::Interface(socket) = self {
            socket.clear_error();
        }
    }

    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (socket, tap) = match self {
            Self::Interface(socket) => (Some(socket.as_fd()), None),
            Self::Tap(tap) => (None, Some(tap)),
            Self::Gone => (None, None),
        };
        socket.into_iter().chain(tap.into_iter().flat_map(Tap::descriptors))
    }
}
