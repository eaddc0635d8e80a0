//! When the probing thread looks at what nothing announces.

use std::time::Duration;

use pathmap::next_multiple;

/// How often pauses of queue pairs are looked for and paths are traced, at most.
pub(super) const TICK: Duration = Duration::from_millis(10);
/// How often the placement is measured and made more even, and new queue pairs are looked for, if
/// nothing needs [`TICK`]. A shorter interval of the probes counts here as well.
const CALM_TICK: Duration = Duration::from_millis(50);
/// How long after a change more changes are expected, and looked for with every [`TICK`].
pub(super) const RESTLESS: Duration = Duration::from_secs(1);

/// When the tick after the one at `ticked` is due, if one every `calm` is enough, but for a path that
/// is to be traced at `trace`.
pub(super) fn next_tick(ticked: Duration, calm: Duration, trace: Option<Duration>) -> Duration {
    let soonest = next_multiple(ticked, TICK);
    let calm = next_multiple(ticked, calm.clamp(TICK, CALM_TICK)).max(soonest);
    trace.map_or(calm, |at| at.clamp(soonest, calm))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_tick_is_within_the_interval_whatever_that_is() {
        let ms = Duration::from_millis;
        for interval in 1..=1000 {
            let mut ticked = Duration::ZERO;
            for turn in 0..50 {
                let trace = ticked.checked_sub(ms(5)).map(|at| at + ms(turn));
                let next = next_tick(ticked, ms(interval), trace);
                assert!(next > ticked && next <= ticked + CALM_TICK, "{interval} {ticked:?}");
                ticked = next + Duration::from_micros(100);
            }
        }
        assert_eq!(next_tick(ms(101), ms(50), None), ms(150));
        assert_eq!(next_tick(ms(101), ms(50), Some(ms(90))), ms(110));
        assert_eq!(next_tick(ms(101), ms(50), Some(ms(500))), ms(150));
        // The next multiple of 25 ms is earlier than that of 10 ms.
        assert_eq!(next_tick(ms(71), ms(25), Some(ms(60))), ms(80));
    }
}
