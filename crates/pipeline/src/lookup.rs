//! Where a frame goes. Asked by [`crate::encapsulate`] to send it and by [`crate::explain`] to tell
//! about it, so that both say the same.

use core::ops::Range;
use std::net::{IpAddr, Ipv4Addr};

use tables::{NextHop, Paths, Snapshot, VniTable, VtepIndex};
use wire::{Dissection, Roce};

use crate::csum_offload::{Completed, InnerHead};
use crate::drop_reason::DropReason;
use crate::frame::{Checksum, Frame, Offload};
use crate::gso::Segmenter;
use crate::outer::{Inner, OVERHEAD};

/// Outer headers that count against the underlay's MTU.
pub const L3_OVERHEAD: usize = OVERHEAD - 14;

/// What becomes of a frame from the bridge: to whom, and in how many pieces. Borrows rather than
/// holds: it is made for every frame.
#[derive(Clone, Copy)]
pub struct Decision<'a> {
    pub vni: &'a VniTable,
    pub dissection: &'a Dissection,
    /// The VTEPs that get a copy each, at least one.
    pub remotes: &'a [VtepIndex],
    /// Whether that is the flood list.
    pub flooded: bool,
    /// What the outer headers may take over.
    pub inner: Inner,
    frame: &'a Frame<'a>,
}

/// One frame that each remote VTEP gets.
pub struct Piece {
    /// Bytes of the received frame that follow the headers which were rewritten, if any were.
    pub body: Range<usize>,
    /// In a UDP super-frame the segment's own RoCE header.
    roce: Option<Option<Roce>>,
}

impl<'a> Decision<'a> {
    /// Looks the frame's destination up.
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

    /// A frame that goes to these VTEPs, of which there is at least one.
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

    /// Whether its sender left nothing of the frame to somebody below.
    #[inline]
    pub const fn is_finished(&self) -> bool {
        self.frame.offload.gso.is_none()
            && !matches!(self.frame.offload.checksum, Checksum::Partial { .. })
    }

    /// All of the frame's bytes.
    #[inline]
    pub const fn whole(&self) -> Range<usize> {
        0..self.frame.data.len()
    }

    /// What cuts the frame, if it is a super-frame.
    ///
    /// # Errors
    /// As [`Segmenter::new`].
    #[inline]
    pub fn segmenter(&self) -> Result<Option<Segmenter<'a>>, DropReason> {
        let Some(gso) = self.frame.offload.gso else { return Ok(None) };
        Segmenter::new(self.frame.data, self.dissection, gso, self.frame.offload.checksum).map(Some)
    }

    /// Length in bytes of the longest segment of a super-frame that the kernel can cut inside a
    /// tunnel, and what it is to be told of it behind the outer headers.
    pub fn in_a_tunnel(&self, segmenter: &Segmenter<'_>) -> Option<(usize, Offload)> {
        let Offload { checksum: Checksum::Partial { .. }, gso } = self.frame.offload else {
            return None;
        };
        let (longest, checksum) = segmenter.in_a_tunnel()?;
        Some((longest, Offload { checksum, gso }))
    }

    /// Prepares one piece: writes those headers to `inner` that differ from the frame's.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`] if the sender's description does not fit the frame,
    /// [`DropReason::TooBig`] if the headers are too long to be rewritten.
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

    /// Completes the frame's checksum; returns which bytes follow it.
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

    /// The same with its reasons.
    pub fn explain_source_port(&self, piece: Option<&Piece>) -> entropy::Explanation {
        let roce = piece.and_then(|piece| piece.roce).unwrap_or(self.dissection.roce);
        self.vni.entropy.explain(&Dissection { roce, ..*self.dissection })
    }
}

/// How one copy reaches its VTEP.
#[derive(Debug, Clone, Copy)]
pub struct Path<'a> {
    /// The VTEP's address.
    pub remote: Ipv4Addr,
    /// The hash that chose the next hop.
    pub hash: u64,
    /// The next hops there were to choose from.
    pub paths: &'a Paths,
    /// The one chosen.
    pub hop: &'a NextHop,
    /// Length of the outer IPv4 packet in bytes.
    pub l3_length: u16,
}

impl<'a> Path<'a> {
    /// Chooses the next hop: by a hash of the outer addresses and ports alone, so that a source
    /// port is a path.
    ///
    /// # Errors
    /// Why this copy goes no further.
    #[inline(always)]
    pub fn of(
        vni: &VniTable,
        remote: VtepIndex,
        source_port: u16,
        inner_length: usize,
        snapshot: &'a Snapshot,
    ) -> Result<Self, DropReason> {
        let vtep = snapshot.vtep(remote).ok_or(DropReason::NoRoute)?;
        let hash = entropy::path_hash(
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
