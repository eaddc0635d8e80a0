//! Rows of the table: a knob, the frames that show its effect, and what is compared.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::leaf::{Leaf, Plan};
use super::observation::Observation;
use super::stimulus::{BOTH_WAYS, Stimulus};
use crate::Vtepd;

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// A shell script that sets the knob in the leaf's namespace.
    pub set: &'static str,
    /// A shell script that undoes it.
    pub unset: &'static str,
    /// Frames to send in addition to [`BOTH_WAYS`].
    pub also: &'static [Stimulus],
    /// The knob's effect on kernel VXLAN.
    pub effect: Effect,
    /// Whether equal-cost next hops share the frames, so that both uplinks are treated as one.
    pub balanced: bool,
    /// Whether frames fare otherwise by one uplink than by the other. Where next hops share the
    /// frames, what arrives then depends on the hash.
    pub one_uplink: bool,
    /// Whether the row is skipped if its script fails, because the kernel or a tool lacks a
    /// feature.
    pub optional: bool,
    /// Whether vtepd drops the frames of [`Self::also`] deliberately although kernel VXLAN delivers
    /// them.
    pub refused: bool,
}

/// A knob's effect on the frames that kernel VXLAN delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Other frames arrive.
    Changes,
    /// The same frames arrive.
    Nothing,
}

impl Row {
    /// A row whose knob changes what arrives.
    #[must_use]
    pub const fn new(name: &'static str, set: &'static str, unset: &'static str) -> Self {
        Self {
            name,
            set,
            unset,
            also: &[],
            effect: Effect::Changes,
            balanced: false,
            one_uplink: false,
            optional: false,
            refused: false,
        }
    }

    /// Sends these frames as well.
    #[must_use]
    pub const fn also(self, also: &'static [Stimulus]) -> Self {
        Self { also, ..self }
    }

    /// The knob changes nothing.
    #[must_use]
    pub const fn harmless(self) -> Self {
        Self { effect: Effect::Nothing, ..self }
    }

    /// With equal-cost next hops.
    #[must_use]
    pub const fn balanced(self) -> Self {
        Self { balanced: true, ..self }
    }

    /// Frames fare otherwise by one uplink.
    #[must_use]
    pub const fn one_uplink(self) -> Self {
        Self { one_uplink: true, ..self }
    }

    /// The row is skipped if its script fails.
    #[must_use]
    pub const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    /// A row of frames that kernel VXLAN delivers and vtepd drops deliberately: a documented
    /// difference.
    #[must_use]
    pub const fn refused(self) -> Self {
        Self { refused: true, ..self }
    }

    /// The row without its additional frames.
    const fn bare(self) -> Self {
        self.also(&[])
    }

    /// Whether undoing the knob restores the leaf completely. The kernel remembers a router's "too
    /// big" message for minutes.
    fn leaves_nothing(&self) -> bool {
        !self.also.iter().any(|stimulus| matches!(stimulus, Stimulus::TooBig { .. }))
    }

    fn frames(&self) -> Vec<Stimulus> {
        BOTH_WAYS.iter().chain(self.also).copied().collect()
    }
}

/// A round ends when nothing has arrived for this time.
const QUIET: Duration = Duration::from_millis(6);
/// Maximum time until kernel VXLAN is stable.
const STEADY: Duration = Duration::from_secs(2);
/// Maximum time until vtepd forwards as the kernel does. vtepd polls settings without notifications
/// once a second.
const FOLLOWS: Duration = Duration::from_secs(4);
/// Number of equal rounds in a row that count as stable.
const ROUNDS: usize = 3;

/// A leaf on which rows are tested.
pub(super) struct Bench {
    /// The leaf.
    pub(super) leaf: Leaf,
    /// The frames of a round, in order.
    pub(super) frames: Vec<Stimulus>,
    /// Whether both uplinks are treated as one.
    pub(super) balanced: bool,
}

impl Bench {
    fn on(leaf: Leaf, row: &Row) -> Self {
        Self { leaf, frames: row.frames(), balanced: row.balanced }
    }

    fn turn_to(&mut self, row: &Row) {
        (self.frames, self.balanced) = (row.frames(), row.balanced);
    }

    /// Sends all frames once, and collects what arrives until there are at least `expected` frames.
    fn once(&mut self, expected: usize) -> Observation {
        // Late frames of the round before.
        self.leaf.wires.receive(&mut Observation::default());
        for (number, stimulus) in (0..).zip(&self.frames) {
            self.leaf.wires.send(stimulus, number);
        }
        let timeout = Duration::from_millis(60);
        let seen = self.leaf.wires.collect(QUIET, timeout, |seen| seen.count() >= expected);
        if self.balanced { seen.with_one_uplink() } else { seen }
    }

    /// What arrives with kernel VXLAN alone, equal in [`ROUNDS`] rounds in a row.
    pub(super) fn kernel(&mut self) -> Result<Observation, String> {
        let start = Instant::now();
        let (mut before, mut same) = (self.once(0), 1);
        while same < ROUNDS {
            let now = self.once(before.count());
            same = if now == before { same + 1 } else { 1 };
            if start.elapsed() > STEADY {
                return Err(format!("kernel VXLAN is not steady:\n{}", before.difference(&now)));
            }
            before = now;
        }
        Ok(before)
    }

    /// What must arrive with vtepd: what kernel VXLAN delivers, without the frames that vtepd
    /// refuses.
    fn due(&mut self, row: &Row, delivered: Observation) -> Result<Observation, String> {
        if !row.refused {
            return Ok(delivered);
        }
        self.turn_to(&row.bare());
        let bare = self.kernel()?;
        if bare == delivered {
            return Err("kernel VXLAN does not deliver it either: this is no difference".to_owned());
        }
        Ok(bare)
    }

    /// Checks that the same arrives with vtepd.
    pub(super) fn vtepd(&mut self, expected: &Observation, when: &str) -> Result<(), String> {
        let (start, mut same) = (Instant::now(), 0);
        loop {
            let now = self.once(expected.count());
            same = if now == *expected { same + 1 } else { 0 };
            if same >= ROUNDS {
                return Ok(());
            }
            if same == 0 && start.elapsed() > FOLLOWS {
                return Err(format!("  {when}:\n{}\n", expected.difference(&now)));
            }
        }
    }

    /// Checks that vtepd itself forwards again.
    fn taken_back(&mut self, vtepd: &Vtepd) -> Result<(), String> {
        let frames =
            || ["encapsulated", "decapsulated"].map(|way| vtepd.metrics().vni_frames(10, way));
        let start = Instant::now();
        loop {
            let before = frames();
            let _ = self.once(0);
            let after = frames();
            if after.iter().zip(before).all(|(after, before)| *after > before) {
                return Ok(());
            }
            if start.elapsed() > FOLLOWS {
                return Err("  taken away, but vtepd does not forward again\n".to_owned());
            }
        }
    }

    fn script(&self, script: &str) -> Result<(), String> {
        self.leaf.run(script)
    }

    /// Tests the row. Returns what differed.
    fn attempt(&mut self, row: &Row) -> Result<Vec<String>, String> {
        let without = self.kernel()?;
        self.script(row.set)?;
        let with = self.kernel()?;
        self.script(row.unset)?;
        let again = self.kernel()?;
        if again != without {
            return Err(format!("the knob was not taken away:\n{}", without.difference(&again)));
        }
        if (with == without) != (row.effect == Effect::Nothing) {
            let difference = without.difference(&with);
            return Err(format!(
                "the effect is not {:?}; without and with the knob:\n{difference}",
                row.effect
            ));
        }
        self.script(row.set)?;
        let vtepd = self.leaf.vtepd();
        let mut found = Vec::new();
        let mut note = |result: Result<(), String>| found.extend(result.err());
        note(self.vtepd(&with, "set before the start"));
        self.script(row.unset)?;
        note(self.vtepd(&without, "taken away after it had been set before the start"));
        note(self.taken_back(&vtepd));
        self.script(row.set)?;
        note(self.vtepd(&with, "set while vtepd runs"));
        self.script(row.unset)?;
        note(self.vtepd(&without, "taken away while vtepd runs"));
        note(self.taken_back(&vtepd));
        if !found.is_empty() && std::env::var_os("SHOW_LOG").is_some() {
            found.push(vtepd.log());
        }
        Ok(found)
    }
}

/// Tests rows without a knob on one leaf with one vtepd.
fn try_frames(plan: &Plan, rows: &[Row]) -> Vec<(Row, Result<Vec<String>, String>)> {
    let Some(first) = rows.first() else { return Vec::new() };
    let mut bench = Bench::on(Leaf::build(plan), first);
    let mut kernel = Vec::new();
    for row in rows {
        bench.turn_to(row);
        kernel.push(bench.kernel().and_then(|delivered| bench.due(row, delivered)));
    }
    let vtepd = bench.leaf.vtepd();
    let results = rows.iter().zip(kernel).map(|(row, kernel)| {
        bench.turn_to(row);
        let result = kernel.map(|expected| {
            let found = [bench.vtepd(&expected, "with vtepd"), bench.taken_back(&vtepd)];
            found.into_iter().filter_map(Result::err).collect()
        });
        (*row, result)
    });
    results.collect()
}

/// Tests rows with a knob. They share a leaf until a row fails.
fn try_knobs(plan: &Plan, rows: &[Row]) -> Vec<(Row, Result<Vec<String>, String>)> {
    let mut bench: Option<Bench> = None;
    let results = rows.iter().map(|row| {
        let mut used = bench.take().unwrap_or_else(|| Bench::on(Leaf::build(plan), row));
        used.turn_to(row);
        let result = used.attempt(row);
        if result.as_ref().is_ok_and(Vec::is_empty) && row.leaves_nothing() {
            bench = Some(used);
        }
        (*row, result)
    });
    results.collect()
}

/// Tests all rows of a group on leaves like this one. `ROW` in the environment selects rows whose
/// name contains it.
///
/// # Panics
/// If anything differs. The message names each such row and the difference.
pub fn try_all(group: &str, plan: &Plan, rows: &[Row]) {
    let only = std::env::var("ROW").unwrap_or_default();
    let start = Instant::now();
    let picked = |row: &&Row| row.name.contains(&only);
    let (frames, knobs): (Vec<Row>, Vec<Row>) =
        rows.iter().filter(picked).partition(|row| row.set.is_empty() && row.unset.is_empty());
    let mut results = try_frames(plan, &frames);
    results.extend(try_knobs(plan, &knobs));
    let mut report = String::new();
    for (row, result) in &results {
        match result {
            Ok(differences) if differences.is_empty() => {}
            Ok(differences) => {
                write!(
                    report,
                    "\nROW {group}, {}: {}\n{}",
                    plan.vxlan,
                    row.name,
                    differences.concat()
                )
                .unwrap();
            }
            Err(problem) if row.optional => println!("{group}: not here: {}: {problem}", row.name),
            Err(problem) => {
                write!(report, "\nBAD {group}, {}: {}\n  {problem}\n", plan.vxlan, row.name)
                    .unwrap();
            }
        }
    }
    println!(
        "{group}, {}: {} rows in {} ms",
        plan.vxlan,
        results.len(),
        start.elapsed().as_millis()
    );
    assert!(report.is_empty(), "{report}");
}
