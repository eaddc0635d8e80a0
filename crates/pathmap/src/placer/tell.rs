//! What is reported to other VTEPs: loads, and queue pairs with their paths.
//!
//! A queue pair is reported when its path changes, and all are reported again from time to time,
//! because answers may be lost.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Flow, FlowId, Placer, Target};
use crate::message::Report;
use crate::message::connection::{FlowReport, MOST_FLOWS};

/// How often all queue pairs are reported, if they are few.
const AGAIN: Duration = Duration::from_secs(2);
/// How often all are reported at least.
const AGAIN_MOST: Duration = Duration::from_secs(30);
/// With more queue pairs than this in [`AGAIN`], they are reported less often.
const FEW: u32 = 64;
/// The most queue pairs that wait to be reported to a VTEP. It may never ask.
const MOST_WAITING: usize = 131_072;

/// What is to be reported to a VTEP.
#[derive(Debug, Default)]
pub(super) struct Telling {
    queue: VecDeque<FlowId>,
    /// When all are reported again.
    again: Duration,
}

impl Placer {
    /// A queue pair is to be reported soon.
    pub(super) fn tell(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(&id).filter(|flow| !flow.queued) else { return };
        let queue = &mut self.telling.entry(id.target.vtep()).or_default().queue;
        if queue.len() < MOST_WAITING {
            flow.queued = true;
            queue.push_back(id);
        }
    }

    /// All queue pairs to a VTEP are to be reported soon.
    pub(super) fn tell_all(&mut self, target: Target) {
        self.telling.entry(target.vtep()).or_default().again = Duration::ZERO;
    }

    /// What to report to the VTEP `to`. Answers take the parts of the loads in turns.
    pub fn to_report(&mut self, to: Target, part: usize, now: Duration) -> Report {
        let loads = crate::load::report(&self.own, &self.emptied, part);
        let (flows, handshakes) = (self.flows_to_tell(to, now), self.pairing.to_tell(to));
        Report { wish: self.turn.wish, loads, flows, handshakes }
    }

    fn flows_to_tell(&mut self, to: Target, now: Duration) -> Vec<FlowReport> {
        let Some(telling) = self.telling.get(&to) else { return Vec::new() };
        if telling.again <= now {
            let of_target = |id: &&FlowId| id.target.vtep() == to;
            let all: Vec<FlowId> = self.flows.keys().filter(of_target).copied().collect();
            let number = u32::try_from(all.len()).unwrap_or(u32::MAX);
            let again = (AGAIN * number / FEW).clamp(AGAIN, AGAIN_MOST);
            all.into_iter().for_each(|id| self.tell(id));
            if let Some(telling) = self.telling.get_mut(&to) {
                telling.again = now + again;
            }
        }
        let mut told = Vec::new();
        while told.len() < MOST_FLOWS
            && let Some(id) =
                self.telling.get_mut(&to).and_then(|telling| telling.queue.pop_front())
        {
            // It may have been forgotten.
            let Some(flow) = self.flows.get_mut(&id) else { continue };
            flow.queued = false;
            told.extend(self.flows.get(&id).and_then(|flow| self.flow_report(&id, flow)));
        }
        told
    }

    fn flow_report(&self, id: &FlowId, flow: &Flow) -> Option<FlowReport> {
        let (channel, queue_pair) = id.channel()?;
        Some(FlowReport {
            vni: id.vni,
            hosts: channel.hosts,
            queue_pair,
            port: flow.port,
            kilobytes: u32::try_from(flow.rate).unwrap_or(u32::MAX),
            way: self.targets.get(&id.target).and_then(|paths| paths.way(flow.pair)).cloned(),
        })
    }
}
