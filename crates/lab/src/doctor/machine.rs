//! The machine: processors, memory, the kernel's features, FRR, and what else runs.

use std::path::Path;
use std::time::Duration;

use experiment::units::Name;
use fabric::netns::NetnsError;
use fabric::{Fabric, Namespace};
use nix::sys::statvfs::statvfs;

use super::Finding;
use study::machine;

const MACHINE: &str = "machine";
/// Processors that are busier than this before a measurement disturb it.
const BUSY: f64 = 0.25;
/// How long their load is measured. The average load of the kernel is that of a minute, in which what
/// ended before counts, such as the build of these programs.
const MEASURED: Duration = Duration::from_millis(500);
/// The seed of the routers' hash (Linux 6.11).
const HASH_SEED: &str = "/proc/sys/net/ipv4/fib_multipath_hash_seed";
/// The most entries that the neighbour tables of all namespaces have together.
const NEIGHBOURS: &str = "/proc/sys/net/ipv4/neigh/default/gc_thresh3";
/// The command that makes room in them.
const MORE: &str = "sysctl -w net.ipv4.neigh.default.gc_thresh3=16384";
/// zebra's module for FPM, where Debian and FRR's own packages install it.
const FPM_MODULES: [&str; 3] = [
    "/usr/lib/frr/modules/dplane_fpm_nl.so",
    "/usr/lib/x86_64-linux-gnu/frr/modules/dplane_fpm_nl.so",
    "/usr/lib/aarch64-linux-gnu/frr/modules/dplane_fpm_nl.so",
];

/// A kernel feature that some fabrics need: what it is for, and the command that shows it.
struct Feature {
    name: &'static str,
    use_: &'static str,
    /// A command in a namespace that has what the ones before it have made.
    command: &'static [&'static str],
}

const FEATURES: [Feature; 5] = [
    Feature {
        name: "vxlan",
        use_: "no leaf can forward",
        command: &["ip", "link", "add", "vxlan0", "type", "vxlan", "id", "1", "dstport", "4789"],
    },
    Feature {
        name: "vrf",
        use_: "fabrics with symmetric IRB do not start",
        command: &["ip", "link", "add", "vrf0", "type", "vrf", "table", "10"],
    },
    Feature {
        name: "dummy",
        use_: "'ip link add type dummy' in files fails; dummy links of a topology work",
        command: &["ip", "link", "add", "dummy0", "type", "dummy"],
    },
    Feature {
        name: "8021q",
        use_: "hosts have no VLAN interfaces",
        command: &["ip", "link", "add", "link", "lo", "vlan0", "type", "vlan", "id", "5"],
    },
    Feature {
        name: "sch_netem",
        use_: "files that delay links by tc do not work; 'lab wan' and 'lab link impair' do",
        command: &["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"],
    },
];

/// What may disturb what is measured.
#[derive(Debug, Clone)]
struct Conditions {
    cpus: usize,
    /// The busy share of all CPUs, 0 to 1.
    busy: f64,
    memory_mib: u64,
    disk_mib: u64,
    hash_seed: bool,
    /// Fabrics beside the one that is asked about.
    others: Vec<Name>,
}

/// What fabrics need of the machine.
#[derive(Debug, Clone)]
struct Abilities {
    /// The limit on neighbour entries; 0 in a network namespace that does not show it.
    neighbours: u64,
    kernel: String,
    /// Indices in [`FEATURES`], or why they could not be tried.
    missing: Result<Vec<usize>, String>,
    frr: String,
    fpm_module: bool,
}

/// What on this machine may disturb an experiment with the fabric `own`. `results` is the directory
/// for the results, which need not exist.
#[must_use]
pub fn conditions(results: &Path, own: Option<&Name>) -> Vec<Finding> {
    Conditions::read(results, own).judge()
}

/// What fabrics need of this machine. It tries features of the kernel in a namespace of its own.
#[must_use]
pub fn abilities() -> Vec<Finding> {
    Abilities::read().judge()
}

fn first_word<T: std::str::FromStr + Default>(path: &str) -> T {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// The busy share of all CPUs, 0 to 1, in [`MEASURED`].
fn busy() -> f64 {
    let before = machine::cpu_time();
    std::thread::sleep(MEASURED);
    machine::cpu_time().busy_since(&before)
}

impl Conditions {
    fn read(results: &Path, own: Option<&Name>) -> Self {
        let there = std::path::absolute(results).unwrap_or_default();
        let there = there.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        let free = statvfs(there).map(|disk| disk.blocks_available() * disk.fragment_size());
        Self {
            cpus: machine::cpus(),
            busy: busy(),
            memory_mib: machine::memory_available_mib(),
            disk_mib: free.unwrap_or(0) >> 20,
            hash_seed: Path::new(HASH_SEED).exists(),
            others: Fabric::list().into_iter().filter(|name| Some(name) != own).collect(),
        }
    }

    fn judge(&self) -> Vec<Finding> {
        vec![cores(self), load(self), memory(self), disk(self), seeds(self), others(self)]
    }
}

impl Abilities {
    fn read() -> Self {
        Self {
            neighbours: first_word(NEIGHBOURS),
            kernel: machine::kernel(),
            missing: missing().map_err(|error| error.to_string()),
            frr: machine::frr(),
            fpm_module: FPM_MODULES.iter().any(|path| Path::new(path).exists()),
        }
    }

    fn judge(&self) -> Vec<Finding> {
        let mut findings: Vec<Finding> = neighbours(self.neighbours).into_iter().collect();
        match &self.missing {
            Ok(missing) => {
                let feature = |(index, feature)| self.feature(feature, missing.contains(&index));
                findings.extend(FEATURES.iter().enumerate().map(feature));
            }
            Err(error) => findings.push(Finding::fault(
                MACHINE,
                "kernel",
                format!("its features cannot be tried: {error}"),
                "apt-get install iproute2",
            )),
        }
        findings.extend(frr(self));
        findings
    }

    fn feature(&self, feature: &Feature, is_missing: bool) -> Finding {
        if !is_missing {
            return Finding::ok(MACHINE, feature.name, "there");
        }
        let text = format!("Linux {} lacks it: {}", self.kernel, feature.use_);
        let remedy = format!("modprobe {}, or another kernel", feature.name);
        Finding::limit(MACHINE, feature.name, text, &remedy)
    }
}

/// The indices of the features that this kernel lacks.
fn missing() -> Result<Vec<usize>, NetnsError> {
    let namespace = Namespace::create(format!("lab-doctor-{}", std::process::id()))?;
    let mut missing = Vec::new();
    for (index, feature) in FEATURES.iter().enumerate() {
        if !namespace.output(feature.command)?.status.success() {
            missing.push(index);
        }
    }
    Ok(missing)
}

fn seeds(conditions: &Conditions) -> Finding {
    if conditions.hash_seed {
        return Finding::ok(MACHINE, "hash seeds", "each router can have a hash of its own");
    }
    Finding::limit(
        MACHINE,
        "hash seeds",
        "all routers compute the same hash, so each tier repeats the choice of the one before, and \
         some paths stay unused",
        "a kernel from Linux 6.11 on (net.ipv4.fib_multipath_hash_seed)",
    )
}

fn others(conditions: &Conditions) -> Finding {
    let names: Vec<&str> = conditions.others.iter().map(Name::as_str).collect();
    if names.is_empty() {
        return Finding::ok(MACHINE, "other fabrics", "none");
    }
    let text = format!("{} also run, and take processor time", names.join(", "));
    Finding::limit(MACHINE, "other fabrics", text, "lab down NAME")
}

fn cores(conditions: &Conditions) -> Finding {
    match conditions.cpus {
        0 | 1 => Finding::limit(
            MACHINE,
            "processors",
            "1: senders, routers and vtepd take turns, so times and rates say little",
            "a machine with 2 or more",
        ),
        cpus => Finding::ok(MACHINE, "processors", cpus.to_string()),
    }
}

fn load(conditions: &Conditions) -> Finding {
    let text = format!("{:.0} % of the processors busy", conditions.busy * 100.0);
    if conditions.busy < BUSY {
        return Finding::ok(MACHINE, "load", text);
    }
    Finding::limit(
        MACHINE,
        "load",
        format!("{text}: that disturbs what is measured"),
        "wait, or stop what 'top' shows",
    )
}

fn memory(conditions: &Conditions) -> Finding {
    let text = format!("{} MiB available", conditions.memory_mib);
    // A GiB for a fabric is what the tests count on, too (`at_once` in tests/suite).
    if conditions.memory_mib >= 2048 {
        return Finding::ok(MACHINE, "memory", text);
    }
    let text = format!("{text}: fabrics with many routers may not fit");
    Finding::limit(MACHINE, "memory", text, "a smaller fabric")
}

fn disk(conditions: &Conditions) -> Finding {
    let text = format!("{} MiB free for results", conditions.disk_mib);
    if conditions.disk_mib >= 256 {
        return Finding::ok(MACHINE, "disk", text);
    }
    Finding::fault(MACHINE, "disk", text, "free space, or results elsewhere (--out)")
}

/// What to do before a fabric with so many links is started, if it could fill the machine's
/// neighbour table. `None`: there is room.
#[must_use]
pub fn neighbours_beyond(links: usize) -> Option<String> {
    let used = std::fs::read_to_string("/proc/net/stat/arp_cache").unwrap_or_default();
    beyond(links as u64, entries(&used), first_word(NEIGHBOURS))
}

/// The number of entries in `/proc/net/stat/arp_cache`: the first word of each line behind the
/// heading is that of all namespaces, as a hexadecimal number.
fn entries(statistics: &str) -> u64 {
    let word = statistics.lines().nth(1).and_then(|line| line.split_whitespace().next());
    word.and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or_default()
}

fn beyond(links: u64, used: u64, most: u64) -> Option<String> {
    let needed = 2 * links;
    (most > 0 && used + needed > most).then(|| {
        format!(
            "this fabric needs about {needed} neighbour entries, and the machine has room for {most} \
             in all namespaces together, of which {used} are used: packets may get lost. '{MORE}' \
             makes room"
        )
    })
}

/// The kernel bounds the neighbour tables of all namespaces together (`neigh_alloc()` in
/// net/core/neighbour.c).
fn neighbours(most: u64) -> Option<Finding> {
    let text = format!("{most} entries in all namespaces together");
    // Enough for 64 leaves and 8 spines, with an entry for each end of a link.
    if most >= 2 * 64 * (8 + 1) {
        return Some(Finding::ok(MACHINE, "neighbours", text));
    }
    (most > 0).then(|| {
        Finding::limit(
            MACHINE,
            "neighbours",
            format!("{text}: fabrics with more than about {} links lose packets", most / 2),
            MORE,
        )
    })
}

fn frr(abilities: &Abilities) -> Vec<Finding> {
    if abilities.frr.is_empty() {
        let text = "not installed: no fabric with routers starts";
        return vec![Finding::fault(MACHINE, "FRR", text, "apt-get install frr")];
    }
    let version = Finding::ok(MACHINE, "FRR", abilities.frr.clone());
    let module = if abilities.fpm_module {
        Finding::ok(MACHINE, "FPM", "zebra has the module dplane_fpm_nl")
    } else {
        Finding::fault(
            MACHINE,
            "FPM",
            "zebra lacks the module dplane_fpm_nl: vtepd learns no routes from it",
            "the package of FRR that has it (Debian: frr)",
        )
    };
    vec![version, module]
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    /// A change, and the check and the state of what is found then.
    type Case = (fn(&mut (Conditions, Abilities)), &'static str, State);

    fn good() -> (Conditions, Abilities) {
        let conditions = Conditions {
            cpus: 4,
            busy: 0.1,
            memory_mib: 8000,
            disk_mib: 8000,
            hash_seed: true,
            others: Vec::new(),
        };
        let abilities = Abilities {
            neighbours: 16384,
            kernel: "6.12.0".to_owned(),
            missing: Ok(Vec::new()),
            frr: "10.1".to_owned(),
            fpm_module: true,
        };
        (conditions, abilities)
    }

    /// What is not good. All of it has a remedy.
    fn found((conditions, abilities): &(Conditions, Abilities)) -> Vec<(&'static str, State)> {
        let all = conditions.judge().into_iter().chain(abilities.judge());
        let bad = all.filter(|finding| finding.state != State::Ok);
        bad.inspect(|finding| assert!(!finding.remedy.is_empty(), "{finding:?}"))
            .map(|finding| (finding.check, finding.state))
            .collect()
    }

    #[test]
    fn each_lack_is_found_alone() {
        assert_eq!(found(&good()), []);
        let cases: [Case; 10] = [
            (|(of, _)| of.cpus = 1, "processors", State::Limit),
            (|(of, _)| of.busy = 0.4, "load", State::Limit),
            (|(of, _)| of.memory_mib = 900, "memory", State::Limit),
            (|(of, _)| of.disk_mib = 20, "disk", State::Fault),
            (|(of, _)| of.hash_seed = false, "hash seeds", State::Limit),
            (|(of, _)| of.others = vec!["other".parse().unwrap()], "other fabrics", State::Limit),
            (|(_, of)| of.neighbours = 1024, "neighbours", State::Limit),
            (|(_, of)| of.missing = Ok(vec![1]), "vrf", State::Limit),
            (|(_, of)| of.missing = Err("no ip".to_owned()), "kernel", State::Fault),
            (|(_, of)| of.fpm_module = false, "FPM", State::Fault),
        ];
        for (change, check, state) in cases {
            let mut facts = good();
            change(&mut facts);
            assert_eq!(found(&facts), [(check, state)]);
        }
        let mut unknown = good();
        unknown.1.neighbours = 0;
        assert_eq!(found(&unknown), []);
        let mut without = good();
        (without.1.frr, without.1.fpm_module) = (String::new(), false);
        assert_eq!(found(&without), [("FRR", State::Fault)]);
    }
}
