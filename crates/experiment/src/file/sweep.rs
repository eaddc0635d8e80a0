//! The values that are varied.

use quantity::NumberOrText;
use schemars::JsonSchema;
use serde::Deserialize;

use super::check::twice;
use super::{Experiment, FileError, Source, Variant, some};
use crate::plan;
use crate::units::{InnerPort, Name, Percent, QueuePairs, Time};

/// The values that are varied. Every combination is a point of the experiment. All keys but
/// `queue-pairs` and `inner-port` make variants: a name is that of the `[[variant]]`, if there are
/// any, and `KEY-VALUE` for each key, such as `far.delay-5ms`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Sweep {
    /// Numbers of queue pairs.
    #[serde(deserialize_with = "some")]
    pub queue_pairs: Vec<QueuePairs>,
    /// How the inner UDP source port is chosen.
    #[serde(deserialize_with = "some")]
    pub inner_port: Vec<InnerPort>,
    /// Bytes of a rank's buffer: `bytes` of the workload.
    #[serde(deserialize_with = "quantity::many_bytes")]
    #[schemars(with = "Vec<NumberOrText>")]
    pub bytes: Vec<u64>,
    /// Maximum bytes of a message: `message` of the workload.
    #[serde(deserialize_with = "quantity::many_bytes")]
    #[schemars(with = "Vec<NumberOrText>")]
    pub message: Vec<u32>,
    /// Delays of the circuits in each direction.
    pub delay: Vec<Time>,
    /// Jitter of the circuits: the maximum deviation from the delay.
    pub jitter: Vec<Time>,
    /// Losses of the circuits in percent, 0 to 100.
    pub loss: Vec<Percent>,
    /// Rates of the circuits in kilobits per second; 0 for no limit.
    #[serde(deserialize_with = "quantity::many_kilobits")]
    #[schemars(with = "Vec<NumberOrText>")]
    pub rate: Vec<u64>,
}

impl Default for Sweep {
    fn default() -> Self {
        let thirty_two = QueuePairs::try_from(32_u64);
        Self {
            queue_pairs: thirty_two.into_iter().collect(),
            inner_port: vec![InnerPort::Constant],
            bytes: Vec::new(),
            message: Vec::new(),
            delay: Vec::new(),
            jitter: Vec::new(),
            loss: Vec::new(),
            rate: Vec::new(),
        }
    }
}

/// The most variants of an experiment, with the values of the sweep.
const VARIANTS: usize = 10_000;
/// The most bytes of the texts of all variants together, each as long as the file.
const BYTES: usize = 64 << 20;

/// Sets a value in a variant.
type Set<'a> = Box<dyn Fn(&mut Variant) + 'a>;

/// A key of the sweep that makes variants: whether it is one of the workload, whether a variant has
/// it, and the values as text.
struct Axis<'a> {
    key: &'static str,
    of_workload: bool,
    has: fn(&Variant) -> bool,
    values: Vec<(String, Set<'a>)>,
}

impl Sweep {
    fn axes(&self) -> Vec<Axis<'_>> {
        fn values<'a, T>(
            all: &'a [T],
            text: impl Fn(&T) -> String,
            set: impl Fn(&mut Variant, &T) + Copy + 'a,
        ) -> Vec<(String, Set<'a>)> {
            let value = |value: &'a T| {
                let apply: Set<'a> = Box::new(move |variant| set(variant, value));
                (text(value), apply)
            };
            all.iter().map(value).collect()
        }
        let key = |variant: &mut Variant, key: &str, value: i64| {
            variant.workload.insert(key.to_owned(), value.into());
        };
        // A name has no blanks.
        let time = |time: &Time| time.as_str().replace(' ', "");
        let of_circuits = |key, has, values| Axis { key, of_workload: false, has, values };
        let of_workload = |key, has, values| Axis { key, of_workload: true, has, values };
        let all = vec![
            of_workload(
                "bytes",
                (|variant| variant.workload.contains_key("bytes")) as fn(&Variant) -> bool,
                values(&self.bytes, u64::to_string, move |variant, value| {
                    key(variant, "bytes", i64::try_from(*value).unwrap_or(i64::MAX));
                }),
            ),
            of_workload(
                "message",
                |variant| variant.workload.contains_key("message"),
                values(&self.message, u32::to_string, move |variant, value| {
                    key(variant, "message", (*value).into());
                }),
            ),
            of_circuits(
                "delay",
                |variant| variant.circuits.delay.is_some(),
                values(&self.delay, time, |of, value| of.circuits.delay = Some(value.clone())),
            ),
            of_circuits(
                "jitter",
                |variant| variant.circuits.jitter.is_some(),
                values(&self.jitter, time, |of, value| of.circuits.jitter = Some(value.clone())),
            ),
            of_circuits(
                "loss",
                |variant| variant.circuits.loss.is_some(),
                values(
                    &self.loss,
                    |loss| loss.get().to_string(),
                    |of, value| of.circuits.loss = Some(*value),
                ),
            ),
            of_circuits(
                "rate",
                |variant| variant.circuits.rate.is_some(),
                values(&self.rate, u64::to_string, |of, value| of.circuits.rate = Some(*value)),
            ),
        ];
        all.into_iter().filter(|axis| !axis.values.is_empty()).collect()
    }

    /// All combinations of the variants of the file with the values of the sweep.
    ///
    /// # Errors
    /// If a name is too long.
    pub(super) fn variants(&self, variants: &[Variant]) -> Result<Vec<Variant>, String> {
        let mut all = variants.to_vec();
        for Axis { key, values, .. } in self.axes() {
            if all.is_empty() {
                all.push(Variant::default());
            }
            let mut next = Vec::with_capacity(all.len() * values.len());
            for variant in &all {
                for (text, set) in &values {
                    let mut variant = variant.clone();
                    let before = variant.name.as_str();
                    let dot = if before.is_empty() { "" } else { "." };
                    let name = Name::try_from(format!("{before}{dot}{key}-{text}"))?;
                    let title = format!("{key} {text}");
                    variant.title = match variant.title.as_str() {
                        "" => title,
                        before => format!("{before}, {title}"),
                    };
                    variant.of = variant.of.or((!before.is_empty()).then_some(variant.name));
                    variant.name = name;
                    set(&mut variant);
                    next.push(variant);
                }
            }
            all = next;
        }
        Ok(all)
    }

    /// Checks the keys that make variants, in the table `place`.
    pub(super) fn check(
        &self,
        experiment: &Experiment,
        place: &str,
        source: Source<'_>,
    ) -> Result<(), FileError> {
        for Axis { key, of_workload, has, .. } in self.axes() {
            let place = format!("{place}.{key}");
            if of_workload && experiment.workload.is_none() {
                return Err(
                    source.error_at(&place, "this is a key of [workload], which is missing")
                );
            }
            if let Some(variant) = experiment.variants.iter().find(|variant| has(variant)) {
                let name = &variant.name;
                let message = format!("the variant '{name}' sets '{key}', too: remove one of them");
                return Err(source.error_at(&place, message));
            }
        }
        let again = |key: &str, value: &dyn std::fmt::Display| {
            source.error_at(&format!("{place}.{key}"), format!("{value} is there twice"))
        };
        if let Some((_, number)) = twice(&self.queue_pairs) {
            return Err(again("queue-pairs", &number.get()));
        }
        if let Some((_, port)) = twice(&self.inner_port) {
            return Err(again("inner-port", &format!("'{port}'")));
        }
        for Axis { key, values, .. } in self.axes() {
            let values: Vec<&String> = values.iter().map(|(text, _)| text).collect();
            if let Some((_, value)) = twice(&values) {
                return Err(again(key, &format!("'{value}'")));
            }
        }
        for (key, times) in [("delay", &self.delay), ("jitter", &self.jitter)] {
            let like = |(at, time): (usize, &Time)| {
                let same = |other: &&Time| other.duration() == time.duration();
                let first = times.iter().take(at).find(same)?;
                Some(format!("'{}' is as long as '{}'", time.as_str(), first.as_str()))
            };
            if let Some(message) = times.iter().enumerate().find_map(like) {
                return Err(source.error_at(&format!("{place}.{key}"), message));
            }
        }
        self.check_numbers(experiment, place, source)
    }

    /// Checks that the sweep in the table `place` makes no more variants and runs than fit into
    /// memory, and that their names are not too long.
    fn check_numbers(
        &self,
        experiment: &Experiment,
        place: &str,
        source: Source<'_>,
    ) -> Result<(), FileError> {
        let most = VARIANTS.min(BYTES / source.text.len().max(1)).max(1);
        let numbers = self.axes().into_iter().map(|axis| axis.values.len());
        let number = numbers.fold(experiment.variants.len().max(1), usize::saturating_mul);
        if number > most {
            let message = format!("{number} variants are too many: use at most {most}");
            return Err(source.error_at(place, message));
        }
        let all = self.variants(&experiment.variants);
        let all = all.map_err(|message| source.error_at(place, message))?;
        let points = all.len().max(1) * self.queue_pairs.len() * self.inner_port.len();
        let (quick, is_quick) = (&experiment.quick, place != "sweep");
        let full = ("repetitions", &experiment.repetitions, &experiment.topologies);
        let short = (
            "quick.repetitions",
            quick.repetitions.as_ref().unwrap_or(full.1),
            quick.topologies.as_ref().unwrap_or(full.2),
        );
        // The short form has the sweep of the full one, if it has none of its own.
        let is_of_short = is_quick || quick.sweep.is_none();
        let forms = [(!is_quick).then_some(full), is_of_short.then_some(short)];
        for (table, repetitions, topologies) in forms.into_iter().flatten() {
            let sets = topologies.len() * experiment.dataplanes.len();
            plan::check(points, sets, repetitions).map_err(|message| match source.has(table) {
                true => source.error_at(&format!("{table}.max"), message),
                false => source.error_at(place, message),
            })?;
        }
        Ok(())
    }
}
