//! Where a frame from the bridge goes. [`crate::encapsulate`] and [`crate::explain`] share this
//! code, so that the explanation always matches the forwarding.

use core::ops::Range;
use std::net::{IpAddr, Ipv4Addr};

use frame::{Checksum, Destination, DropReason, Frame, Offload};
use tables::{NextHop, Paths, Snapshot, VniTable, VtepIndex};
use wire::{Dissection, Roce};

use crate::csum_offload::{Completed, InnerHead};
use crate::gso::Segmenter;
use crate::outer::{Inner, OVERHEAD};

/// Length of the outer headers that count against the underlay's MTU, in bytes.
pub const L3_OVERHEAD: usize = OVERHEAD - 14;

/// The decision about a frame from the bridge: its destinations and its pieces. It only borrows,
/// because one is made for every frame.
#[derive(Clone, Copy)]
pub struct Decision<'a> {
    pub vni: &'a VniTable,
    pub dissection: &'a Dissection,
    /// The VTEPs that get a copy each; at least one.
    pub remotes: &'a [VtepIndex],
    /// Whether `remotes` is the flood list.
    pub flooded: bool,
    /// The fields of the inner packet that the outer headers may inherit.
    pub inner: Inner,
    frame: &'a Frame<'a>,
}

/// One frame to be sent to each remote VTEP: the whole frame, or a segment of it.
pub struct Piece {
    /// Range of the received frame that follows the rewritten headers.
    pub body: Range<usize>,
    /// The RoCE header of a segment; the outer `None` is for a frame that is not split.
    roce: Option<Option<Roce>>,
}

impl<'a> Decision<'a> {
    /// Looks up the destination of the frame.
    ///
    /// # Errors
    /// [`DropReason::NoRemote`], [`DropReason::InnerTruncated`].
    #[inline(always)]
    pub fn of(
        frame: &'a Frame<'a>,
        dissection: &'a Dissection,
        vni: &'a VniTable,
    ) -> Result<Self, DropReason> {
        let known = vni.fdb.get(&dissection.destination);
        let remotes = known.map_or(vni.flood.as_slice(), core::slice::from_ref);
        if remotes.is_empty() {
            return Err(DropReason::NoRemote);
        }
        let inner = Inner::of(frame.data)?;
        Ok(Self { vni, dissection, remotes, flooded: known.is_none(), inner, frame })
    }

    /// A decision for the given VTEPs, of which there must be at least one.
    pub fn to(
        frame: &'a Frame<'a>,
        dissection: &'a Dissection,
        vni: &'a VniTable,
        remotes: &'a [VtepIndex],
        flooded: bool,
    ) -> Self {
        let inner = Inner::of(frame.data).unwrap_or_default();
        Self { vni, dissection, remotes, flooded, inner, frame }
    }

    /// Whether neither a checksum nor segmentation is left to be done.
    #[inline]
    pub const fn is_finished(&self) -> bool {
        self.frame.offload.gso.is_none()
            && !matches!(self.frame.offload.checksum, Checksum::Partial { .. })
    }

    /// The range of all bytes of the frame.
    #[inline]
    pub const fn whole(&self) -> Range<usize> {
        0..self.frame.data.len()
    }

    /// The segmenter of the frame, if it is a super-frame.
    ///
    /// # Errors
    /// As [`Segmenter::new`].
    #[inline]
    pub fn segmenter(&self) -> Result<Option<Segmenter<'a>>, DropReason> {
        let Some(gso) = self.frame.offload.gso else { return Ok(None) };
        Segmenter::new(self.frame.data, self.dissection, gso, self.frame.offload.checksum).map(Some)
    }

    /// Describes a super-frame that the kernel can split inside a tunnel. Returns the length of its
    /// longest segment in bytes, and the offloads to request. `None` if the kernel cannot split it.
    pub fn in_a_tunnel(&self, segmenter: &Segmenter<'_>) -> Option<(usize, Offload)> {
        let Offload { checksum: Checksum::Partial { .. }, gso } = self.frame.offload else {
            return None;
        };
        let (longest, checksum) = segmenter.in_a_tunnel()?;
        Some((longest, Offload { checksum, gso }))
    }

    /// Prepares one piece. Headers that differ from the frame's are written to `inner`.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`] if the offloads do not fit the frame, [`DropReason::TooBig`] if
    /// the headers are too long for `inner`.
    #[inline]
    pub fn piece(
        &self,
        segmenter: Option<&Segmenter<'_>>,
        index: usize,
        inner: &mut InnerHead,
    ) -> Result<Piece, DropReason> {
        inner.clear();
        if let Some(segmenter) = segmenter {
            let body = segmenter.segment(index, inner)?;
            let roce = segmenter.roce(self.dissection, body.clone());
            return Ok(Piece { body, roce: Some(roce) });
        }
        let body = match self.frame.offload.checksum {
            Checksum::Partial { start, offset } => self.complete(start, offset, inner)?,
            Checksum::AsIs | Checksum::Valid => 0..self.frame.data.len(),
        };
        Ok(Piece { body, roce: None })
    }

    /// Completes the checksum of the frame. Returns the range of bytes that follow it.
    fn complete(
        &self,
        start: u16,
        offset: u16,
        inner: &mut InnerHead,
    ) -> Result<Range<usize>, DropReason> {
        let frame = self.frame.data;
        let checksum =
            Completed::of(frame, self.dissection, start, offset).ok_or(DropReason::BadOffload)?;
        let headers = frame.get(..checksum.end()).ok_or(DropReason::BadOffload)?;
        let headers = inner.start(headers).ok_or(DropReason::TooBig)?;
        checksum.write(headers).ok_or(DropReason::BadOffload)?;
        Ok(checksum.end()..frame.len())
    }

    /// The outer source port of a piece; `None` is the whole frame.
    #[inline(always)]
    pub fn source_port(&self, piece: Option<&Piece>) -> u16 {
        match piece.and_then(|piece| piece.roce) {
            None => self.vni.entropy.decide(self.dissection).source_port,
            Some(roce) => {
                self.vni.entropy.decide(&Dissection { roce, ..*self.dissection }).source_port
            }
        }
    }

    /// The outer source port of a piece, and how it was chosen.
    pub fn explain_source_port(&self, piece: Option<&Piece>) -> path::Explanation {
        let roce = piece.and_then(|piece| piece.roce).unwrap_or(self.dissection.roce);
        self.vni.entropy.explain(&Dissection { roce, ..*self.dissection })
    }
}

/// The route of one copy to its VTEP.
#[derive(Debug, Clone, Copy)]
pub struct Path<'a> {
    /// The VTEP's address.
    pub remote: Ipv4Addr,
    /// The hash that chose the next hop.
    pub hash: u64,
    /// All next hops of the VTEP.
    pub paths: &'a Paths,
    /// The next hop that was chosen.
    pub hop: &'a NextHop,
    /// Length of the outer IPv4 packet in bytes.
    pub l3_length: u16,
}

impl<'a> Path<'a> {
    /// Chooses the next hop by a hash of the outer addresses and ports only. Frames with one source
    /// port therefore share a path.
    ///
    /// # Errors
    /// The reason why this copy is dropped: [`DropReason::NoRoute`] or [`DropReason::TooBig`].
    #[inline(always)]
    pub fn of(
        vni: &VniTable,
        remote: VtepIndex,
        source_port: u16,
        inner_length: usize,
        snapshot: &'a Snapshot,
    ) -> Result<Self, DropReason> {
        let vtep = snapshot.vtep(remote).ok_or(DropReason::NoRoute)?;
        let hash = path::path_hash(
            vni.entropy.seed(),
            IpAddr::V4(vni.tunnel.local),
            IpAddr::V4(vtep.address),
            source_port,
            vni.tunnel.destination_port,
        );
        let hop = vtep.paths.choose(hash).ok_or(DropReason::NoRoute)?;
        let l3_length =
            u16::try_from(inner_length + L3_OVERHEAD).map_err(|_| DropReason::TooBig)?;
        if u32::from(l3_length) > hop.mtu {
            return Err(DropReason::TooBig);
        }
        Ok(Self { remote: vtep.address, hash, paths: &vtep.paths, hop, l3_length })
    }
}

/// The uplink of `hop`.
pub(crate) const fn uplink(hop: &NextHop) -> Destination {
    Destination::Uplink {
        ifindex: hop.ifindex,
        path: hop.path,
        by_default: hop.by_default,
        impaired: hop.impaired,
    }
}
