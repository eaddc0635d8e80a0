//! Rows of a stream while it flows: one for each interval.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use crate::output::print;

/// What has been printed of a stream.
#[derive(Debug)]
pub(super) struct Intervals {
    every: Duration,
    start: Instant,
    /// The end of the interval that has begun.
    next: Instant,
    /// Frames before it.
    before: u64,
}

impl Intervals {
    /// Prints the head. The first interval begins.
    pub(super) fn start(every: Duration, columns: &str) -> io::Result<Self> {
        print(format_args!("{:>10} {:>10} {:>12}{columns}", "seconds", "frames", "frames/s"))?;
        let start = Instant::now();
        Ok(Self { every, start, next: start + every, before: 0 })
    }

    /// Prints a row for an interval that has ended. `frames`: of the whole stream so far; `more`: the
    /// cells of the other columns.
    pub(super) fn look<T: fmt::Display>(
        &mut self,
        frames: u64,
        more: impl FnOnce() -> T,
    ) -> io::Result<()> {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        let own = frames.saturating_sub(self.before);
        // The last look may be late.
        let time = self.every + now.duration_since(self.next);
        let at = now.duration_since(self.start).as_secs_f64();
        let rate = own as f64 / time.as_secs_f64();
        (self.next, self.before) = (now + self.every, frames);
        print(format_args!("{at:>10.2} {own:>10} {rate:>12.0}{}", more()))
    }
}
