//! Where a frame from the bridge goes: its VTEPs, its pieces, and the path of each copy.

use core::ops::Range;

use frame::{Checksum, Destination, DropReason, Frame, VtepId};
use path::record::Packet;
use path::{Choice, Flow, PathPolicy, Remote};
use tables::{NextHop, Snapshot, VniTable, Vtep, VtepIndex};
use wire::outer::Address;
use wire::{Dissection, Ethernet, Network, Roce, Udp};

use crate::counters::vtep_id;
use crate::csum_offload::{Completed, InnerHead};
use crate::gso::Segmenter;
use crate::outer::Inner;
use crate::policies::Policies;

/// The decision about a frame from the bridge: its destinations and its pieces. It only borrows,
/// because one is made for every frame.
#[derive(Clone, Copy)]
pub(crate) struct Decision<'a> {
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
pub(crate) struct Piece {
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
    pub(crate) fn of(
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
    pub(crate) fn to(
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
    pub(crate) const fn is_finished(&self) -> bool {
        self.frame.offload.gso.is_none()
            && !matches!(self.frame.offload.checksum, Checksum::Partial { .. })
    }

    /// The range of all bytes of the frame.
    #[inline]
    pub(crate) const fn whole(&self) -> Range<usize> {
        0..self.frame.data.len()
    }

    /// The segmenter of the frame, if it is a super-frame.
    ///
    /// # Errors
    /// As [`Segmenter::new`].
    #[inline]
    pub(crate) fn segmenter(&self) -> Result<Option<Segmenter<'a>>, DropReason> {
        let Some(gso) = self.frame.offload.gso else { return Ok(None) };
        Segmenter::new(self.frame.data, self.dissection, gso, self.frame.offload.checksum).map(Some)
    }

    /// Prepares one piece. Headers that differ from the frame's are written to `inner`.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`] if the offloads do not fit the frame, [`DropReason::TooBig`] if
    /// the headers are too long for `inner`.
    #[inline]
    pub(crate) fn piece(
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

    /// The flow of a piece; `None` is the whole frame.
    #[inline(always)]
    pub(crate) fn flow<P: PathPolicy>(&self, policy: &P, piece: Option<&Piece>) -> Flow {
        match piece.and_then(|piece| piece.roce) {
            None => policy.flow(self.dissection),
            Some(roce) => policy.flow(&Dissection { roce, ..*self.dissection }),
        }
    }

    /// What is recorded of a piece of a RoCE frame: of its rewritten headers, and of the `range` of
    /// the received frame that follows them.
    pub(crate) fn packet(&self, headers: &[u8], range: &Range<u32>) -> Option<Packet> {
        let tos = match self.dissection.network {
            Network::Ipv4(ip) => ip.tos,
            Network::Ipv6(ip) => ip.traffic_class,
            Network::Other => return None,
        };
        let at = usize::from(self.dissection.transport?.offset) + Udp::LENGTH;
        let body = self.frame.data.get(range.start as usize..range.end as usize)?;
        // Base transport header and syndrome.
        let mut transport = [0; 13];
        let bytes = headers.iter().chain(body).skip(at);
        transport.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Packet::of(tos, &transport)
    }
}

/// The path of one copy to its VTEP.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path<'a> {
    /// The VTEP.
    pub vtep: &'a Vtep,
    /// The VTEP, for its counters.
    pub id: VtepId,
    /// The source port and the next hop.
    pub choice: Choice<'a>,
    /// Length of the outer IP packet in bytes.
    pub l3_length: u16,
}

impl<'a> Path<'a> {
    /// Asks the policy for the path of a flow over one address family. Returns it with the outer
    /// source and destination address.
    ///
    /// # Errors
    /// The reason why this copy is dropped: [`DropReason::NoRoute`], also for addresses of another
    /// family, or [`DropReason::TooBig`].
    #[inline(always)]
    pub(crate) fn over<A: Address, P: Policies>(
        (vni, index): (&VniTable, VtepIndex),
        flow: &Flow,
        inner_length: usize,
        snapshot: &'a Snapshot,
        policies: &mut P,
    ) -> Result<(Self, (A, A)), DropReason> {
        let vtep = snapshot.vtep(index).ok_or(DropReason::NoRoute)?;
        let ends = A::of(vni.tunnel.local).zip(A::of(vtep.address)).ok_or(DropReason::NoRoute)?;
        let to = Remote {
            vni: vni.tunnel.vni,
            local: ends.0.into(),
            address: ends.1.into(),
            destination_port: vni.tunnel.destination_port,
            group: &vtep.paths,
        };
        let (policy, state) = policies.of(vni);
        let choice = policy.choose(flow, &to, state).ok_or(DropReason::NoRoute)?;
        let l3_length = inner_length + A::OUTER - Ethernet::LENGTH;
        let l3_length = u16::try_from(l3_length).map_err(|_| DropReason::TooBig)?;
        if u32::from(l3_length) > choice.hop.mtu {
            return Err(DropReason::TooBig);
        }
        let path = Self { vtep, id: vtep_id(index, snapshot), choice, l3_length };
        Ok((path, ends))
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
