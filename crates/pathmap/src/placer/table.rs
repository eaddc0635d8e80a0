//! The table of queue pairs, by identity and by slot.

use std::collections::HashMap;
use std::ops::Range;

use super::{Flow, FlowId};

/// Queue pairs with slots from 1 on. What grows does so without moving other queue pairs.
#[derive(Debug)]
pub(super) struct Table {
    slots: HashMap<FlowId, u32>,
    /// By slot. Slot 0 is not used.
    flows: Vec<Option<Box<(FlowId, Flow)>>>,
    free: Vec<u32>,
    most: u32,
}

impl Table {
    /// A table for so many queue pairs. Memory is reserved now and used later.
    pub(super) fn new(most: u32) -> Self {
        let mut flows = Vec::with_capacity(most as usize + 1);
        flows.push(None);
        let free = Vec::with_capacity(most as usize);
        Self { slots: HashMap::with_capacity(most as usize), flows, free, most }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.most as usize
    }

    /// All slots that were used so far.
    pub(super) const fn all(&self) -> Range<u32> {
        1..self.flows.len() as u32
    }

    pub(super) fn get(&self, id: &FlowId) -> Option<&Flow> {
        self.at(*self.slots.get(id)?).map(|(_, flow)| flow)
    }

    pub(super) fn get_mut(&mut self, id: &FlowId) -> Option<&mut Flow> {
        self.at_mut(*self.slots.get(id)?).map(|(_, flow)| flow)
    }

    pub(super) fn at(&self, slot: u32) -> Option<(&FlowId, &Flow)> {
        let flow = self.flows.get(slot as usize)?.as_deref()?;
        Some((&flow.0, &flow.1))
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> Option<(FlowId, &mut Flow)> {
        let flow = self.flows.get_mut(slot as usize)?.as_deref_mut()?;
        Some((flow.0, &mut flow.1))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&FlowId, &Flow)> {
        self.flows.iter().flatten().map(|flow| (&flow.0, &flow.1))
    }

    /// The slot of the next new queue pair. `None`: the table is full.
    pub(super) fn next_slot(&self) -> Option<u32> {
        let next = self.free.last().copied().unwrap_or(self.flows.len() as u32);
        (next <= self.most).then_some(next)
    }

    /// Adds a queue pair in the slot that [`Self::next_slot`] has told.
    pub(super) fn insert(&mut self, id: FlowId, flow: Flow) {
        let slot = flow.slot;
        self.slots.insert(id, slot);
        let flow = Some(Box::new((id, flow)));
        match self.flows.get_mut(slot as usize) {
            Some(place) => {
                *place = flow;
                self.free.pop();
            }
            None => self.flows.push(flow),
        }
    }

    pub(super) fn remove(&mut self, id: &FlowId) -> Option<Flow> {
        let slot = self.slots.remove(id)?;
        self.free.push(slot);
        self.flows.get_mut(slot as usize)?.take().map(|flow| flow.1)
    }
}
