//! When the runs of a point are enough.

use experiment::Run;
use experiment::file::Repetitions;
use experiment::plan::Key;
use experiment::statistics::Statistics;

/// Whether the runs before a run give the mean MMR with the required precision. Only complete turns
/// count, so that the decision does not depend on where a session was interrupted.
pub(super) fn is_precise(repetitions: &Repetitions, key: &Key, runs: &[Run]) -> bool {
    let turn = repetitions.turn.get();
    let before = key.repetition / turn * turn;
    let same = |run: &&Run| {
        let Key { fabric, dataplane, point, repetition, .. } = &run.key;
        (fabric, dataplane, point) == (&key.fabric, &key.dataplane, &key.point)
            && *repetition < before
    };
    let values: Vec<f64> = runs.iter().filter(same).map(Run::value).collect();
    values.len() >= repetitions.min.get() as usize
        && Statistics::of(&values, repetitions.confidence.get())
            .is_some_and(|statistics| statistics.is_precise(repetitions.precision.get()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;

    fn rule(min: u32, turn: u32) -> Repetitions {
        let number = |n| std::num::NonZeroU32::new(n).unwrap();
        Repetitions { min: number(min), turn: number(turn), ..Repetitions::default() }
    }

    #[test]
    fn a_point_is_measured_until_its_mean_is_precise() {
        let same: Vec<Run> = (0..6).map(|at| run(at, 2)).collect();
        assert!(is_precise(&rule(4, 2), &run(4, 2).key, &same));
        assert!(!is_precise(&rule(7, 2), &run(4, 2).key, &same), "fewer than the least number");
        let uneven: Vec<Run> = (0..6).map(|at| run(at, u64::from(2 + 6 * (at % 2)))).collect();
        assert!(!is_precise(&rule(4, 2), &run(4, 2).key, &uneven));
        let of_another = Key { dataplane: "other".into(), ..run(4, 2).key };
        assert!(!is_precise(&rule(4, 2), &of_another, &same));
    }

    #[test]
    fn the_decision_to_stop_looks_at_complete_turns_only() {
        // The first three are alike, and the fourth is not.
        let runs: Vec<Run> = (0..4).map(|at| run(at, if at == 3 { 20 } else { 2 })).collect();
        let decided = |repetition, known| {
            is_precise(&rule(3, 3), &run(repetition, 2).key, runs.get(..known).unwrap())
        };
        assert!(!decided(2, 2), "within the first turn, nothing is left out");
        // Repetitions 3 to 5 are one turn: none of them decides about the others, so that a session
        // that was interrupted between them goes on with the same runs.
        assert_eq!([decided(3, 3), decided(4, 4), decided(5, 4)], [true; 3]);
        assert!(!decided(6, 4));
    }
}
