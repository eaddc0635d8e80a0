//! The cost of a frame in the worker, measured in memory without sockets.

use std::error::Error;

use frames::counting::allocations;
use frames::leaf::{BATCH, LENGTHS, Leaf};
use frames::stage::{ORDERED, Stage};

use crate::clock::{Cold, hot, in_turn, median};
use crate::table::Row;

/// A stage with the policy `spray`, and what it is with `qp-pin`.
const SPRAYED: [(Stage, Stage); 2] = [
    (Stage::EncapsulateSprayed, Stage::EncapsulatePinned),
    (Stage::DecapsulateSprayed, Stage::Decapsulate),
];

/// The number of batches whose frames are in no cache.
const COLD: usize = 64;

/// Measures every stage. `quick` reduces repetitions.
///
/// # Errors
/// None in practice: lengths and sizes are fixed.
pub fn run(quick: bool) -> Result<Vec<Row>, Box<dyn Error>> {
    let (hot_samples, cold_samples) = if quick { (100, 10) } else { (1000, 50) };
    let (mut cold, leaf, mut rows) = (Cold::new(), Leaf::default(), Vec::new());
    for stage in Stage::ALL {
        let mut made = 0.0_f64;
        for length in LENGTHS {
            if !stage.reads_frames() && length != LENGTHS[0] {
                continue;
            }
            let case = |heat: &str| {
                if stage.reads_frames() { format!("{length} B {heat}") } else { heat.to_owned() }
            };
            eprintln!("micro: {}, {}", stage.name(), case(""));
            let mut run = stage.prepare(&leaf, length, 1 + COLD)?;
            let mut again = |_: usize| run(0);
            let figure = hot(&mut again, hot_samples);
            rows.push(row(
                stage.name(),
                &case("hot"),
                "ns/frame",
                figure,
                target(stage, length, false),
            ));
            let figure = cold.frames(&mut run, 1 + COLD, cold_samples);
            rows.push(row(
                stage.name(),
                &case("cold"),
                "ns/frame",
                figure,
                target(stage, length, true),
            ));
            let all = allocations(|| (0..=COLD).for_each(&mut run));
            made = made.max(all as f64 / ((1 + COLD) * BATCH) as f64);
        }
        rows.push(row(stage.name(), "any", "allocations/frame", made, Some(0.0)));
    }
    for (stage, beside) in SPRAYED {
        for length in LENGTHS {
            rows.push(sprayed((stage, beside), &leaf, length, hot_samples)?);
        }
    }
    Ok(rows)
}

/// A sprayed frame beside one of `qp-pin`, measured in turns.
fn sprayed(
    (stage, beside): (Stage, Stage),
    leaf: &Leaf,
    length: usize,
    samples: usize,
) -> Result<Row, Box<dyn Error>> {
    let turns = 10;
    // Packets in order need many batches, so both have them.
    let prepare = |of: Stage| of.prepare(leaf, length, ORDERED);
    let mut runs = [prepare(stage)?, prepare(beside)?];
    let each = samples / turns + 1;
    let figures = (0..turns).map(|_| runs.each_mut().map(|run| in_turn(run, ORDERED, each)));
    let (figures, with): (Vec<_>, Vec<_>) = figures.map(|[of, with]| (of, with)).unzip();
    let ratios = figures.iter().zip(&with).map(|(of, with)| of / with).collect();
    let case = format!("{length} B, spray / qp-pin");
    let row = row(stage.name(), &case, "ns/frame", median(figures), None);
    Ok(Row { ratio: Some(median(ratios)), ..row })
}

fn target(stage: Stage, length: usize, cold: bool) -> Option<f64> {
    let stated = stage == Stage::Encapsulate && matches!(length, 64 | 1082);
    stated.then_some(if cold { 20.0 } else { 8.0 })
}

fn row(bench: &str, case: &str, unit: &str, vtepd: f64, target: Option<f64>) -> Row {
    let (bench, case, unit) = (bench.to_owned(), case.to_owned(), unit.to_owned());
    Row { bench, case, unit, vtepd, target, ..Row::default() }
}
