//! Runs one stage for a number of batches: what tests/instructions counts the instructions of.

use std::process::ExitCode;

use frames::leaf::{BATCH, Leaf};
use frames::stage::Stage;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (name, turns) = (arguments.next().unwrap_or_default(), arguments.next());
    let stage = Stage::ALL.into_iter().find(|stage| stage.name() == name);
    let turns = turns.and_then(|turns| turns.parse::<usize>().ok());
    let (Some(stage), Some(turns)) = (stage, turns) else {
        eprintln!("usage: stage NAME BATCHES   (batches of {BATCH} frames)");
        eprintln!("names: {}", Stage::ALL.map(Stage::name).join(" "));
        return ExitCode::from(2);
    };
    let mut run = match stage.prepare(&Leaf::default(), 64, 1) {
        Ok(run) => run,
        Err(error) => {
            eprintln!("stage: {error}");
            return ExitCode::FAILURE;
        }
    };
    (0..turns).for_each(&mut run);
    ExitCode::SUCCESS
}
