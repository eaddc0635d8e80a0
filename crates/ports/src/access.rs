//! Access ports: what the stations of a VNI without a kernel bridge are attached to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink::Requests;
use pipeline::{Batch, DropReason, Transmit};

use crate::packet::PacketSocket;
use crate::tap::{Tap, TapTerms};

/// Bytes of received frames that may wait for the worker.
const RECEIVE_BUFFER: usize = 8 << 20;

/// One access port.
#[derive(Debug)]
pub enum AccessPort {
    /// An interface that is there: a veth or a network card, or the host's side of a virtual machine's TAP.
    Interface(PacketSocket),
    /// A TAP of vtepd's own: its interface is the station's side.
    Tap(Tap),
}

impl AccessPort {
    /// Opens an interface of the calling thread's namespace.
    ///
    /// # Errors
    /// When there is none of that name, or as [`PacketSocket::open`].
    pub fn interface(name: &str) -> io::Result<Self> {
        let link = Requests::open().and_then(|mut requests| requests.link(name)).map_err(io::Error::other)?;
        let missing = || {
            let text = format!(
                "there is no such interface; make it first, or have vtepd make a TAP: {{ tap = \"{name}\" }}"
            );
            io::Error::new(io::ErrorKind::NotFound, text)
        };
        let ifindex = link.ok_or_else(missing)?.ifindex;
        let socket = PacketSocket::open(ifindex, RECEIVE_BUFFER)?;
        socket.listen_to_all()?;
        Ok(Self::Interface(socket))
    }

    /// Makes a TAP in the calling thread's namespace, or opens a persistent one.
    ///
    /// # Errors
    /// As [`Tap::open`].
    pub fn tap(terms: &TapTerms) -> io::Result<Self> {
        Tap::open(terms).map(Self::Tap)
    }

    /// The interface whose frames the namespace's stack must not get as well.
    #[must_use]
    pub const fn shared_interface(&self) -> Option<u32> {
        match self {
            Self::Interface(socket) => Some(socket.ifindex()),
            Self::Tap(_) => None,
        }
    }

    /// Fills the batch with what has arrived, tags in the frames; returns how many more could not be read. As
    /// [`PacketSocket::receive`].
    ///
    /// # Errors
    /// As recvmmsg(2) or readv(2).
    pub fn receive(&mut self, batch: &mut Batch) -> io::Result<u64> {
        match self {
            Self::Interface(socket) => {
                let unreadable = socket.receive(batch)?;
                batch.insert_tags();
                Ok(unreadable)
            }
            Self::Tap(tap) => tap.receive(batch).map(|()| 0),
        }
    }

    /// Sends frames to the stations behind the port. `outcome` is told what became of each.
    pub fn transmit(
        &mut self,
        batch: &Batch,
        frames: &mut [Transmit],
        outcome: impl FnMut(&Transmit, Result<(), DropReason>),
    ) {
        match self {
            Self::Interface(socket) => socket.transmit(batch, frames, outcome),
            Self::Tap(tap) => tap.transmit(batch, frames, outcome),
        }
    }

    /// Frames that found the receive buffer full since the last call. A TAP's interface counts its own (`tx_dropped`).
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn overruns(&self) -> io::Result<u64> {
        match self {
            Self::Interface(socket) => socket.overruns(),
            Self::Tap(_) => Ok(0),
        }
    }

    /// What to wait for.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (socket, tap) = match self {
            Self::Interface(socket) => (Some(socket.as_fd()), None),
            Self::Tap(tap) => (None, Some(tap)),
        };
        socket.into_iter().chain(tap.into_iter().flat_map(Tap::descriptors))
    }
}
