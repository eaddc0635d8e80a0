//! Both directions of a connection on the same links.
//!
//! One direction leads and the other follows: the one with much more load leads, and otherwise that
//! of the leaf with the lower VTEP address. So acknowledgements follow data, and a leaf moves only
//! the queue pairs that lead. Those that follow take the same links, and are as even as they are.

use std::time::Duration;

use path::{CounterId, PathId};

use super::rebalance::HOLD;
use super::{Flow, FlowId, Moves, Partner, Placer, Target};
use crate::cm::Event;
use crate::message::Report;
use crate::message::connection::Hosts;
use crate::pairing::{Channel, Told};
use crate::way::Common;

/// How many times the load of the other direction makes a direction lead. Less says nothing: both
/// leaves must come to the same result, although they measure at different times.
const DATA: u64 = 4;

/// What is decided about a queue pair.
struct Decision {
    partner: Option<Partner>,
    follows: bool,
    /// Where it is to be, if it is not to stay.
    goal: Option<PathId>,
}

impl Placer {
    /// Takes what the VTEP `from` reports.
    pub fn report(&mut self, from: Target, report: &Report, now: Duration) {
        self.peers.report(from.address, report, now);
        report.flows.iter().for_each(|flow| self.pairing.tell(from, flow, now));
        report.handshakes.iter().for_each(|handshake| self.pairing.handshake(from, handshake));
    }

    /// Takes a message of the communication manager that a host of this leaf sends in a VNI. A queue
    /// pair whose connection ends is forgotten.
    pub fn observe(
        &mut self,
        (target, vni): (Target, u32),
        hosts: Hosts,
        event: Event,
        now: Duration,
    ) {
        let (source, destination) = hosts;
        if !self.shares.take_message(vni, source, now) {
            self.counts.beyond_messages += 1;
            return;
        }
        let gone = self.pairing.observe(Channel { target, vni, hosts }, event);
        let Some(queue_pair) = gone else { return };
        let key = path::Key::QueuePair { source, destination, queue_pair };
        self.forget(&FlowId { vni, key, target }, now);
    }

    /// Notes the inner source port of a queue pair.
    pub(super) fn set_port(&mut self, id: &FlowId, port: u16) {
        let Some((channel, queue_pair)) = id.channel() else { return };
        let Some(flow) = self.flows.get_mut(id) else { return };
        let before = std::mem::replace(&mut flow.port, port);
        if before != port {
            self.pairing.remove(channel, queue_pair, before);
        }
        self.pairing.add(channel, queue_pair, port);
    }

    /// The path whose way is that of the other direction, reversed.
    pub(super) fn opposite_path(&self, id: &FlowId, port: u16) -> Option<PathId> {
        let (channel, queue_pair) = id.channel()?;
        let (_, told) = self.pairing.partner(channel, queue_pair, port)?;
        let way = told?.way.as_ref()?;
        self.targets.get(&id.target)?.opposite(way).map(|(_, path)| path)
    }

    /// Pairs the directions of the connections with these counters, and decides the moves of those that
    /// follow. Returns whether there is anything to pair with.
    pub(super) fn follow(
        &mut self,
        counters: impl Iterator<Item = CounterId>,
        now: Duration,
    ) -> bool {
        if self.pairing.is_empty() {
            return false;
        }
        let moves_at_all = self.options.moves == Moves::AfterPause;
        let mut moves = false;
        for counter in counters {
            let Some((id, flow)) = self.flows.at(counter) else { continue };
            let Decision { partner, follows, goal } = self.decide(id, flow);
            let is_free = flow.wanted.is_some() || flow.may_move(now, HOLD);
            let goal = goal.filter(|_| is_free && moves_at_all);
            moves |= goal.is_some();
            self.edit(&{ *id }, |flow| {
                (flow.partner, flow.follows) = (partner, follows);
                if let Some(goal) = goal {
                    flow.wanted = (goal != flow.path).then_some(goal);
                    flow.decided = Some(now);
                }
            });
        }
        if moves {
            self.renew_plans();
        }
        true
    }

    fn decide(&self, id: &FlowId, flow: &Flow) -> Decision {
        let unknown = Decision { partner: None, follows: false, goal: None };
        let Some((channel, of)) = id.channel() else { return unknown };
        let Some((queue_pair, told)) = self.pairing.partner(channel, of, flow.port) else {
            return unknown;
        };
        let leads = told.is_none_or(|told| leads(flow, told, id.target));
        let mut partner = Partner { queue_pair, same_links: None, leads };
        let paths = self.targets.get(&id.target);
        let (Some(way), Some(paths)) = (told.and_then(|told| told.way.as_ref()), paths) else {
            return Decision { partner: Some(partner), ..unknown };
        };
        let best = paths.opposite(way);
        let now = paths.common(flow.path, way);
        partner.same_links = match (now, best) {
            (Common::Links, _) => Some(true),
            _ if paths.way(flow.path).is_none() => None,
            (Common::None, _) if paths.knows_ends(way) => Some(false),
            (_, Some((Common::Links, _))) => Some(false),
            _ => None,
        };
        let better = |(common, _): &(Common, PathId)| *common > paths.common(flow.goal(), way);
        let goal = best.filter(|_| !leads).filter(better).map(|(_, path)| path);
        Decision { partner: Some(partner), follows: !leads && best.is_some(), goal }
    }
}

/// Whether the own direction leads.
fn leads(flow: &Flow, told: &Told, target: Target) -> bool {
    let (own, other) = (flow.rate, u64::from(told.kilobytes));
    let by_address = || target.local < target.address;
    match (own, other) {
        (0, _) | (_, 0) => by_address(),
        _ if own >= other.saturating_mul(DATA) => true,
        _ if other >= own.saturating_mul(DATA) => false,
        _ => by_address(),
    }
}
