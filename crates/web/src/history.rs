//! The last ten minutes of the state, one sample a second, for pages that open or load again.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use crate::hub::{State, changes};
use crate::patch;

/// How long samples are kept, and the time between two of them, in ms.
const KEPT: u64 = 600_000;
const INTERVAL: u64 = 1000;
/// The most bytes of all changes. Older samples are forgotten.
const BYTES: usize = 32 << 20;

/// Samples as changes: each is JSON text.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The number of the fabric that is shown.
    fabric: u64,
    first: Option<(u64, Value)>,
    changes: VecDeque<(u64, String)>,
    bytes: usize,
    last: State,
}

impl History {
    /// Another fabric has a history of its own.
    pub(crate) fn show(&mut self, fabric: u64) {
        if self.fabric != fabric {
            *self = Self { fabric, ..Self::default() };
        }
    }

    pub(crate) fn keep(&mut self, state: &State, now: u64) {
        // At first, not all parts are known.
        if !["time", "links", "leaves"].iter().all(|part| state.contains_key(part)) {
            return;
        }
        let last = self.changes.back().map(|(time, _)| *time);
        let last = last.or(self.first.as_ref().map(|(time, _)| *time));
        if last.is_some_and(|last| now < last + INTERVAL) {
            return;
        }
        let change = Value::Object(changes(&self.last, state));
        if self.first.is_none() {
            self.first = Some((now, change));
        } else {
            let change = change.to_string();
            self.bytes += change.len();
            self.changes.push_back((now, change));
        }
        self.last.clone_from(state);
        while self.is_long(now) && self.forget().is_some() {}
    }

    fn is_long(&self, now: u64) -> bool {
        self.bytes > BYTES || self.first.as_ref().is_some_and(|(time, _)| time + KEPT < now)
    }

    /// Forgets the first sample.
    fn forget(&mut self) -> Option<()> {
        let (time, change) = self.changes.pop_front()?;
        self.bytes -= change.len();
        let first = self.first.as_mut()?;
        first.0 = time;
        patch::apply(
            &mut first.1,
            serde_json::from_str(&change).unwrap_or(Value::Object(Map::new())),
        );
        Some(())
    }

    /// A list: the first sample, and the changes to the next ones.
    pub(crate) fn json(&self) -> String {
        let first = self.first.iter().map(|(_, first)| first.to_string());
        let rest = self.changes.iter().map(|(_, change)| change.clone());
        format!("[{}]", first.chain(rest).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn sample(time: u64) -> State {
        let parts =
            [("time", json!(time)), ("links", json!({"a": time, "b": 0})), ("leaves", json!({}))];
        parts.map(|(part, value)| (part, Arc::new(value))).into()
    }

    /// What a page makes of it.
    fn samples(history: &History) -> Vec<Value> {
        let mut state = json!({});
        let changes: Vec<Value> = serde_json::from_str(&history.json()).unwrap();
        let next = |change| {
            patch::apply(&mut state, change);
            state.clone()
        };
        changes.into_iter().map(next).collect()
    }

    #[test]
    fn ten_minutes_are_kept_one_sample_a_second() {
        let mut history = History::default();
        history.keep(&State::new(), 1);
        assert_eq!(history.json(), "[]");
        for tenth in 0..=9000 {
            history.keep(&sample(tenth * 100), tenth * 100);
        }
        let kept = samples(&history);
        assert_eq!(kept.len(), 601);
        assert_eq!(
            kept[0],
            json!({"time": 300_000, "links": {"a": 300_000, "b": 0}, "leaves": {}})
        );
        assert_eq!(kept[600]["links"], json!({"a": 900_000, "b": 0}));
        history.show(0);
        assert_eq!(samples(&history).len(), 601);
        history.show(1);
        assert_eq!(history.json(), "[]", "another fabric");
    }
}
