//! Encapsulation for an IPv6 underlay. It is apart from that for IPv4, whose code stays short.

use core::ops::Range;

use frame::{Checksum, DropReason, Offload, Payload};
use path::Flow;
use tables::VtepIndex;

use crate::Pipeline;
use crate::dropped::Origin;
use crate::lookup::{Decision, Path, uplink};
use crate::outer::{Inherited, OVERHEAD_IPV6, OuterIpv6, UDP_AT_IPV6, UDP_CHECKSUM};
use crate::policies::Policies;
use crate::run::{Output, Run};
use crate::steps::Step;

impl Pipeline {
    /// Sends one piece that could not be sent over IPv4 for this reason: over IPv6 if that is the
    /// underlay of the VNI, or counts it as dropped.
    #[inline(never)]
    pub(crate) fn send_otherwise<P: Policies, O: Output>(
        &mut self,
        decision: &Decision<'_>,
        flow: &Flow,
        (to, body): ((usize, VtepIndex), &(u32, Range<u32>)),
        reason: DropReason,
        run: &mut Run<'_, '_, P, O>,
    ) {
        let sent = if decision.vni.tunnel.local.is_ipv6() {
            self.send_copy_over_ipv6(decision, flow, (to, body), run)
        } else {
            Err(reason)
        };
        if let Err(reason) = sent {
            let snapshot = run.snapshot;
            run.out.record(|| Step::copy(decision, to, flow, Err(reason), snapshot));
            let frame = run.batch.frame(body.0 as usize).map_or(&[][..], |frame| frame.data);
            let dropped = (frame, Origin::Hosts, run.now);
            self.counters.drop_frame(reason, decision.vni.index.get(), dropped);
        }
    }

    /// Sends one piece to a VTEP over IPv6. Its rewritten headers are in `self.inner`.
    fn send_copy_over_ipv6<P: Policies, O: Output>(
        &mut self,
        decision: &Decision<'_>,
        flow: &Flow,
        (to, (index, range)): ((usize, VtepIndex), &(u32, Range<u32>)),
        run: &mut Run<'_, '_, P, O>,
    ) -> Result<(), DropReason> {
        let (_, remote) = to;
        let (vni, inner) = (decision.vni, self.inner.as_slice());
        let length = inner.len() + range.len();
        let (path, ends) =
            Path::over_ipv6((vni, remote), flow, length, run.snapshot, run.policies)?;
        let Path { choice, l3_length, .. } = path;
        if let Some(counter) = choice.counter {
            let packet = decision.packet(inner, range);
            run.policies.counting(run.now).count(counter, length, packet);
        }
        let inherited = Inherited::of(&vni.tunnel, &decision.inner);
        let (tunnel, hop, source_port) = (&vni.tunnel, choice.hop, choice.source_port);
        let outer = OuterIpv6 { tunnel, hop, ends, source_port, l3_length, inherited };
        let mut offload = Offload::default();
        if tunnel.udp_checksum {
            let start = UDP_AT_IPV6 as u16;
            offload.checksum = Checksum::Partial { start, offset: UDP_CHECKSUM };
        }
        let body = Payload::Received { frame: *index, range: range.clone() };
        let (out, egress) = (run.out.frames(), uplink(hop));
        let Some(transmit) = out.append(egress, vni.index.get(), body, offload) else {
            return Err(DropReason::TooBig);
        };
        transmit.vtep = Some(path.id);
        transmit.outer_length = OVERHEAD_IPV6 as u16;
        let mut fits = false;
        if let Some(headers) = transmit.append_head() {
            outer.write(headers);
            fits = inner.is_empty() || transmit.extend_head(inner);
        }
        if !fits || hop.destination_mac.is_none() {
            self.hold_last(fits, (path, remote), run)?;
        }
        let snapshot = run.snapshot;
        run.out.record(|| Step::copy(decision, to, flow, Ok((path, inherited)), snapshot));
        Ok(())
    }
}
