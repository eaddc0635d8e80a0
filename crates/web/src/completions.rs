//! How long operations of traffic took that have ended in the last seconds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value, json};
use traffic::completions::{Completion, Kind};

use crate::listener::Listener;

/// The steps for which an operation is shown: longer than a busy browser stands still.
const STEPS: usize = 30;
/// The most series. Further ones are not shown until others have ended.
const SERIES: usize = 16;
/// The most characters of a series' name that are shown.
const NAME: usize = 80;

/// What programs of the lab have told.
#[derive(Debug, Default)]
pub(crate) struct Completions(Mutex<BTreeMap<String, Series>>);

/// When an operation ended, in ms since 1970, and how long it took, in µs.
type Point = [u64; 2];

/// Operations of one kind.
#[derive(Debug)]
struct Series {
    kind: Kind,
    /// The shortest and the longest one since the last step.
    fresh: Option<[Point; 2]>,
    /// At most two for each step.
    shown: VecDeque<(usize, Point)>,
    /// When the last one that is shown ended.
    last: u64,
}

impl Completions {
    /// Hears what is told in a fabric, until it is dropped.
    pub(crate) async fn listen(self: Arc<Self>, fabric: String) {
        // Without a socket, a page has no such charts.
        let Ok(listener) = Listener::of(&fabric) else { return };
        while let Ok(completion) = listener.next().await {
            self.take(completion);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Series>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, completion: Completion) {
        let Completion { kind, series, ended, nanoseconds } = completion;
        let name: String = series.chars().take(NAME).collect();
        let mut all = self.lock();
        if !all.contains_key(&name) && all.len() >= SERIES {
            return;
        }
        let new = || Series { kind, fresh: None, shown: VecDeque::new(), last: 0 };
        let of = all.entry(name).or_insert_with(new);
        let point = [ended, nanoseconds / 1000];
        of.fresh = Some(match of.fresh {
            None => [point; 2],
            Some([short, long]) => [
                if point[1] < short[1] { point } else { short },
                if point[1] > long[1] { point } else { long },
            ],
        });
    }

    /// What has ended in the last steps.
    pub(crate) fn step(&self) -> Value {
        let mut all = self.lock();
        for of in all.values_mut() {
            of.step();
        }
        all.retain(|_, of| !of.shown.is_empty());
        let shown = all.iter().map(|(name, of)| {
            let points: Vec<Point> = of.shown.iter().map(|(_, point)| *point).collect();
            (name.clone(), json!({"kind": of.kind, "points": points}))
        });
        Value::Object(shown.collect::<Map<_, _>>())
    }
}

impl Series {
    fn step(&mut self) {
        self.shown.iter_mut().for_each(|(age, _)| *age += 1);
        while self.shown.front().is_some_and(|(age, _)| *age >= STEPS) {
            self.shown.pop_front();
        }
        let Some([mut first, mut second]) = self.fresh.take() else { return };
        if first == second {
            self.push(first);
            return;
        }
        if second[0] < first[0] {
            std::mem::swap(&mut first, &mut second);
        }
        self.push(first);
        self.push(second);
    }

    /// A page knows the points of a series by their times.
    fn push(&mut self, [ended, took]: Point) {
        self.last = ended.max(self.last + 1);
        self.shown.push_back((0, [self.last, took]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tell(completions: &Completions, series: &str, ended: u64, microseconds: u64) {
        let series = series.to_owned();
        let nanoseconds = microseconds * 1000;
        completions.take(Completion { kind: Kind::Iteration, series, ended, nanoseconds });
    }

    #[test]
    fn the_shortest_and_the_longest_of_a_step_are_shown_for_seconds() {
        let completions = Completions::default();
        assert_eq!(completions.step(), json!({}));
        for (ended, took) in [(1000, 30), (1001, 90), (1001, 10), (1001, 20)] {
            tell(&completions, "ring", ended, took);
        }
        let points = |value: &Value| value["ring"]["points"].clone();
        let first = completions.step();
        assert_eq!(first["ring"]["kind"], "iteration");
        assert_eq!(points(&first), json!([[1001, 10], [1002, 90]]), "no two at a time");
        tell(&completions, "ring", 1100, 40);
        assert_eq!(points(&completions.step()), json!([[1001, 10], [1002, 90], [1100, 40]]));
        for _ in 2..STEPS {
            assert!(points(&completions.step()).is_array());
        }
        assert_eq!(points(&completions.step()), json!([[1100, 40]]));
        assert_eq!(completions.step(), json!({}));
    }

    #[test]
    fn there_are_not_too_many_series() {
        let completions = Completions::default();
        for number in 0..100 {
            tell(&completions, &format!("{number} {}", "x".repeat(1000)), 1, 1);
        }
        let shown = completions.step();
        assert_eq!(shown.as_object().unwrap().len(), SERIES);
        assert!(shown.as_object().unwrap().keys().all(|name| name.len() == NAME));
    }
}
