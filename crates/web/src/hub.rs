//! The state of the fabric, and what each page does not know of it yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};

use crate::history::History;
use crate::patch;

/// The parts of the state. A part that did not change is the same `Arc`, and is not compared.
pub(crate) type State = BTreeMap<&'static str, Arc<Value>>;

/// The parts that do not come from the fabric.
const KEPT: [&str; 4] = ["jobs", "fabric", "experiment", "progress"];

/// The latest state, for all pages.
#[derive(Debug)]
pub(crate) struct Hub {
    latest: watch::Sender<Latest>,
    opened: Notify,
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct Latest {
    state: State,
    /// The number of the state.
    number: u64,
    /// The change from the state with the number before, as a server-sent event.
    change: Option<Bytes>,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Self {
            latest: watch::Sender::new(Latest::default()),
            opened: Notify::new(),
            history: Mutex::default(),
        }
    }

    /// A page opens.
    pub(crate) fn subscribe(&self) -> Page {
        let receiver = self.latest.subscribe();
        self.opened.notify_one();
        Page { receiver, known: None }
    }

    pub(crate) fn pages(&self) -> usize {
        self.latest.receiver_count()
    }

    /// Waits until a page is open.
    pub(crate) async fn opened(&self) {
        while self.pages() == 0 {
            self.opened.notified().await;
        }
    }

    /// Waits until no page is open.
    pub(crate) async fn closed(&self) {
        self.latest.closed().await;
    }

    /// Another fabric is shown, if its number is another one.
    pub(crate) fn show(&self, fabric: u64) {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).show(fabric);
    }

    /// Keeps the present state for the last ten minutes, once a second. `now` is in ms since 1970.
    pub(crate) fn keep(&self, now: u64) {
        let state = self.latest.borrow().state.clone();
        self.history.lock().unwrap_or_else(PoisonError::into_inner).keep(&state, now);
    }

    /// The last ten minutes as JSON, like the changes of a file that a page saves.
    pub(crate) fn history(&self) -> String {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).json()
    }

    /// The present value of one part.
    pub(crate) fn part(&self, part: &str) -> Option<Arc<Value>> {
        self.latest.borrow().state.get(part).cloned()
    }

    /// Forgets what is only true while it is read.
    pub(crate) fn forget(&self) {
        self.latest.send_modify(|latest| {
            latest.state.retain(|part, _| KEPT.contains(part));
            latest.number += 1;
            latest.change = None;
        });
    }

    /// Replaces parts of the state. What changed is made text once, for all pages.
    pub(crate) fn publish(&self, parts: impl IntoIterator<Item = (&'static str, Value)>) {
        self.latest.send_if_modified(|latest| {
            let mut change = Map::new();
            for (part, value) in parts {
                let of = match latest.state.get(part) {
                    Some(before) => patch::between(before, &value),
                    None => Some(value.clone()),
                };
                let Some(of) = of else { continue };
                change.insert(part.to_owned(), of);
                latest.state.insert(part, Arc::new(value));
            }
            if change.is_empty() {
                return false;
            }
            latest.number += 1;
            latest.change = Some(text(change));
            true
        });
    }
}

/// A change as a server-sent event.
fn text(change: Map<String, Value>) -> Bytes {
    format!("data: {}\n\n", Value::Object(change)).into()
}

/// An open page.
#[derive(Debug)]
pub(crate) struct Page {
    receiver: watch::Receiver<Latest>,
    /// The state that it knows, and its number.
    known: Option<(State, u64)>,
}

impl Page {
    /// The whole state at first, then the next change, as events. `None` if the server ends.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.known.is_some() {
                self.receiver.changed().await.ok()?;
            }
            let (now, number, shared) = {
                let latest = self.receiver.borrow_and_update();
                (latest.state.clone(), latest.number, latest.change.clone())
            };
            let change = match (&self.known, shared) {
                (Some((_, known)), Some(shared)) if known + 1 == number => Some(shared),
                // It has missed some changes, and gets them as one.
                (Some((known, _)), _) => {
                    let change = changes(known, &now);
                    (!change.is_empty()).then(|| text(change))
                }
                (None, _) => Some(text(changes(&State::new(), &now))),
            };
            self.known = Some((now, number));
            if change.is_some() {
                return change;
            }
        }
    }
}

pub(crate) fn changes(before: &State, now: &State) -> Map<String, Value> {
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

    async fn next(page: &mut Page) -> Value {
        let event = page.next().await.unwrap();
        serde_json::from_slice(event.strip_prefix(b"data: ").unwrap()).unwrap()
    }

    fn links(rate: u32) -> [(&'static str, Value); 1] {
        [("links", json!({"a": rate, "b": 0}))]
    }

    #[tokio::test]
    async fn a_slow_page_gets_one_change_for_many() {
        let hub = Hub::new();
        let mut page = hub.subscribe();
        hub.publish(links(0));
        assert_eq!(next(&mut page).await, json!({"links": {"a": 0, "b": 0}}));
        for rate in 1..=1000 {
            hub.publish(links(rate));
        }
        assert_eq!(next(&mut page).await, json!({"links": {"a": 1000}}));
        drop(page);
        assert_eq!(hub.pages(), 0);
        hub.publish([("jobs", json!({"1": {}}))]);
        hub.forget();
        let later = next(&mut hub.subscribe()).await;
        assert_eq!(later, json!({"jobs": {"1": {}}}), "no old load is shown");
    }

    #[tokio::test]
    async fn pages_that_keep_up_share_one_text() {
        let hub = Hub::new();
        let mut pages = [hub.subscribe(), hub.subscribe()];
        hub.publish(links(0));
        for page in &mut pages {
            next(page).await;
        }
        hub.publish([("time", json!(1))].into_iter().chain(links(0)));
        let [first, second] = &mut pages;
        let (first, second) = (first.next().await.unwrap(), second.next().await.unwrap());
        assert_eq!(&first[..], b"data: {\"time\":1}\n\n", "what is as before is not sent");
        assert_eq!(first.as_ptr(), second.as_ptr());
    }

    /// The state is forgotten when the last page closes, and another may open at that moment.
    #[tokio::test]
    async fn a_page_that_opens_while_the_state_is_forgotten_gets_what_follows() {
        let hub = Hub::new();
        hub.publish(links(1));
        let mut page = hub.subscribe();
        next(&mut page).await;
        hub.forget();
        hub.publish(links(2));
        assert_eq!(next(&mut page).await, json!({"links": {"a": 2}}));
    }
}
