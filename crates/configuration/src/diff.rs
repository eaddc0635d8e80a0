//! The differences between two configurations, for a reload.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use control::VniSettings;
use tables::Rebalance;
use wire::Vni;

use crate::{Configuration, Probing};

/// A setting that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key, as in the file.
    pub key: String,
    /// Its old value.
    pub old: String,
    /// Its new value.
    pub new: String,
    /// Whether the change takes effect at the next start only.
    pub at_next_start: bool,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, old, new, at_next_start } = self;
        let when = if *at_next_start { " (at the next start only)" } else { "" };
        write!(f, "{key}: {old} → {new}{when}")
    }
}

/// The settings that differ, by key. Each VNI is compared with its effective values, whether they
/// come from its own section or from the defaults.
#[must_use]
pub fn between(old: &Configuration, new: &Configuration) -> Vec<Change> {
    let vnis: BTreeSet<Vni> =
        old.settings.vnis.keys().chain(new.settings.vnis.keys()).copied().collect();
    let (old, new) = (values(old, &vnis), values(new, &vnis));
    let differing = new.into_iter().zip(old).filter(|((_, new), (_, old))| new != old);
    differing
        .map(|((key, new), (_, old))| Change {
            at_next_start: [
                "takeover.hook",
                "takeover.expedited-rcu",
                "takeover.stall-limit-ms",
                "takeover.busy-poll",
                "takeover.workers",
                "takeover.cpus",
                "takeover.gso",
                "takeover.realtime",
                "fpm.listen",
                "fpm.unsafe",
                "fpm.users",
                "metrics.",
                "probing",
                "spraying",
                "standalone",
                "api.",
            ]
            .iter()
            .any(|start| key.starts_with(start)),
            key,
            old,
            new,
        })
        .collect()
}

/// All values by key. The keys are the same for the same set of VNIs.
fn values(configuration: &Configuration, vnis: &BTreeSet<Vni>) -> BTreeMap<String, String> {
    let Configuration {
        settings,
        standalone,
        hook,
        expedited_rcu,
        stall_limit,
        worker,
        cpus,
        fpm,
        probing,
        metrics,
        api,
    } = configuration;
    let list =
        |vnis: &BTreeSet<Vni>| vnis.iter().map(Vni::to_string).collect::<Vec<_>>().join(", ");
    let off = || "off".to_owned();
    let cpus = if cpus.is_empty() { "chosen".to_owned() } else { format!("{cpus:?}") };
    let mut values = BTreeMap::from(
        [
            ("takeover.vnis", settings.include.as_ref().map_or_else(|| "all".to_owned(), list)),
            ("takeover.exclude", format!("[{}]", list(&settings.exclude))),
            ("takeover.bridge-bypass", settings.bypass.to_string()),
            ("takeover.route-per-frame", format!("{:?}", settings.route_per_frame).to_lowercase()),
            ("takeover.hook", format!("{hook:?}").to_lowercase()),
            ("takeover.expedited-rcu", expedited_rcu.to_string()),
            ("takeover.stall-limit-ms", stall_limit.as_millis().to_string()),
            ("takeover.busy-poll", worker.busy_poll.to_string()),
            ("takeover.workers", worker.workers.to_string()),
            ("takeover.cpus", cpus),
            ("takeover.gso", worker.gso.to_string()),
            ("takeover.realtime", worker.realtime.to_string()),
            ("underlay.rebalance", (settings.rebalance == Rebalance::On).to_string()),
            ("entropy.seed", settings.seed.to_string()),
            ("learning.total", settings.learning.total.to_string()),
            ("learning.vteps", settings.learning.vteps.to_string()),
            ("learning.moves", settings.learning.moves.to_string()),
            ("fpm.listen", fpm.address.map_or_else(off, |address| address.to_string())),
            ("fpm.stale-time", settings.stale_time.0.as_secs().to_string()),
            ("fpm.unsafe", fpm.accept_hazard.to_string()),
            ("fpm.users", fpm_users(&fpm.users)),
            ("probing", probing.as_ref().map_or_else(off, Probing::to_string)),
            ("spraying", spraying(probing.as_ref())),
            ("standalone", standalone.to_string()),
            ("metrics.listen", metrics.to_string()),
            ("api.listen", api.as_ref().map_or_else(off, ToString::to_string)),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    let mut of = |section: &str, strict: &str, learning: &str, vni: &VniSettings| {
        let VniSettings {
            datapath,
            policy,
            bins,
            source_ports,
            flow_label,
            ttl,
            strict_vtep,
            addresses,
        } = vni;
        let ttl = ttl.map_or_else(|| "the netdev's".to_owned(), |ttl| ttl.to_string());
        values.extend([
            (format!("{section}.policy"), policy.to_string()),
            (format!("{section}.bins"), bins.to_string()),
            (format!("{section}.source-ports"), source_ports.to_string()),
            (format!("{section}.flow-label"), flow_label.name().to_owned()),
            (format!("{section}.ttl"), ttl),
            (format!("{strict}.datapath"), datapath.name().to_owned()),
            (format!("{strict}.strict-vtep"), strict_vtep.to_string()),
            (format!("{learning}.addresses"), addresses.to_string()),
        ]);
    };
    of("entropy", "takeover", "learning", &settings.default);
    for vni in vnis {
        let section = format!("vni.{vni}");
        of(&section, &section, &section, settings.of(*vni));
    }
    values
}

fn spraying(probing: Option<&Probing>) -> String {
    let Some(spray) = probing.and_then(|probing| probing.spray) else { return "off".to_owned() };
    let order = if spray.restores_order { "psn" } else { "none" };
    let marks = if spray.hides_marks { "most" } else { "all" };
    format!("{}, order {order}, {marks} marks", spray.scheme)
}

fn fpm_users(users: &fpm::Users) -> String {
    let named = users.named.iter().map(u32::to_string);
    let anybody = users.anybody.then(|| "anybody".to_owned());
    format!("[{}]", named.chain(anybody).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::load;

    fn changes(old: &str, new: &str) -> Vec<String> {
        between(&load(old, &[]).unwrap(), &load(new, &[]).unwrap())
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn what_differs_is_named_with_both_values_and_nothing_else_is() {
        assert_eq!(changes("[entropy]\nseed = 0\n", ""), [""; 0]);
        assert_eq!(
            changes(
                "[entropy]\nseed = 3\n",
                "[entropy]\nbins = 8\n[fpm]\nstale-time = 9\n[takeover]\nvnis = [5, 6]\n"
            ),
            [
                "entropy.bins: 4 → 8",
                "entropy.seed: 3 → 0",
                "fpm.stale-time: 120 → 9",
                "takeover.vnis: all → 5, 6"
            ]
        );
        assert_eq!(
            changes(
                "",
                "[vni.5]\npolicy = \"five-tuple\"\nttl = 9\nstrict-vtep = true\nflow-label = \"netdev\"\n"
            ),
            [
                "vni.5.flow-label: source-port → netdev",
                "vni.5.policy: qp-hash → five-tuple",
                "vni.5.strict-vtep: false → true",
                "vni.5.ttl: the netdev's → 9"
            ]
        );
        assert_eq!(
            changes("[vni.5]\n", "[learning]\naddresses = 7\nmoves = 1\n"),
            [
                "learning.addresses: 16384 → 7",
                "learning.moves: 5 → 1",
                "vni.5.addresses: 16384 → 7"
            ]
        );
        assert_eq!(
            changes("[vni.5]\nbins = 2\n", "[entropy]\npolicy = \"qp-bins\"\n[vni.5]\nbins = 2\n"),
            ["entropy.policy: qp-hash → qp-bins", "vni.5.policy: qp-hash → qp-bins"]
        );
    }

    #[test]
    fn what_waits_for_the_next_start_says_so() {
        assert_eq!(
            changes(
                "[fpm]\nenabled = false\n",
                "[api]\nlisten = \"@x\"\n[metrics]\nlisten = \"127.0.0.1:1\"\n[takeover]\nhook = \"tcx\"\n"
            ),
            [
                "api.listen: @vtepd-api → @x (at the next start only)",
                "fpm.listen: off → 127.0.0.1:2620 (at the next start only)",
                "metrics.listen: 127.0.0.1:9472 → 127.0.0.1:1 (at the next start only)",
                "takeover.hook: auto → tcx (at the next start only)",
            ]
        );
    }
}
