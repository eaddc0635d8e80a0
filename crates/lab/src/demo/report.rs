//! The results of the demo, as a table with a verdict and as JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

use experiment::balance::{self, RandomPlacement, expected_mmr_of_bins};
use study::daemon::BINS;
use traffic::spread::Spread;

use super::setup::Setup;

/// The width of a full bar in characters.
const BAR: usize = 7;
/// The width of a policy's column in characters. All lines have less than 100.
const COLUMN: usize = 14;
/// The width of the column of names in characters.
const NAMES: usize = 26;
const TITLE: &str =
    "Load of each link in the traffic's direction, by kernel VXLAN and by each policy of vtepd";
/// Links with a smaller share count as unused, because BGP and BFD use all links.
const USED: f64 = 0.01;

/// The results of all policies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// The conditions of the measurement.
    pub setup: Setup,
    /// The policies in the order of measurement; `kernel` is first.
    pub policies: Vec<PolicyOutcome>,
    /// The links between the data centres.
    #[serde(skip)]
    pub between: Vec<String>,
    /// The links on the path, by tier.
    #[serde(skip)]
    pub tiers: Vec<Vec<String>>,
    /// Whether each router has a hash seed of its own.
    #[serde(skip)]
    pub hash_seeds: bool,
}

/// The result of one policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyOutcome {
    /// `kernel`, `five-tuple`, `qp-bins`, `qp-hash` or `qp-pin`.
    pub name: String,
    /// The number of measurements. It is repeated if BGP changed a path; the figures are those of
    /// the last one.
    #[serde(skip)]
    pub attempts: u32,
    /// The loads of the links. The balance is that of the links between the data centres.
    #[serde(flatten)]
    pub spread: Spread,
}

impl PolicyOutcome {
    fn used(&self, group: &[String]) -> usize {
        group.iter().filter(|link| self.spread.share(link, group) >= USED).count()
    }
}

impl Outcome {
    /// The expected MMR of a random hash, given the number of flows that the policy distinguishes.
    fn expected_mmr(&self, policy: &str) -> f64 {
        let paths = self.between.len();
        match policy {
            "qp-pin" => balance::floor(self.setup.queue_pairs, paths),
            "qp-hash" => RandomPlacement::new(self.setup.queue_pairs, paths).expected_mmr(),
            "qp-bins" => expected_mmr_of_bins(self.setup.queue_pairs, BINS, paths),
            // All queue pairs have one inner source port, so they are one flow.
            _ => paths as f64,
        }
    }

    fn policy(&self, name: &str) -> Option<&PolicyOutcome> {
        self.policies.iter().find(|policy| policy.name == name)
    }

    fn row(
        &self,
        f: &mut fmt::Formatter<'_>,
        name: &str,
        cell: impl Fn(&PolicyOutcome) -> String,
    ) -> fmt::Result {
        write!(f, "  {name:<NAMES$}")?;
        for policy in &self.policies {
            write!(f, "{:>COLUMN$}", cell(policy))?;
        }
        writeln!(f)
    }

    fn verdict(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(kernel), Some(bins), Some(hash)) =
            (self.policy("kernel"), self.policy("qp-bins"), self.policy("qp-hash"))
        else {
            return Ok(());
        };
        let (queue_pairs, paths) = (self.setup.queue_pairs, self.between.len());
        let used = |policy: &PolicyOutcome| policy.used(&self.between);
        writeln!(
            f,
            "Kernel VXLAN hashes the inner addresses and ports. They are the same for all {queue_pairs} \
             queue pairs, which use {} of {paths} paths (MMR {:.2}, the worst is {paths}). vtepd with \
             five-tuple does the same.",
            used(kernel),
            kernel.spread.mmr,
        )?;
        writeln!(
            f,
            "qp-bins spreads the queue pairs over {BINS} source ports, which use {} of {paths} paths \
             (MMR {:.2}).",
            used(bins),
            bins.spread.mmr,
        )?;
        let chance = RandomPlacement::new(queue_pairs, paths);
        let (low, high) = (chance.quantile_mmr(0.025), chance.quantile_mmr(0.975));
        let fits = if (low - 0.01..=high + 0.01).contains(&hash.spread.mmr) {
            "as expected"
        } else {
            "NOT as expected"
        };
        writeln!(
            f,
            "qp-hash gives each queue pair its own source port: {} of {paths} paths, MMR {:.2}, {fits}. \
             An ideal random hash gives {:.2} on average, and {low:.2} to {high:.2} in 95 of 100 cases.",
            used(hash),
            hash.spread.mmr,
            chance.expected_mmr(),
        )?;
        if let Some(pin) = self.policy("qp-pin") {
            let floor = balance::floor(queue_pairs, paths);
            let fits =
                if pin.spread.mmr <= floor + 0.01 { "the lowest" } else { "above the lowest" };
            writeln!(
                f,
                "qp-pin places queue pairs on paths that it knows from probes: {} of {paths} paths, MMR \
                 {:.2}, {fits} that {queue_pairs} whole queue pairs allow ({floor:.2}).",
                used(pin),
                pin.spread.mmr,
            )?;
        }
        let (lost, reordered) = self.policies.iter().fold((0, 0), |(lost, reordered), policy| {
            (lost + policy.spread.lost, reordered + policy.spread.reordered)
        });
        if lost + reordered == 0 {
            writeln!(f, "No frame was lost or reordered with any of them.")
        } else {
            writeln!(
                f,
                "NOT as expected: {lost} frames were lost and {reordered} reordered. Was the machine busy?"
            )
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{TITLE}\n")?;
        self.row(f, "", |policy| match policy.name.as_str() {
            "kernel" => "kernel VXLAN".into(),
            name => name.into(),
        })?;
        let groups = [
            ("uplinks of the sending leaf", self.tiers.first()),
            ("between the data centres", Some(&self.between)),
            ("uplinks of the receiving leaf", self.tiers.last()),
        ];
        for (title, group) in groups.into_iter().filter_map(|(title, group)| Some((title, group?)))
        {
            writeln!(f, "  {title}")?;
            for link in group {
                self.row(f, &format!("  {link}"), |policy| bar(policy.spread.share(link, group)))?;
            }
        }
        writeln!(f, "  balance between the data centres")?;
        self.row(f, "  MMR (1 is even)", |policy| format!("{:.2}", policy.spread.mmr))?;
        self.row(f, "      expected", |policy| format!("{:.2}", self.expected_mmr(&policy.name)))?;
        self.row(f, "  Jain's index (1 is even)", |policy| format!("{:.2}", policy.spread.jain))?;
        self.row(f, "frames reordered", |policy| policy.spread.reordered.to_string())?;
        self.row(f, "frames lost", |policy| policy.spread.lost.to_string())?;
        writeln!(f)?;
        self.verdict(f)?;
        writeln!(
            f,
            "The uplink that kernel VXLAN uses depends on the CPU of the sender, because its route cache \
             is per CPU. The sender runs on CPU 0."
        )?;
        for policy in self.policies.iter().filter(|policy| policy.attempts > 1) {
            let PolicyOutcome { name, attempts, .. } = policy;
            writeln!(
                f,
                "{name} was measured {attempts} times, because BGP changed a path meanwhile. The last \
                 figures are shown."
            )?;
        }
        if !self.hash_seeds {
            writeln!(
                f,
                "This kernel gives all routers the same hash seed (net.ipv4.fib_multipath_hash_seed exists \
                 since Linux 6.11), so tiers polarise: a spine repeats the choice of a leaf that computes the \
                 same hash. Kernel VXLAN then uses half of the paths at most, whatever its ports. vtepd \
                 chooses the uplink of the leaf by its own hash, so its policies are expected to use all \
                 paths."
            )?;
        }
        Ok(())
    }
}

/// A bar with its percentage.
fn bar(share: f64) -> String {
    let eighths = (share * BAR as f64 * 8.0).round() as usize;
    let partial = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let bar = "█".repeat(eighths / 8) + partial.get(eighths % 8).copied().unwrap_or_default();
    format!("{bar:<BAR$} {:>3.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use experiment::balance::{jain, mmr};

    fn policy(name: &str, loads: [u64; 4], lost: u64) -> PolicyOutcome {
        let links = ["a", "b", "c", "d"].map(str::to_owned).into_iter().zip(loads).collect();
        let spread = Spread {
            mmr: mmr(&loads),
            jain: jain(&loads),
            reordered: 0,
            lost,
            duplicated: 0,
            links,
        };
        PolicyOutcome { name: name.into(), attempts: 1, spread }
    }

    fn outcome(hash: [u64; 4], lost: u64) -> Outcome {
        let setup = Setup {
            unix_time: 0,
            kernel: "6.18.0".into(),
            cpus: 2,
            cpu_model: String::new(),
            frr: "8.4.4".into(),
            vtepd: "0.1.0".into(),
            topology: "x.clab.yml".into(),
            seed: 7,
            queue_pairs: 32,
            frames: 1000,
            rate: 1,
            payload: 1024,
        };
        Outcome {
            setup,
            policies: vec![
                policy("kernel", [0, 1000, 3, 0], 0),
                policy("five-tuple", [0, 0, 1000, 0], 0),
                policy("qp-bins", [500, 0, 500, 0], 0),
                policy("qp-hash", hash, lost),
                policy("qp-pin", [250; 4], 0),
            ],
            between: ["a", "b", "c", "d"].map(str::to_owned).into(),
            tiers: vec![vec![], ["a", "b", "c", "d"].map(str::to_owned).into(), vec![]],
            hash_seeds: true,
        }
    }

    #[test]
    fn the_verdict_tells_good_from_bad() {
        let good = outcome([300, 250, 200, 250], 0).to_string();
        assert!(
            good.contains("1 of 4 paths (MMR 3.99") && good.contains("2 of 4 paths (MMR 2.00"),
            "{good}"
        );
        assert!(
            good.contains("MMR 1.20, as expected") && good.contains("No frame was lost"),
            "{good}"
        );
        assert!(good.contains("MMR 1.00, the lowest that 32"), "{good}");
        assert!(!good.contains("NOT"), "{good}");
        let bad = outcome([1000, 0, 0, 0], 7).to_string();
        assert!(
            bad.contains("MMR 4.00, NOT as expected") && bad.contains("7 frames were lost"),
            "{bad}"
        );
        assert!(!bad.contains("was measured"), "{bad}");
        let mut disturbed = outcome([300, 250, 200, 250], 0);
        disturbed.policies[1].attempts = 2;
        assert!(disturbed.to_string().contains("five-tuple was measured 2 times"), "{disturbed}");
        let polarised = Outcome { hash_seeds: false, ..outcome([1, 1, 1, 1], 0) }.to_string();
        assert!(polarised.contains("polarise"), "{polarised}");
    }

    /// The excerpt in the README is the table of the committed figures.
    #[test]
    fn the_excerpt_in_the_readme_is_up_to_date() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let figures = root.join("deploy/containerlab/scaleacross/figures.json");
        let figures = crate::demo::figures::Figures::load(&figures).unwrap();
        let links = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let between = links(&["spine1:dci1", "spine1:dci2", "spine2:dci1", "spine2:dci2"]);
        let outcome = Outcome {
            setup: figures.setup,
            policies: figures.policies,
            tiers: vec![
                links(&["leaf1:up1", "leaf1:up2"]),
                Vec::clone(&between),
                links(&["leaf4:up1", "leaf4:up2"]),
            ],
            between,
            hash_seeds: true,
        };
        let text = outcome.to_string();
        let table = text.trim_start().split_once("\n\nKernel").unwrap().0;
        let widest = table.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{widest:?}");
        let readme = root.join("README.md");
        let page = std::fs::read_to_string(&readme).unwrap();
        let (start, rest) = page.split_once("\n```\nLoad of each link").unwrap();
        let (_, end) = rest.split_once("```\n").unwrap();
        let expected = format!("{start}\n```\n{table}\n```\n{end}");
        if std::env::var_os("VTEPD_UPDATE_DOCS").is_some() {
            std::fs::write(&readme, &expected).unwrap();
        }
        assert_eq!(page, expected, "VTEPD_UPDATE_DOCS=1 writes it");
    }

    #[test]
    fn json_has_the_figures_and_their_setup_and_nothing_else() {
        let json = serde_json::to_value(outcome([1, 1, 1, 1], 0)).unwrap();
        assert_eq!(json.as_object().unwrap().len(), 2);
        assert_eq!(
            (&json["setup"]["kernel"], &json["setup"]["seed"]),
            (&"6.18.0".into(), &7.into())
        );
        let kernel = &json["policies"][0];
        assert_eq!(kernel["name"], "kernel");
        assert_eq!(kernel["links"]["b"], 1000);
        assert_eq!((kernel["reordered"].as_u64(), kernel["lost"].as_u64()), (Some(0), Some(0)));
        assert!((kernel["mmr"].as_f64().unwrap() - 3.988).abs() < 0.001);
        assert_eq!(json["policies"][3]["jain"], 1.0);
    }

    #[test]
    fn bars_have_one_width() {
        for share in [0.0, 0.004, 0.0124, 0.5, 0.999, 1.0] {
            assert_eq!(bar(share).chars().count(), BAR + 6, "{share}");
        }
        let (full, empty) = ("█".repeat(BAR), " ".repeat(BAR));
        assert!(bar(1.0).starts_with(&full) && bar(0.0).starts_with(&empty));
    }
}
