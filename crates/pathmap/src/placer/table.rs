//! The table of queue pairs, by identity and by counters.

use std::collections::HashMap;
use std::ops::Range;

use path::CounterId;

use super::{Flow, FlowId};

/// Queue pairs and their counters. What grows does so without moving other queue pairs.
#[derive(Debug)]
pub(super) struct Table {
    counters: HashMap<FlowId, CounterId>,
    /// By counter; entry 0 is not used.
    flows: Vec<Option<Box<(FlowId, Flow)>>>,
    free: Vec<CounterId>,
    most: u32,
}

impl Table {
    /// A table for so many queue pairs. Memory is reserved now and used later.
    pub(super) fn new(most: u32) -> Self {
        let mut flows = Vec::with_capacity(most as usize + 1);
        flows.push(None);
        let free = Vec::with_capacity(most as usize);
        Self { counters: HashMap::with_capacity(most as usize), flows, free, most }
    }

    pub(super) fn len(&self) -> usize {
        self.counters.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.most as usize
    }

    /// The numbers of all counters that were used so far.
    pub(super) const fn numbers(&self) -> Range<u32> {
        1..self.flows.len() as u32
    }

    pub(super) fn get(&self, id: &FlowId) -> Option<&Flow> {
        self.at(*self.counters.get(id)?).map(|(_, flow)| flow)
    }

    pub(super) fn get_mut(&mut self, id: &FlowId) -> Option<&mut Flow> {
        self.at_mut(*self.counters.get(id)?).map(|(_, flow)| flow)
    }

    pub(super) fn at(&self, counter: CounterId) -> Option<(&FlowId, &Flow)> {
        let flow = self.flows.get(counter.index())?.as_deref()?;
        Some((&flow.0, &flow.1))
    }

    pub(super) fn at_mut(&mut self, counter: CounterId) -> Option<(FlowId, &mut Flow)> {
        let flow = self.flows.get_mut(counter.index())?.as_deref_mut()?;
        Some((flow.0, &mut flow.1))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&FlowId, &Flow)> {
        self.flows.iter().flatten().map(|flow| (&flow.0, &flow.1))
    }

    /// The counters of the next new queue pair. `None`: the table is full.
    pub(super) fn next_counter(&self) -> Option<CounterId> {
        let new = || CounterId::new(self.flows.len() as u32).filter(|new| new.get() <= self.most);
        self.free.last().copied().or_else(new)
    }

    /// Adds a queue pair with the counters of [`Self::next_counter`].
    pub(super) fn insert(&mut self, id: FlowId, flow: Flow) {
        let counter = flow.counter;
        self.counters.insert(id, counter);
        let flow = Some(Box::new((id, flow)));
        match self.flows.get_mut(counter.index()) {
            Some(free) => {
                *free = flow;
                self.free.pop();
            }
            None => self.flows.push(flow),
        }
    }

    pub(super) fn remove(&mut self, id: &FlowId) -> Option<Flow> {
        let counter = self.counters.remove(id)?;
        self.free.push(counter);
        self.flows.get_mut(counter.index())?.take().map(|flow| flow.1)
    }
}
