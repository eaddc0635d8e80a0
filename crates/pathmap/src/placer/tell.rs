//! What is reported to other VTEPs: loads, and queue pairs with their paths.
//!
//! A queue pair is reported when its path changes, and all are reported again from time to time,
//! because answers may be lost.

use std::time::Duration;

use path::CounterId;

use super::{Flow, FlowId, Placer, Target};
use crate::message::Report;
use crate::message::connection::{FlowReport, MOST_FLOWS};

/// How often all queue pairs are reported, if they are few.
const AGAIN: Duration = Duration::from_secs(2);
/// How often all are reported at least.
const AGAIN_MOST: Duration = Duration::from_secs(30);
/// With more queue pairs than this in [`AGAIN`], they are reported less often.
const FEW: u32 = 64;
/// Queue pairs that are told again at once.
const AT_ONCE: usize = 16;

impl Placer {
    /// A queue pair is to be reported soon.
    pub(super) fn tell(&mut self, id: &FlowId) {
        if let Some(flow) = self.flows.get(id) {
            self.telling.entry(id.target.vtep()).or_default().waiting.insert(flow.counter);
        }
    }

    /// A queue pair is gone.
    pub(super) fn untell(&mut self, id: &FlowId, counter: CounterId) {
        if let Some(telling) = self.telling.get_mut(&id.target.vtep()) {
            telling.waiting.remove(&counter);
        }
    }

    /// All queue pairs to a VTEP are to be reported soon.
    pub(super) fn tell_all(&mut self, target: Target) {
        self.telling.entry(target.vtep()).or_default().again = Duration::ZERO;
    }

    /// What to report to the VTEP `to`. Answers take the parts of the loads in turns.
    pub fn to_report(&mut self, to: Target, part: usize, now: Duration) -> Report {
        let loads = crate::load::report(&self.sums.own, &self.sums.emptied, part);
        let (flows, handshakes) = (self.flows_to_tell(to, now), self.pairing.to_tell(to));
        Report { gain: self.turn.gain, loads, flows, handshakes }
    }

    fn flows_to_tell(&mut self, to: Target, now: Duration) -> Vec<FlowReport> {
        self.tell_again(to, now);
        let Some(telling) = self.telling.get_mut(&to) else { return Vec::new() };
        let next = std::iter::from_fn(|| telling.next()).take(MOST_FLOWS);
        let counters: Vec<CounterId> = next.collect();
        let flows = counters.into_iter().filter_map(|counter| self.flows.at(counter));
        flows.filter_map(|(id, flow)| self.flow_report(id, flow)).collect()
    }

    /// If it is time, has some queue pairs reported again, and others with the next calls.
    fn tell_again(&mut self, to: Target, now: Duration) {
        let Some(telling) = self.telling.get_mut(&to) else { return };
        if telling.round.is_none() && telling.again <= now {
            let both = [false, true].map(|by_kernel| Target { by_kernel, ..to });
            let number: usize = both.iter().map(|target| self.sums.number(*target)).sum();
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            telling.again = now + AGAIN.saturating_mul(number / FEW).clamp(AGAIN, AGAIN_MOST);
            telling.round = Some((false, None));
        }
        let Some((by_kernel, after)) = telling.round else { return };
        let counters = self.sums.of_target(Target { by_kernel, ..to }, after, AT_ONCE);
        telling.round = match counters.last() {
            Some(last) => Some((by_kernel, Some(*last))),
            None => (!by_kernel).then_some((true, None)),
        };
        telling.waiting.extend(counters);
    }

    fn flow_report(&self, id: &FlowId, flow: &Flow) -> Option<FlowReport> {
        let (channel, queue_pair) = id.channel()?;
        Some(FlowReport {
            vni: id.vni,
            hosts: channel.hosts,
            queue_pair,
            port: flow.port,
            kilobytes: u32::try_from(flow.rate).unwrap_or(u32::MAX),
            way: self.targets.get(&id.target).and_then(|paths| paths.way(flow.path)).cloned(),
        })
    }
}
