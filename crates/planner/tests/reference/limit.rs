//! The model misses a tau of 0.8 for vTrain's 39.1B rows. How much of their order could a law explain
//! in which links, or all times, depend on the degree of tensor parallelism?

use super::points::vtrain_with;
use super::table::{tau, tau_with_ties};

/// Factors that are tried. Twice as many find nothing better than 0.77 either.
const FACTORS: usize = 33;

/// Factors in equal steps, from `1 / most` to `most`.
fn factor(at: usize, most: f64) -> f64 {
    most.powf(at as f64 / (FACTORS / 2) as f64 - 1.0)
}

/// A row: its degree of tensor parallelism, its measured time, and predicted times, one for each
/// factor.
struct Row {
    tensor: String,
    measured: f64,
    predicted: Vec<f64>,
}

/// Pairs of rows in the measured order minus those in the opposite one, by the factors of the first
/// and of the second group. Pairs within a group have one factor, on the diagonal.
fn pairs(first: &[&Row], second: &[&Row], same: bool) -> Vec<Vec<f64>> {
    let sum = |k: usize, l: usize| {
        let all = first.iter().enumerate().flat_map(|(at, a)| {
            let from = if same { at + 1 } else { 0 };
            second[from..].iter().map(move |b| (a, b))
        });
        let sign = |(a, b): (&&Row, &&Row)| {
            ((a.measured - b.measured) * (a.predicted[k] - b.predicted[l])).signum()
        };
        all.map(sign).sum::<f64>()
    };
    let all = 0..FACTORS;
    all.clone()
        .map(|k| all.clone().map(|l| if same && k != l { 0.0 } else { sum(k, l) }).collect())
        .collect()
}

/// The largest tau over all combinations of factors, one for each degree of tensor parallelism, and
/// the factors.
fn best(rows: &[Row], most: f64) -> (f64, Vec<f64>) {
    let of = |tensor: &str| rows.iter().filter(|row| row.tensor == tensor).collect::<Vec<_>>();
    let groups = ["t1", "t2", "t4", "t8"].map(of);
    let tables: Vec<Vec<_>> = groups
        .iter()
        .enumerate()
        .map(|(i, a)| groups[..=i].iter().enumerate().map(|(j, b)| pairs(a, b, i == j)).collect())
        .collect();
    let mut found = (f64::NEG_INFINITY, Vec::new());
    let all = FACTORS.pow(4);
    for number in 0..all {
        let at = [0, 1, 2, 3].map(|digit| number / FACTORS.pow(digit) % FACTORS);
        let sum: f64 = (0..4)
            .flat_map(|i| (0..=i).map(move |j| (i, j)))
            .map(|(i, j)| tables[i][j][at[i]][at[j]])
            .sum();
        if sum > found.0 {
            found = (sum, at.map(|at| factor(at, most)).to_vec());
        }
    }
    let number = rows.len() * (rows.len() - 1) / 2;
    (found.0 / number as f64, found.1)
}

/// The rows with predictions for each factor.
fn rows(most: f64, predict: impl Fn(f64) -> Vec<(String, f64, f64)>) -> Vec<Row> {
    let tables: Vec<_> = (0..FACTORS).map(|at| predict(factor(at, most))).collect();
    let row = |at: usize| {
        let (name, measured, _) = &tables[0][at];
        let tensor = name.split(' ').next().unwrap().to_owned();
        let predicted = tables.iter().map(|table| table[at].2).collect();
        Row { tensor, measured: *measured, predicted }
    };
    (0..tables[0].len()).map(row).collect()
}

/// Predictions with all links so many times slower.
fn slower_links(factor: f64) -> Vec<(String, f64, f64)> {
    let rows = vtrain_with("39.1", |job| {
        job.machine.efficiency.node_link /= factor;
        job.machine.efficiency.network_link /= factor;
    });
    rows.into_iter().map(|row| (row.name, row.measured, row.predicted)).collect()
}

/// Predictions that are multiplied.
fn slower_all(factor: f64) -> Vec<(String, f64, f64)> {
    let rows = vtrain_with("39.1", |_| ());
    rows.into_iter().map(|row| (row.name, row.measured, factor * row.predicted)).collect()
}

/// Neither links nor all of the machine that are slower by a factor for each t, fitted on all rows
/// for the largest tau, order the rows as they were measured.
#[test]
fn no_factor_for_each_t_explains_the_order() {
    for (name, most, predict) in [
        ("links", 20.0, slower_links as fn(f64) -> Vec<(String, f64, f64)>),
        ("all", 2.5, slower_all),
    ] {
        let rows = rows(most, predict);
        assert_eq!(rows.len(), 47);
        let as_it_is: Vec<(f64, f64)> =
            rows.iter().map(|row| (row.measured, row.predicted[FACTORS / 2])).collect();
        let (largest, factors) = best(&rows, most);
        println!("{name}: tau {largest:.3} with {factors:.2?}, {:.3} without", tau(&as_it_is));
        assert!(largest < 0.77, "{name}: {largest} with {factors:?}");
        assert!(largest > tau(&as_it_is) + 0.1, "{name}: {largest} with {factors:?}");
    }
}

/// Differences below the resolution of the measurement are not the reason either: the rows are
/// published to 0.1 ms of at least 13 s, no two are equal, and pairs that differ by more than 3 %
/// are hardly ordered better.
#[test]
fn small_differences_are_not_the_reason() {
    let rows = vtrain_with("39.1", |_| ());
    let pairs: Vec<(f64, f64)> = rows.iter().map(|row| (row.measured, row.predicted)).collect();
    let rounding = 1e-4 / 13.0;
    let taus = [0.0, rounding, 0.01, 0.03, 0.05, 0.1].map(|share| tau_with_ties(&pairs, share));
    println!("tau-b and gamma: {taus:.3?}");
    assert!((taus[0].0 - tau(&pairs)).abs() < 1e-9 && taus[0] == taus[1], "{taus:?}");
    let (most, gamma) = (f64::max, |(_, gamma): &(f64, f64)| *gamma);
    assert!(taus.iter().map(|(tau, _)| *tau).fold(0.0, most) < 0.53, "{taus:?}");
    assert!(taus.iter().map(gamma).fold(0.0, most) < 0.56, "{taus:?}");
    // A known case: of three pairs, the tied one counts in tau-b's denominator alone.
    let known = tau_with_ties(&[(1.0, 1.0), (1.02, 0.9), (2.0, 2.0)], 0.03);
    assert!((known.0 - 2.0 / 6_f64.sqrt()).abs() < 1e-9 && known.1 == 1.0, "{known:?}");
}
