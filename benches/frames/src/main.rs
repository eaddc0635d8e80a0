//! Runs one stage for a number of batches. tests/instructions counts its instructions.

use std::process::ExitCode;

use frames::leaf::{BATCH, Leaf};
use frames::stage::Stage;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (name, turns) = (arguments.next().unwrap_or_default(), arguments.next());
    let macs = arguments.next().map(|macs| macs.parse()).transpose();
    let stage = Stage::ALL.into_iter().find(|stage| stage.name() == name);
    let turns = turns.and_then(|turns| turns.parse::<usize>().ok());
    let (Some(stage), Some(turns), Ok(macs)) = (stage, turns, macs) else {
        eprintln!(
            "usage: stage NAME BATCHES [MACS]   (batches of {BATCH} frames; with MACS, 512 batches to so many hosts in turn)"
        );
        eprintln!("names: {}", Stage::ALL.map(Stage::name).join(" "));
        return ExitCode::from(2);
    };
    let (leaf, batches) = match macs {
        Some(macs) => (Leaf { macs, ..Leaf::default() }, 512),
        // tests/instructions runs fewer, so no order begins anew.
        None if stage == Stage::DecapsulateSprayed => (Leaf::default(), 128),
        None => (Leaf::default(), 1),
    };
    let mut run = match stage.prepare(&leaf, 64, batches) {
        Ok(run) => run,
        Err(error) => {
            eprintln!("stage: {error}");
            return ExitCode::FAILURE;
        }
    };
    (0..turns).for_each(&mut run);
    ExitCode::SUCCESS
}
