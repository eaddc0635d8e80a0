//! Frames a second of two RoCE endpoints in userspace on one CPU, over a veth link. Needs root.

use std::error::Error;
use std::time::Duration;

use roce::Settings;
use traffic::endpoint::{BenchError, bench};

use crate::table::{Better, Figure, Row};

/// The bytes of a message: one packet, a small request, and a bulk transfer.
const MESSAGES: [u32; 3] = [64, 4096, 1 << 20];
/// The frames a second that one CPU is to send and receive.
const TARGET: f64 = 500_000.0;
const QUEUE_PAIRS: u32 = 4;
/// Everything runs on this CPU.
const CPU: usize = 0;

/// Measures every length of a message. `quick` shortens it.
///
/// # Errors
/// If namespaces cannot be created, or a byte was wrong.
pub fn run(quick: bool) -> Result<Vec<Row>, Box<dyn Error>> {
    let (rounds, time) = if quick { (3, 300) } else { (7, 1000) };
    let settings = Settings::default();
    let mut rows = Vec::new();
    for message in MESSAGES {
        eprintln!("roce: messages of {message} B");
        let mut frames = Vec::new();
        let mut bits = Vec::new();
        for _ in 0..rounds {
            // A thread of its own, because it stays on its CPU.
            let round =
                || bench(&settings, (QUEUE_PAIRS, message), CPU, Duration::from_millis(time));
            let result = std::thread::scope(|scope| {
                let panicked = |_| "the measurement panicked".to_owned();
                let told = |error: BenchError| error.to_string();
                scope.spawn(round).join().map_err(panicked)?.map_err(told)
            })?;
            if result.mismatches > 0 {
                return Err(format!("{} messages had wrong bytes", result.mismatches).into());
            }
            frames.push(result.frames_per_second);
            bits.push(result.goodput / 1e6);
        }
        let case = format!("{message} B, {QUEUE_PAIRS} queue pairs, 1 core");
        let target = (message == 1 << 20).then_some(TARGET);
        rows.push(row(&case, "frames/s", frames, target));
        rows.push(row(&case, "Mbit/s", bits, None));
    }
    Ok(rows)
}

fn row(case: &str, unit: &str, figures: Vec<f64>, target: Option<f64>) -> Row {
    let Figure { median, range } = Figure::of(figures);
    Row {
        bench: "RoCE endpoints".to_owned(),
        case: case.to_owned(),
        unit: unit.to_owned(),
        vtepd: median,
        range: Some(range),
        target,
        better: Better::Higher,
        ..Row::default()
    }
}
