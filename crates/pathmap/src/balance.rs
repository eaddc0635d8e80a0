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

#[cfg(test)]
mod tests {
    use super::*;

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
