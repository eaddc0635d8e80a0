//! The machine: processors, memory, the kernel's features, FRR, and what else runs.

use std::path::Path;

use experiment::units::Name;
use fabric::{Fabric, Namespace};
use nix::sys::statvfs::statvfs;

use super::Finding;
use crate::machine;

const MACHINE: &str = "machine";
/// The seed of the routers' hash (Linux 6.11).
const HASH_SEED: &str = "/proc/sys/net/ipv4/fib_multipath_hash_seed";
/// The most entries that the neighbour tables of all namespaces have together.
const NEIGHBOURS: &str = "/proc/sys/net/ipv4/neigh/default/gc_thresh3";
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
    /// A command in an empty namespace.
    command: &'static [&'static str],
}

const FEATURES: [Feature; 5] = [
    Feature {
        name: "vxlan",
        use_: "no leaf can forward",
        command: &["ip", "link", "add", "doctor", "type", "vxlan", "id", "1", "dstport", "4789"],
    },
    Feature {
        name: "vrf",
        use_: "fabrics with symmetric IRB do not start",
        command: &["ip", "link", "add", "doctor", "type", "vrf", "table", "10"],
    },
    Feature {
        name: "dummy",
        use_: "topology files with dummy links do not start",
        command: &["ip", "link", "add", "doctor", "type", "dummy"],
    },
    Feature {
        name: "8021q",
        use_: "hosts have no VLAN interfaces",
        command: &["ip", "link", "add", "link", "lo", "doctor", "type", "vlan", "id", "5"],
    },
    Feature {
        name: "sch_netem",
        use_: "files that delay links by tc do not work; 'lab wan' and 'lab link impair' do",
        command: &["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"],
    },
];

/// What was read of the machine.
#[derive(Debug, Clone, Default)]
struct Facts {
    cpus: usize,
    /// Processes that ran or waited to run, on average over the last minute.
    load: f64,
    memory_mib: u64,
    disk_mib: u64,
    hash_seed: bool,
    /// The limit on neighbour entries.
    neighbours: u64,
    /// Indices in [`FEATURES`].
    missing: Vec<usize>,
    kernel: String,
    frr: String,
    fpm_module: bool,
    fabrics: Vec<Name>,
}

/// What this machine can do. `results` is a directory on the file system that takes the results.
#[must_use]
pub fn machine(results: &Path) -> Vec<Finding> {
    judge(&read(results))
}

fn read(results: &Path) -> Facts {
    let number = |path: &str| -> Option<String> {
        let text = std::fs::read_to_string(path).ok()?;
        text.split_whitespace().next().map(str::to_owned)
    };
    // The directory of the results is created later.
    let there = results.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let disk = statvfs(if there.as_os_str().is_empty() { Path::new(".") } else { there });
    Facts {
        cpus: machine::cpus(),
        load: number("/proc/loadavg").and_then(|load| load.parse().ok()).unwrap_or_default(),
        memory_mib: machine::memory_available_mib(),
        disk_mib: disk.map_or(0, |disk| (disk.blocks_available() * disk.fragment_size()) >> 20),
        hash_seed: Path::new(HASH_SEED).exists(),
        neighbours: number(NEIGHBOURS).and_then(|text| text.parse().ok()).unwrap_or_default(),
        missing: missing(),
        kernel: machine::kernel(),
        frr: machine::frr(),
        fpm_module: FPM_MODULES.iter().any(|path| Path::new(path).exists()),
        fabrics: Fabric::list(),
    }
}

/// The indices of the features that this kernel lacks. Each is tried in a namespace of its own.
fn missing() -> Vec<usize> {
    let is_missing = |(index, feature): (usize, &Feature)| {
        let namespace = Namespace::create(format!("lab-doctor{index}-{}", std::process::id()));
        let output = namespace.and_then(|namespace| namespace.output(feature.command));
        !output.is_ok_and(|output| output.status.success())
    };
    FEATURES.iter().enumerate().filter(|of| is_missing(*of)).map(|(index, _)| index).collect()
}

fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![cores(facts), load(facts), memory(facts), disk(facts)];
    findings.push(if facts.hash_seed {
        Finding::ok(MACHINE, "hash seeds", "each router can have a hash of its own")
    } else {
        Finding::limit(
            MACHINE,
            "hash seeds",
            "all routers compute the same hash, so each tier repeats the choice of the one before, \
             and some paths stay unused",
            "a kernel from Linux 6.11 on (net.ipv4.fib_multipath_hash_seed)",
        )
    });
    findings.push(neighbours(facts.neighbours));
    for (index, feature) in FEATURES.iter().enumerate() {
        findings.push(if facts.missing.contains(&index) {
            let text = format!("Linux {} lacks it: {}", facts.kernel, feature.use_);
            let remedy = format!("modprobe {}, or another kernel", feature.name);
            Finding::limit(MACHINE, feature.name, text, &remedy)
        } else {
            Finding::ok(MACHINE, feature.name, "there")
        });
    }
    findings.extend(frr(facts));
    findings.push(match facts.fabrics.as_slice() {
        [] => Finding::ok(MACHINE, "other fabrics", "none"),
        names => {
            let names: Vec<&str> = names.iter().map(Name::as_str).collect();
            Finding::limit(
                MACHINE,
                "other fabrics",
                format!("{} run, and take processor time from each other", names.join(", ")),
                "lab down NAME",
            )
        }
    });
    findings
}

fn cores(facts: &Facts) -> Finding {
    match facts.cpus {
        0 | 1 => Finding::limit(
            MACHINE,
            "processors",
            "1: senders, routers and vtepd take turns, so times and rates say little",
            "a machine with 2 or more",
        ),
        cpus => Finding::ok(MACHINE, "processors", cpus.to_string()),
    }
}

fn load(facts: &Facts) -> Finding {
    let text = format!("{:.1} processes on average over the last minute", facts.load);
    if facts.load < 0.5 * facts.cpus as f64 {
        return Finding::ok(MACHINE, "load", text);
    }
    Finding::limit(
        MACHINE,
        "load",
        format!("{text}: they disturb what is measured"),
        "wait, or stop what 'top' shows",
    )
}

fn memory(facts: &Facts) -> Finding {
    // A router with FRR takes 30 to 60 MiB.
    let text = format!("{} MiB available", facts.memory_mib);
    if facts.memory_mib >= 2048 {
        return Finding::ok(MACHINE, "memory", text);
    }
    let text = format!("{text}: enough for some {} routers with FRR", facts.memory_mib / 64);
    Finding::limit(MACHINE, "memory", text, "a smaller fabric")
}

fn disk(facts: &Facts) -> Finding {
    let text = format!("{} MiB free for results", facts.disk_mib);
    if facts.disk_mib >= 256 {
        return Finding::ok(MACHINE, "disk", text);
    }
    Finding::fault(MACHINE, "disk", text, "free space, or results elsewhere (--out)")
}

/// The kernel bounds the neighbour tables of all namespaces together (`neigh_alloc()` in
/// net/core/neighbour.c).
fn neighbours(most: u64) -> Finding {
    let text = format!("{most} entries in all namespaces together");
    if most >= 4096 {
        return Finding::ok(MACHINE, "neighbours", text);
    }
    Finding::limit(
        MACHINE,
        "neighbours",
        format!("{text}: fabrics with more than about {} links lose packets", most / 4),
        "sysctl -w net.ipv4.neigh.default.gc_thresh3=16384",
    )
}

fn frr(facts: &Facts) -> Vec<Finding> {
    if facts.frr.is_empty() {
        let text = "not installed: no fabric with routers starts";
        return vec![Finding::fault(MACHINE, "FRR", text, "apt-get install frr")];
    }
    let version = Finding::ok(MACHINE, "FRR", facts.frr.clone());
    let module = if facts.fpm_module {
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
    type Case = (fn(&mut Facts), &'static str, State);

    fn good() -> Facts {
        Facts {
            cpus: 4,
            load: 0.1,
            memory_mib: 8000,
            disk_mib: 8000,
            hash_seed: true,
            neighbours: 16384,
            kernel: "6.12.0".to_owned(),
            frr: "10.1".to_owned(),
            fpm_module: true,
            ..Facts::default()
        }
    }

    /// What is not good, with its remedy.
    fn found(facts: &Facts) -> Vec<(&'static str, State)> {
        let bad = judge(facts).into_iter().filter(|finding| finding.state != State::Ok);
        bad.inspect(|finding| assert!(!finding.remedy.is_empty(), "{finding:?}"))
            .map(|finding| (finding.check, finding.state))
            .collect()
    }

    #[test]
    fn each_lack_is_found_alone() {
        assert_eq!(found(&good()), []);
        let cases: [Case; 9] = [
            (|facts| facts.cpus = 1, "processors", State::Limit),
            (|facts| facts.load = 2.5, "load", State::Limit),
            (|facts| facts.memory_mib = 900, "memory", State::Limit),
            (|facts| facts.disk_mib = 20, "disk", State::Fault),
            (|facts| facts.hash_seed = false, "hash seeds", State::Limit),
            (|facts| facts.neighbours = 1024, "neighbours", State::Limit),
            (|facts| facts.missing = vec![1], "vrf", State::Limit),
            (|facts| facts.fpm_module = false, "FPM", State::Fault),
            (|facts| facts.fabrics = vec!["other".parse().unwrap()], "other fabrics", State::Limit),
        ];
        for (change, check, state) in cases {
            let mut facts = good();
            change(&mut facts);
            assert_eq!(found(&facts), [(check, state)]);
        }
        let without = Facts { frr: String::new(), fpm_module: false, ..good() };
        assert_eq!(found(&without), [("FRR", State::Fault)]);
    }
}
