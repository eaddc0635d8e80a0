//! Runs one test at a time, as root.

use std::fs::File;

use nix::fcntl::{Flock, FlockArg};

/// A lock that a test holds while it runs. Tests share the machine's CPUs and measure gaps, so they
/// run one after another, across threads and processes.
#[derive(Debug)]
pub struct Turn(#[allow(dead_code, reason = "held, not used")] Flock<File>);

impl Turn {
    /// Waits for the lock.
    #[must_use]
    pub fn take() -> Self {
        let path = std::env::temp_dir().join("vtepd-stories.lock");
        let file =
            File::options().create(true).append(true).open(&path).expect("the stories' lock file");
        Self(
            Flock::lock(file, FlockArg::LockExclusive)
                .map_err(|(_, errno)| errno)
                .expect("the stories' lock"),
        )
    }
}

/// Whether the test can run here. Prints why it is skipped otherwise.
#[must_use]
pub fn can_run(name: &str) -> bool {
    if nix::unistd::geteuid().is_root() {
        return true;
    }
    skip(name, "network namespaces need root");
    false
}

/// Reports that a test is skipped, in the form that `tests/run` collects.
pub fn skip(name: &str, reason: &str) {
    println!("SKIPPED {name}: {reason}");
}
