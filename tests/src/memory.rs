//! Counts the allocations of a running vtepd with a preloaded library.

use std::path::{Path, PathBuf};
use std::process::Command;

use ::fabric::Namespace;

use crate::Vtepd;

/// A vtepd whose allocations are counted.
#[derive(Debug)]
pub struct Counted {
    /// The running vtepd.
    pub vtepd: Vtepd,
    counts: PathBuf,
}

/// Memory use of a running vtepd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Allocations of all threads.
    pub allocations: u64,
    /// Allocations of the worker.
    pub by_worker: u64,
    /// Minor page faults of the worker.
    pub worker_faults: u64,
    /// Resident bytes.
    pub resident: u64,
}

impl Counted {
    /// Starts vtepd and waits until it has taken over.
    #[must_use]
    pub fn start(namespace: &Namespace, arguments: &[&str]) -> Self {
        let file =
            |end| std::env::temp_dir().join(format!("vtepd-story-{}.{end}", std::process::id()));
        let (library, counts) = (file("so"), file("allocations"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/allocations.c");
        // With its built-in functions, the compiler could remove calls of malloc().
        let compile = Command::new("cc")
            .args(["-O2", "-shared", "-fPIC", "-fno-builtin", "-o"])
            .arg(&library)
            .arg(&source)
            .output();
        let compile = compile.expect("a C compiler");
        assert!(compile.status.success(), "{}", String::from_utf8_lossy(&compile.stderr));
        std::fs::write(&counts, [0; 16]).unwrap();
        let vtepd = Vtepd::start_in(
            namespace,
            arguments,
            &[("LD_PRELOAD", &library), ("VTEPD_ALLOCATIONS", &counts)],
        );
        std::fs::remove_file(&library).unwrap();
        let counted = Self { vtepd, counts };
        assert!(counted.memory().allocations > 0, "nothing is counted");
        counted
    }

    /// The current memory use.
    #[must_use]
    pub fn memory(&self) -> Memory {
        let counts = std::fs::read(&self.counts).unwrap();
        let count = |at: usize| u64::from_ne_bytes(counts[at..at + 8].try_into().unwrap());
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.vtepd.pid())).unwrap();
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix(" kB")?.trim().parse().ok());
        Memory {
            allocations: count(0),
            by_worker: count(8),
            worker_faults: faults(&self.vtepd.thread("worker")),
            resident: resident
                .map_or_else(|| panic!("no VmRSS in\n{status}"), |kib: u64| kib << 10),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.counts);
    }
}

/// Minor faults of a thread (`proc_pid_stat(5)`, field 10).
fn faults(thread: &Path) -> u64 {
    let stat = std::fs::read_to_string(thread.join("stat")).unwrap();
    // What follows the name begins with field 3.
    let faults = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(7)?.parse().ok());
    faults.unwrap_or_else(|| panic!("no faults in {stat}"))
}
