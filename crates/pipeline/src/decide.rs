//! Where a frame goes. Asked by [`crate::encapsulate`] to send it and by [`crate::explain`] to tell about it, so that both say
//! the same.

use core::ops::Range;
use std::net::{IpAddr, Ipv4Addr};

use entropy::Decision;
use tables::{NextHop, Snapshot, VniTable, VtepIndex};
use wire::Dissection;

use crate::drop_reason::DropReason;
use crate::frame::{Checksum, Frame};
use crate::outer::OVERHEAD;
use crate::partial::{Completed, InnerHead};
use crate::segment::Segmenter;

/// Outer headers that count against the underlay's MTU.
const L3_OVERHEAD: usize = OVERHEAD - 14;

/// What becomes of a frame from the bridge: to whom, and in how many pieces.
pub struct Plan<'a> {
    pub vni: &'a VniTable,
    pub dissection: Dissection,
    /// The VTEPs that get a copy each, at least one.
    pub remotes: &'a [VtepIndex],
    /// Whether that is the flood list.
    pub flooded: bool,
    frame: Frame<'a>,
    segmenter: Option<Segmenter<'a>>,
}

impl<'a> Plan<'a> {
    /// Looks the frame's destination up.
    ///
    /// # Errors
    /// Why the whole frame goes no further.
    pub fn of(frame: &Frame<'a>, vni: &'a VniTable) -> Result<Self, DropReason> {
        let dissection = wire::dissect(frame.data).ok_or(DropReason::Truncated)?;
        let known = vni.fdb.get(&dissection.destination);
        let remotes = known.map_or(vni.flood.as_slice(), core::slice::from_ref);
        if remotes.is_empty() {
            return Err(DropReason::NoRemote);
        }
        let segmenter = match frame.offload.gso {
            Some(gso) => Some(Segmenter::new(frame.data, &dissection, gso, frame.offload.checksum)?),
            None => None,
        };
        Ok(Self { vni, dissection, remotes, flooded: known.is_none(), frame: *frame, segmenter })
    }

    /// Number of frames that each remote VTEP gets, at least one.
    pub fn segments(&self) -> usize {
        self.segmenter.as_ref().map_or(1, Segmenter::count)
    }

    /// Prepares one of them: writes those headers to `inner` that differ from the frame's, returns which bytes of the frame
    /// follow them, and what the outer source port is.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`] if the sender's description does not fit the frame, [`DropReason::TooBig`] if the headers are
    /// too long to be rewritten.
    pub fn piece(&mut self, index: usize, inner: &mut InnerHead) -> Result<Range<usize>, DropReason> {
        inner.clear();
        let frame = self.frame.data;
        if let Some(segmenter) = &self.segmenter {
            let payload = segmenter.segment(index, inner)?;
            self.dissection.roce = segmenter.roce(&self.dissection, payload.clone());
            return Ok(payload);
        }
        let Checksum::Partial { start, offset } = self.frame.offload.checksum else {
            return Ok(0..frame.len());
        };
        let checksum = Completed::of(frame, &self.dissection, start, offset).ok_or(DropReason::BadOffload)?;
        let headers = frame.get(..checksum.end()).ok_or(DropReason::BadOffload)?;
        let headers = inner.start(headers).ok_or(DropReason::TooBig)?;
        checksum.write(headers).ok_or(DropReason::BadOffload)?;
        Ok(checksum.end()..frame.len())
    }

    /// The outer source port of the piece that was prepared last.
    pub fn entropy(&self) -> Decision {
        self.vni.entropy.decide(&self.dissection)
    }

    /// The same with its reasons.
    pub fn explain_entropy(&self) -> entropy::Explanation {
        self.vni.entropy.explain(&self.dissection)
    }
}

/// How one copy reaches its VTEP.
#[derive(Debug, Clone, Copy)]
pub struct Path<'a> {
    /// The VTEP's address.
    pub remote: Ipv4Addr,
    /// The hash that chose the next hop.
    pub hash: u64,
    /// Next hops there were to choose from.
    pub choices: usize,
    /// The one chosen.
    pub hop: &'a NextHop,
    /// Length of the outer IPv4 packet in bytes.
    pub l3_length: u16,
}

impl<'a> Path<'a> {
    /// Chooses the next hop: by a hash of the outer addresses and ports alone, so that a source port is a path.
    ///
    /// # Errors
    /// Why this copy goes no further.
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
        let l3_length = u16::try_from(inner_length + L3_OVERHEAD).map_err(|_| DropReason::TooBig)?;
        if u32::from(l3_length) > hop.mtu {
            return Err(DropReason::TooBig);
        }
        Ok(Self { remote: vtep.address, hash, choices: vtep.paths.next_hops().len(), hop, l3_length })
    }
}
