//! The cost of a frame in the worker as tables grow, measured in memory with the real pipeline.

use std::error::Error;

use frames::leaf::Leaf;
use frames::stage::Stage;

use crate::clock::in_turn;
use crate::table::Row;

/// The number of batches that take turns, so that each accesses another part of the tables.
const BATCHES: usize = 512;
/// The inner length in bytes.
const LENGTH: usize = 64;

/// The name of an axis, its sizes, and the leaf of a given size.
type Axis = (&'static str, &'static [u32], fn(u32) -> Leaf);

const AXES: [Axis; 4] = [
    ("MACs", &[8, 100, 1000, 10_000, 100_000], |macs| Leaf { macs, ..Leaf::default() }),
    ("VNIs", &[1, 10, 100, 1000, 4000], |vnis| Leaf { vnis, macs: 4000, ..Leaf::default() }),
    ("VTEPs", &[1, 10, 100, 1000], |vteps| Leaf { vteps, macs: 4000, ..Leaf::default() }),
    ("queue pairs", &[1, 64, 1000, 10_000, 100_000], |queue_pairs| Leaf {
        queue_pairs,
        ..Leaf::default()
    }),
];

/// Measures every axis for encapsulation and decapsulation. `quick` reduces repetitions, not sizes.
///
/// # Errors
/// None in practice: the sizes are fixed.
pub fn run(quick: bool) -> Result<Vec<Row>, Box<dyn Error>> {
    let samples = if quick { 20 } else { 200 };
    let mut rows = Vec::new();
    for stage in [Stage::Encapsulate, Stage::Decapsulate] {
        for (axis, sizes, leaf) in AXES {
            for &size in sizes {
                eprintln!("scale: {}, {size} {axis}", stage.name());
                let mut run = stage.prepare(&leaf(size), LENGTH, BATCHES)?;
                let figure = in_turn(&mut run, BATCHES, samples);
                rows.push(Row {
                    bench: format!("scale {}", stage.name()),
                    case: format!("{size} {axis}"),
                    unit: "ns/frame".to_owned(),
                    vtepd: figure,
                    ..Row::default()
                });
            }
        }
    }
    Ok(rows)
}
