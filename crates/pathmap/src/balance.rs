//! How even a load is.

/// Maximum over mean of loads (MMR); 1 is even. 0 if nothing is loaded.
#[must_use]
pub fn mmr(loads: &[f64]) -> f64 {
    let sum: f64 = loads.iter().sum();
    let most = loads.iter().copied().fold(0.0, f64::max);
    if sum > 0.0 { most * loads.len() as f64 / sum } else { 0.0 }
}

/// Jain's index `(Σx)² / (n·Σx²)`; 1 is even, 1/n is one link for all (Jain, Chiu, Hawe 1984). 0 if
/// nothing is loaded.
#[must_use]
pub fn jain(loads: &[f64]) -> f64 {
    let sum: f64 = loads.iter().sum();
    let squares: f64 = loads.iter().map(|load| load * load).sum();
    if squares > 0.0 { sum * sum / (loads.len() as f64 * squares) } else { 0.0 }
}

/// The lowest MMR that `flows` equal flows can have on `links` links: `ceil(N/links) / (N/links)`.
/// 0 without flows or links.
#[must_use]
pub fn floor(flows: usize, links: usize) -> f64 {
    if flows == 0 || links == 0 {
        return 0.0;
    }
    (flows.div_ceil(links) * links) as f64 / flows as f64
}

/// Maximum over mean of loads, each in relation to the weight of its link: links with equal weights
/// give [`mmr`]. 0 if nothing is loaded.
#[must_use]
pub fn weighted_mmr(loads: &[f64], weights: &[u16]) -> f64 {
    let (sum, whole) = (loads.iter().sum::<f64>(), sum_of(weights));
    let shares = loads.iter().zip(weights).map(|(load, weight)| load / share(*weight));
    let most = shares.fold(0.0, f64::max);
    if sum > 0.0 { most * whole / sum } else { 0.0 }
}

/// The lowest [`weighted_mmr`] that `flows` equal flows can have: links with equal weights give
/// [`floor`]. 0 without flows or links.
#[must_use]
pub fn weighted_floor(flows: usize, weights: &[u16]) -> f64 {
    let mean = flows as f64 / sum_of(weights);
    // Whole flows up to the mean, and each one more where the maximum grows least.
    let full = |weight: &u16| (mean * share(*weight)) as usize;
    let mut loads: Vec<usize> = weights.iter().map(full).collect();
    let after = |(load, weight): &(&mut usize, &u16)| (**load as f64 + 1.0) / share(**weight);
    for _ in loads.iter().sum()..flows {
        let links = loads.iter_mut().zip(weights);
        if let Some((load, _)) = links.min_by(|a, b| after(a).total_cmp(&after(b))) {
            *load += 1;
        }
    }
    let loads: Vec<f64> = loads.into_iter().map(|load| load as f64).collect();
    weighted_mmr(&loads, weights)
}

fn share(weight: u16) -> f64 {
    f64::from(weight.max(1))
}

fn sum_of(weights: &[u16]) -> f64 {
    weights.iter().map(|weight| share(*weight)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_the_shares_of_links() {
        assert_eq!(weighted_mmr(&[10.0, 30.0], &[1, 3]), 1.0);
        assert_eq!(weighted_mmr(&[20.0, 20.0], &[1, 3]), 2.0);
        assert_eq!([4, 8, 5, 0].map(|n| weighted_floor(n, &[1, 3])), [1.0, 1.0, 16.0 / 15.0, 0.0]);
        assert_eq!(weighted_floor(3, &[]), 0.0);
        for (flows, links) in (0..70).flat_map(|flows| (1..9).map(move |links| (flows, links))) {
            let found = weighted_floor(flows, &vec![7; links]);
            assert!((found - floor(flows, links)).abs() < 1e-9, "{flows} on {links}: {found}");
        }
    }

    #[test]
    fn known_values() {
        assert_eq!((mmr(&[4.0, 0.0, 0.0, 0.0]), jain(&[4.0, 0.0, 0.0, 0.0])), (4.0, 0.25));
        assert_eq!((mmr(&[2.0; 8]), jain(&[2.0; 8])), (1.0, 1.0));
        assert_eq!((mmr(&[]), jain(&[0.0])), (0.0, 0.0));
        assert_eq!(
            [(8, 4), (8, 16), (9, 4), (0, 4), (4, 0)].map(|(n, of)| floor(n, of)),
            [1.0, 2.0, 4.0 / 3.0, 0.0, 0.0]
        );
    }
}
