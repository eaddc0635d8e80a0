//! The machine and the programs of a measurement. What cannot be determined is empty or 0.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use sha2::{Digest as _, Sha256};

/// Queues of packets and of sockets, neighbours of all namespaces, and time for real-time processes.
const SYSCTLS: [&str; 6] = [
    "kernel.sched_rt_runtime_us",
    "net.core.dev_weight",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.ipv4.neigh.default.gc_thresh3",
];

/// The first line of a file.
fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

/// The kernel release.
pub fn kernel() -> String {
    first_line("/proc/sys/kernel/osrelease")
}

/// The CPU model.
pub fn cpu_model() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(String::new, |(_, name)| name.trim().to_owned())
}

/// The governor of the frequency of the first CPU.
pub fn governor() -> String {
    first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
}

/// The kernel's command line.
pub fn command_line() -> String {
    first_line("/proc/cmdline")
}

/// The settings that all namespaces share and that change what is measured, by name.
pub fn sysctls() -> BTreeMap<String, String> {
    let read = |name: &&str| {
        let value = first_line(&format!("/proc/sys/{}", name.replace('.', "/")));
        (!value.is_empty()).then(|| ((*name).to_owned(), value))
    };
    SYSCTLS.iter().filter_map(read).collect()
}

/// The number of CPUs that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(0, Into::into)
}

/// The version of zebra.
pub fn frr() -> String {
    version(Path::new("/usr/lib/frr/zebra"))
}

/// The commit in the first line of `--version`, as in `vtepd 0.1.0 (4b9582d5)`.
fn commit_in(line: &str) -> Option<&str> {
    line.split_once('(')?.1.split_once(')').map(|(commit, _)| commit)
}

/// The version in the first line of `--version`, as in `zebra version 8.4.4` or
/// `vtepd 0.1.0 (4b9582d5)`: the last word that is not in parentheses.
pub fn version(program: &Path) -> String {
    version_in(&first_line_of(program))
}

fn first_line_of(program: &Path) -> String {
    let output = Command::new(program).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default().lines().next().unwrap_or_default().to_owned()
}

fn version_in(line: &str) -> String {
    let mut words = line.split_whitespace().filter(|word| !word.starts_with('('));
    words.next_back().unwrap_or_default().to_owned()
}

/// The memory in MiB.
pub fn memory_mib() -> u64 {
    meminfo_mib("MemTotal:")
}

/// The memory in MiB that programs can have without swapping.
pub fn memory_available_mib() -> u64 {
    meminfo_mib("MemAvailable:")
}

fn meminfo_mib(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() / 1024
}

/// A checksum of the machine's id, which tells equal machines apart and does not reveal the id.
pub fn id() -> String {
    checksum(first_line("/etc/machine-id").as_bytes())
}

/// The SHA-256 of bytes, as `sha256sum` prints it.
pub fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The results of experiments that are kept. A change of them changes no program.
const REFERENCE: &str = ":(top,exclude)deploy/experiments/reference";

/// The commit of the checkout that a program was built in, with `-dirty` after changes; elsewhere that
/// of its `--version`.
pub fn commit(program: &Path) -> String {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let git = |arguments: &[&str]| {
        // Root may read a checkout of another user.
        let mut command = Command::new("git");
        command.args(["-c", "safe.directory=*", "-C"]).arg(folder).args(arguments).output().ok()
    };
    let commit = git(&["rev-parse", "HEAD"]).filter(|output| output.status.success());
    let is_dirty = || {
        let same = git(&["diff", "--quiet", "HEAD", "--", ":/", REFERENCE]);
        same.is_none_or(|output| !output.status.success())
    };
    let commit = commit.map(|output| {
        let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if is_dirty() { name + "-dirty" } else { name }
    });
    let own = || commit_in(&first_line_of(program)).map(str::to_owned);
    commit.or_else(own).unwrap_or_else(|| "unknown".to_owned())
}

/// The time of all CPUs since boot.
#[derive(Debug, Clone, Copy)]
pub struct CpuTime {
    /// In clock ticks, as `all`.
    busy: u64,
    all: u64,
}

impl CpuTime {
    /// The busy share since an earlier time, 0 to 1.
    pub fn busy_since(&self, before: &Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.busy.saturating_sub(before.busy) as f64 / all as f64
    }
}

/// The time of all CPUs now.
pub fn cpu_time() -> CpuTime {
    let line = first_line("/proc/stat");
    let numbers = line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
    // user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user time.
    let times: Vec<u64> = numbers.take(8).collect();
    let all: u64 = times.iter().sum();
    let idle: u64 = times.iter().skip(3).take(2).sum();
    CpuTime { busy: all - idle, all }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        assert!(cpus() > 0 && memory_mib() > 100 && kernel().contains('.'));
        let CpuTime { busy, all } = cpu_time();
        assert!(busy > 0 && all > busy);
        let [before, after] = [(100, 1000), (150, 1200)].map(|(busy, all)| CpuTime { busy, all });
        assert!((after.busy_since(&before) - 0.25).abs() < 1e-9);
        let backlog = sysctls().remove("net.core.netdev_max_backlog").unwrap_or_default();
        assert!(backlog.parse::<u32>().is_ok(), "{backlog}");
        // FIPS 180-2, appendix B.1.
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(checksum(b"abc"), known);
        assert_eq!(version_in("vtepd 0.1.0 (4b9582d5)"), "0.1.0");
        assert_eq!(commit_in("vtepd 0.1.0 (4b9582d5)"), Some("4b9582d5"));
        assert_eq!(commit_in("vtepd 0.1.0"), None);
        assert_eq!(version_in("zebra version 8.4.4"), "8.4.4");
        assert_eq!(commit(Path::new("/no/such/program")), "unknown");
    }
}
