//! Reads the demo's figures, to compare another measurement of the same fabric with them.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::report::PolicyOutcome;
use super::setup::Setup;
use traffic::spread::Spread;

/// The tolerance of shares, MMR and index. BGP and BFD add frames to the links.
const NOISE: f64 = 0.02;

/// The contents of a file that `lab demo --json` has written.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Figures {
    /// The conditions of the measurement.
    pub setup: Setup,
    /// The result of each policy.
    pub policies: Vec<PolicyOutcome>,
}

/// The file cannot be read or parsed.
#[derive(Debug, thiserror::Error)]
#[error("{} does not hold the demo's figures (lab demo --json)", .path.display())]
pub struct FiguresError {
    path: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Figures {
    /// Reads a file.
    ///
    /// # Errors
    /// [`FiguresError`] if the file cannot be read or has another format.
    pub fn load(path: &Path) -> Result<Self, FiguresError> {
        let error = |source: Box<dyn std::error::Error + Send + Sync>| FiguresError {
            path: path.to_owned(),
            source,
        };
        let text = std::fs::read(path).map_err(|cause| error(cause.into()))?;
        serde_json::from_slice(&text).map_err(|cause| error(cause.into()))
    }

    /// The differences between a measurement and these figures, as messages. The shares of the
    /// links in `tier` are compared in sorted order.
    #[must_use]
    pub fn differences(
        &self,
        policy: &str,
        queue_pairs: usize,
        spread: &Spread,
        tier: &[String],
    ) -> Vec<String> {
        if queue_pairs != self.setup.queue_pairs {
            let own = self.setup.queue_pairs;
            return vec![format!(
                "the demo's figures are of {own} queue pairs, not of {queue_pairs}"
            )];
        }
        let Some(PolicyOutcome { spread: demo, .. }) =
            self.policies.iter().find(|outcome| outcome.name == policy)
        else {
            return vec![format!("the demo has no figures of {policy}")];
        };
        let differ = |a: f64, b: f64| (a - b).abs() > NOISE;
        let mut found = Vec::new();
        for (name, own, other) in
            [("MMR", spread.mmr, demo.mmr), ("Jain's index", spread.jain, demo.jain)]
        {
            if differ(own, other) {
                found.push(format!("{policy}: {name} {own:.2}, the demo's is {other:.2}"));
            }
        }
        let (own, other) = (shares(spread, tier), shares(demo, tier));
        if own.iter().zip(&other).any(|(own, other)| differ(*own, *other)) {
            let text = |shares: &[f64]| {
                shares
                    .iter()
                    .map(|share| format!("{:.0} %", share * 100.0))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let links = tier.join(", ");
            found.push(format!(
                "{policy}: shares of {links} are {}, the demo's {}",
                text(&own),
                text(&other)
            ));
        }
        found
    }
}

/// The shares of the links, largest first.
fn shares(spread: &Spread, tier: &[String]) -> Vec<f64> {
    let mut shares: Vec<f64> = tier.iter().map(|link| spread.share(link, tier)).collect();
    shares.sort_by(|a, b| b.total_cmp(a));
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use experiment::balance::{jain, mmr};

    fn spread(loads: [u64; 4]) -> Spread {
        let links = tier().into_iter().zip(loads).collect();
        Spread { mmr: mmr(&loads), jain: jain(&loads), reordered: 0, lost: 0, duplicated: 0, links }
    }

    fn tier() -> Vec<String> {
        ["a", "b", "c", "d"].map(str::to_owned).into()
    }

    #[test]
    fn the_same_but_for_noise_and_order() {
        let file = format!(
            "{}/../../deploy/containerlab/scaleacross/figures.json",
            env!("CARGO_MANIFEST_DIR")
        );
        let mut figures = Figures::load(file.as_ref()).unwrap();
        assert_eq!(figures.setup.seed, experiment::random::SEED);
        let policies: Vec<&str> =
            figures.policies.iter().map(|policy| policy.name.as_str()).collect();
        assert_eq!(policies, ["kernel", "five-tuple", "qp-bins", "qp-hash", "qp-pin"]);
        figures.policies = vec![PolicyOutcome {
            name: "x".into(),
            attempts: 1,
            spread: spread([310, 310, 90, 280]),
        }];
        let of = |policy, queue_pairs, loads| {
            figures.differences(policy, queue_pairs, &spread(loads), &tier())
        };
        assert_eq!(of("x", 32, [90, 311, 309, 283]), [""; 0]);
        assert_eq!(of("x", 32, [250, 250, 250, 250]).len(), 3, "MMR, Jain's index and shares");
        assert_eq!(of("x", 32, [330, 310, 70, 280]).len(), 3);
        assert!(of("x", 16, [310, 310, 90, 280])[0].contains("of 32 queue pairs, not of 16"));
        assert!(of("y", 32, [310, 310, 90, 280])[0].contains("no figures of y"));
    }
}
