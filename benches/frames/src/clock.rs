//! Measures the time of a batch, with its frames in the CPU cache and without.

use std::hint::black_box;
use std::time::Instant;

use crate::leaf::BATCH;

/// The minimum time of a sample in nanoseconds. It is far longer than reading the clock takes.
const SAMPLE: f64 = 100_000.0;

/// The time for each frame in nanoseconds when the same batch is repeated: a median of samples.
pub fn hot(run: &mut dyn FnMut(usize), samples: usize) -> f64 {
    over(run, 1, samples)
}

/// The same when `batches` batches take turns. Their frames are in no cache, unless the caches hold
/// all batches.
pub fn in_turn(run: &mut dyn FnMut(usize), batches: usize, samples: usize) -> f64 {
    over(run, batches, samples)
}

fn over(run: &mut dyn FnMut(usize), batches: usize, samples: usize) -> f64 {
    (0..batches).for_each(&mut *run);
    let (start, mut turns) = (Instant::now(), 0);
    // The first sample also determines the number of turns of a sample.
    while (start.elapsed().as_nanos() as f64) < SAMPLE {
        run(turns);
        turns += 1;
    }
    let mut next = 0;
    let sample = |_| {
        let start = Instant::now();
        for _ in 0..turns {
            run(next);
            next += 1;
        }
        start.elapsed().as_nanos() as f64 / (turns * BATCH) as f64
    };
    median((0..samples).map(sample).collect())
}

/// Memory that is written to evict everything else from the caches.
pub struct Cold {
    memory: Vec<u64>,
}

impl Cold {
    /// Allocates memory for this machine's caches.
    #[must_use]
    pub fn new() -> Self {
        Self { memory: vec![1; 4 * last_level_cache() / size_of::<u64>()] }
    }

    /// The time for each frame in nanoseconds when frames are in no cache but all other data is.
    /// `run` measures batches 1 to `batches` − 1. Before, it runs batch 0, to load tables and code.
    pub fn frames(&mut self, run: &mut dyn FnMut(usize), batches: usize, samples: usize) -> f64 {
        let sample = |_| {
            self.memory
                .iter_mut()
                .step_by(64 / size_of::<u64>())
                .for_each(|word| *word = word.wrapping_add(1));
            black_box(&self.memory);
            (0..4).for_each(|_| run(0));
            let start = Instant::now();
            (1..batches).for_each(&mut *run);
            start.elapsed().as_nanos() as f64 / ((batches - 1) * BATCH) as f64
        };
        median((0..samples).map(sample).collect())
    }
}

impl Default for Cold {
    fn default() -> Self {
        Self::new()
    }
}

/// The size in bytes of the largest cache that the kernel reports; 32 MiB if it reports none.
fn last_level_cache() -> usize {
    let size = |index: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        std::fs::read_to_string(path).ok()?.trim().strip_suffix('K')?.parse::<usize>().ok()
    };
    (0..5).filter_map(size).max().unwrap_or(32 << 10) << 10
}

/// The median; of an even number of figures the upper one in the middle.
#[must_use]
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
