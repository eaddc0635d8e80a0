//! One test at a time on a machine.

use std::fs::File;

use nix::fcntl::{Flock, FlockArg};

/// A lock that a test holds while it runs. Tests share the machine's CPUs and measure gaps, so they
/// run one after another, across threads and processes.
#[derive(Debug)]
pub struct MachineLock(#[allow(dead_code, reason = "held, not used")] Flock<File>);

impl MachineLock {
    /// Waits for the lock.
    #[must_use]
    pub fn take() -> Self {
        let path = std::env::temp_dir().join("vtepd-tests.lock");
        let file = File::options().create(true).append(true).open(&path).expect("the lock file");
        Self(
            Flock::lock(file, FlockArg::LockExclusive)
                .map_err(|(_, errno)| errno)
                .expect("the lock"),
        )
    }
}
