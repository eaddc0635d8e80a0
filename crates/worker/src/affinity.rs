//! The CPU of each worker.
//!
//! A frame that a thread sends over a veth link waits in the backlog of the thread's CPU, at each
//! hop (`enqueue_to_backlog()`, `net/core/dev.c`). A thread that moves to another CPU between two
//! sends can overtake its own frames. Each worker therefore stays on one CPU. See
//! docs/adr/0009-worker-stays-on-its-cpu.md.
//!
//! Frames in the queue of a network card, or on another CPU through receive packet steering, are
//! not considered. Their order is the same as for any other sender.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread, as process identifier 0.
const THIS: Pid = Pid::from_raw(0);

/// A CPU that was asked for cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("CPU {cpu} is not among those that vtepd may use ({})", list(allowed))]
pub struct CpuError {
    cpu: usize,
    allowed: Vec<usize>,
}

fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// The CPUs of this many workers: those that are `given`, or a choice among the CPUs that the
/// calling thread may use. If there are fewer CPUs than workers, several workers share one. Empty
/// if the kernel does not tell the CPUs.
///
/// The CPUs with the fewest workers of other vtepd processes are chosen. Among equals, the first
/// one depends on the network namespace, so that the leaves of one machine use different CPUs.
///
/// # Errors
/// When the calling thread may not use one that is given.
pub fn choose(workers: usize, given: &[usize]) -> Result<Vec<usize>, CpuError> {
    let Ok(allowed) = sched_getaffinity(THIS).map(|set| members(&set)) else {
        return Ok(given.to_vec());
    };
    if let Some(cpu) = given.iter().copied().find(|cpu| !allowed.contains(cpu)) {
        return Err(CpuError { cpu, allowed });
    }
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let namespace = fs::metadata("/proc/self/ns/net").map_or(0, |link| link.ino());
    Ok(spread(workers, &allowed, &in_use(Path::new("/proc")), namespace))
}

/// Keeps the calling thread on this CPU.
///
/// # Errors
/// As sched_setaffinity(2).
pub fn stay_on(cpu: usize) -> io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu)?;
    Ok(sched_setaffinity(THIS, &cpus)?)
}

fn members(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu) == Ok(true)).collect()
}

/// A CPU for each of the workers.
fn spread(
    workers: usize,
    allowed: &[usize],
    in_use: &BTreeMap<usize, usize>,
    namespace: u64,
) -> Vec<usize> {
    // 2^64 divided by the golden ratio distributes consecutive numbers.
    let first = namespace.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let first = first as usize % allowed.len().max(1);
    let (before, from) = allowed.split_at_checked(first).unwrap_or((&[], allowed));
    let mut order: Vec<usize> = from.iter().chain(before).copied().collect();
    order.sort_by_key(|cpu| in_use.get(cpu).copied().unwrap_or(0));
    order.into_iter().cycle().take(workers).collect()
}

/// How many workers of vtepd processes each CPU has, as far as this process can see.
fn in_use(proc: &Path) -> BTreeMap<usize, usize> {
    let mut workers = BTreeMap::new();
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let is = |folder: &Path, name: &str| {
        fs::read_to_string(folder.join("comm")).is_ok_and(|comm| comm.starts_with(name))
    };
    let processes = folders(proc).map(|entry| entry.path()).filter(|path| is(path, "vtepd"));
    let threads = processes.flat_map(|process| folders(&process.join("task")));
    for thread in threads.map(|entry| entry.path()).filter(|path| is(path, "worker")) {
        let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        // A thread that may use several CPUs has none of its own.
        if let Some(cpu) = cpus.and_then(|cpus| cpus.trim().parse().ok()) {
            *workers.entry(cpu).or_default() += 1;
        }
    }
    workers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_get_the_cpus_with_the_fewest_workers() {
        let nobody = BTreeMap::new();
        let allowed = [2, 3, 5];
        for namespace in 0..20 {
            let mut cpus = spread(3, &allowed, &nobody, namespace);
            assert_eq!(cpus, spread(3, &allowed, &nobody, namespace));
            cpus.sort_unstable();
            assert_eq!(cpus, allowed, "each has a CPU of its own");
            assert_eq!(spread(4, &allowed, &nobody, namespace).len(), 4);
            let busy = BTreeMap::from([(2, 1), (5, 2), (7, 0)]);
            assert_eq!(spread(4, &allowed, &busy, namespace), [3, 2, 5, 3]);
        }
        let first = |namespace| spread(1, &allowed, &nobody, namespace)[0];
        let firsts: std::collections::BTreeSet<usize> = (0..20).map(first).collect();
        assert_eq!(firsts.len(), 3, "namespaces differ");
        assert_eq!(spread(2, &[], &nobody, 0), [0; 0]);
    }

    #[test]
    fn workers_of_other_processes_are_counted() {
        let proc = std::env::temp_dir().join(format!("vtepd-cpus-{}", std::process::id()));
        let thread = |path: &str, process: &str, name: &str, cpus: &str| {
            let task = proc.join(path);
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("../../comm"), process).unwrap();
            fs::write(task.join("comm"), name).unwrap();
            fs::write(task.join("status"), format!("Name:\tx\nCpus_allowed_list:\t{cpus}\n"))
                .unwrap();
        };
        thread("10/task/10", "vtepd\n", "vtepd\n", "1");
        thread("10/task/11", "vtepd\n", "worker\n", "1");
        thread("10/task/12", "vtepd\n", "worker1\n", "3");
        thread("20/task/21", "vtepd\n", "worker\n", "3");
        thread("30/task/31", "vtepd\n", "worker\n", "0-3");
        thread("40/task/41", "other\n", "worker\n", "0");
        let found = in_use(&proc);
        fs::remove_dir_all(&proc).unwrap();
        assert_eq!(found, BTreeMap::from([(1, 1), (3, 2)]));
    }

    #[test]
    fn a_thread_stays_on_a_cpu_that_it_may_use() {
        let before = sched_getaffinity(THIS).unwrap();
        let chosen = choose(1, &[]).unwrap();
        assert_eq!(choose(1, &chosen).unwrap(), chosen);
        assert!(choose(1, &[CpuSet::count() + 1]).unwrap_err().to_string().starts_with("CPU "));
        stay_on(chosen[0]).unwrap();
        assert_eq!(members(&sched_getaffinity(THIS).unwrap()), chosen);
        sched_setaffinity(THIS, &before).unwrap();
    }
}
