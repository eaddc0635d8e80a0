//! The traffic control filters of a clsact qdisc (`include/uapi/linux/rtnetlink.h`, `struct tcmsg`;
//! `pkt_sched.h`, `pkt_cls.h`).

use std::collections::BTreeSet;

use crate::attribute::Attributes;
use crate::encode::{DUMP, REQUEST, Request};
use crate::error::Error;
use crate::request::Requests;

const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;
/// `TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)` and `…_EGRESS`.
const INGRESS: u32 = 0xffff_fff2;
const EGRESS: u32 = 0xffff_fff3;

/// The direction of frames at a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Received frames.
    Ingress,
    /// Sent frames.
    Egress,
}

/// A filter of a clsact qdisc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Its priority, 1 to 65535. Lower priorities come first.
    pub priority: u16,
    /// `TCA_KIND`: `bpf`, `u32`, `matchall`, ….
    pub kind: String,
    /// `TCA_BPF_NAME`, for kind `bpf`.
    pub name: Option<String>,
}

impl Requests {
    /// The interfaces with a clsact qdisc. A qdisc `ingress` is in the same place, and has no egress.
    ///
    /// All qdiscs are dumped: the kernel would tell everybody about a single one that is asked for
    /// (`qdisc_notify()` in net/sched/sch_api.c).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn with_clsact(&mut self) -> Result<BTreeSet<u32>, Error> {
        let request = Request::new(RTM_GETQDISC, REQUEST | DUMP, &tcmsg(0, 0));
        let mut found = BTreeSet::new();
        self.collect("read qdiscs", &request, |envelope| {
            let parts = envelope.payload.split_first_chunk::<20>();
            let Some(([_, _, _, _, i0, i1, i2, i3, ..], attributes)) = parts else { return };
            let mut attributes = Attributes::new(attributes, 0).map_while(Result::ok);
            if envelope.kind == RTM_NEWQDISC
                && attributes.any(|of| of.kind == 1 && of.string() == "clsact")
            {
                found.insert(u32::from_ne_bytes([*i0, *i1, *i2, *i3]));
            }
        })?;
        Ok(found)
    }

    /// The filters on an interface's clsact qdisc; empty if there is no such qdisc.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn filters(&mut self, ifindex: u32, direction: Direction) -> Result<Vec<Filter>, Error> {
        let filters = self.filters_at(ifindex, direction)?;
        let is_certain = direction == Direction::Ingress || filters.is_empty();
        Ok(if is_certain || self.with_clsact()?.contains(&ifindex) { filters } else { Vec::new() })
    }

    /// The same, but those of a qdisc `ingress` for both directions: it takes the parent of sent frames for
    /// its own (`ingress_tcf_block()` in net/sched/sch_ingress.c).
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn filters_at(&mut self, ifindex: u32, direction: Direction) -> Result<Vec<Filter>, Error> {
        let parent = match direction {
            Direction::Ingress => INGRESS,
            Direction::Egress => EGRESS,
        };
        let request = Request::new(RTM_GETTFILTER, REQUEST | DUMP, &tcmsg(ifindex, parent));
        let mut filters = Vec::new();
        self.collect("read filters", &request, |envelope| {
            if envelope.kind == RTM_NEWTFILTER {
                filters.extend(filter(envelope.payload));
            }
        })?;
        Ok(filters)
    }
}

/// `struct tcmsg`: family, padding, ifindex, handle, parent, info.
fn tcmsg(ifindex: u32, parent: u32) -> Vec<u8> {
    [0, ifindex, 0, parent, 0].iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Decodes a filter. The kernel also sends an entry without options for each priority, which is not
/// a filter.
fn filter(payload: &[u8]) -> Option<Filter> {
    let (body, attributes) = payload.split_first_chunk::<20>()?;
    let (_, info) = body.split_last_chunk::<4>()?;
    let priority = (u32::from_ne_bytes(*info) >> 16) as u16;
    let (mut kind, mut name, mut options) = (None, None, false);
    for attribute in Attributes::new(attributes, 0).map_while(Result::ok) {
        match attribute.kind {
            1 => kind = Some(attribute.string()),
            2 => {
                options = true;
                let mut inner = Attributes::new(attribute.payload, 0).map_while(Result::ok);
                name = inner.find(|inner| inner.kind == 7).map(|inner| inner.string());
            }
            _ => {}
        }
    }
    // The number means something else for other kinds.
    let name = name.filter(|_| kind.as_deref() == Some("bpf"));
    if options { kind.map(|kind| Filter { priority, kind, name }) } else { None }
}
