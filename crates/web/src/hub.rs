//! The state of the fabric, and what each page does not know of it yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};

use crate::patch;

/// The parts of the state. A part that did not change is the same `Arc`, and is not compared.
pub(crate) type State = BTreeMap<&'static str, Arc<Value>>;

/// The latest state, for all pages.
#[derive(Debug)]
pub(crate) struct Hub {
    state: watch::Sender<State>,
    opened: Notify,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Self { state: watch::Sender::new(State::new()), opened: Notify::new() }
    }

    /// A page opens.
    pub(crate) fn subscribe(&self) -> Page {
        let receiver = self.state.subscribe();
        self.opened.notify_one();
        Page { receiver, sent: None }
    }

    pub(crate) fn pages(&self) -> usize {
        self.state.receiver_count()
    }

    /// Waits until a page is open.
    pub(crate) async fn opened(&self) {
        while self.pages() == 0 {
            self.opened.notified().await;
        }
    }

    /// Waits until no page is open.
    pub(crate) async fn closed(&self) {
        self.state.closed().await;
    }

    /// The present value of one part.
    pub(crate) fn part(&self, part: &str) -> Option<Arc<Value>> {
        self.state.borrow().get(part).cloned()
    }

    /// Forgets what is only true while it is read. The commands of pages stay.
    pub(crate) fn forget(&self) {
        self.state.send_modify(|state| state.retain(|part, _| *part == "jobs"));
    }

    /// Replaces one part of the state.
    pub(crate) fn publish(&self, part: &'static str, value: Value) {
        self.state.send_if_modified(|state| {
            if state.get(part).is_some_and(|before| **before == value) {
                return false;
            }
            state.insert(part, Arc::new(value));
            true
        });
    }
}

/// An open page.
#[derive(Debug)]
pub(crate) struct Page {
    receiver: watch::Receiver<State>,
    /// The state that it knows.
    sent: Option<State>,
}

impl Page {
    /// The whole state at first, then the next change. `None` if the server ends.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if self.sent.is_some() {
                self.receiver.changed().await.ok()?;
            }
            let now = self.receiver.borrow_and_update().clone();
            let change = changes(self.sent.as_ref().unwrap_or(&State::new()), &now);
            let first = self.sent.replace(now).is_none();
            if first || !change.is_empty() {
                return Some(Value::Object(change));
            }
        }
    }
}

fn changes(before: &State, now: &State) -> Map<String, Value> {
    let mut all = Map::new();
    for (part, value) in now {
        let change = match before.get(part) {
            Some(old) if Arc::ptr_eq(old, value) => None,
            Some(old) => patch::between(old, value),
            None => Some(Value::clone(value)),
        };
        all.extend(change.map(|change| ((*part).to_owned(), change)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn a_slow_page_gets_one_change_for_many() {
        let hub = Hub::new();
        let mut page = hub.subscribe();
        hub.publish("links", json!({"a": 0, "b": 0}));
        assert_eq!(page.next().await, Some(json!({"links": {"a": 0, "b": 0}})));
        for rate in 1..=1000 {
            hub.publish("links", json!({"a": rate, "b": 0}));
        }
        assert_eq!(page.next().await, Some(json!({"links": {"a": 1000}})));
        drop(page);
        assert_eq!(hub.pages(), 0);
        hub.publish("jobs", json!({"1": {}}));
        hub.forget();
        let later = hub.subscribe().next().await;
        assert_eq!(later, Some(json!({"jobs": {"1": {}}})), "no old load is shown");
    }
}
