//! One story at a time, as root.

use std::fs::File;

use nix::fcntl::{Flock, FlockArg};

/// Held while a story runs: stories share the machine's CPUs and measure gaps, so they wait for one
/// another, across threads and processes.
#[derive(Debug)]
pub struct Turn(#[allow(dead_code, reason = "held, not used")] Flock<File>);

impl Turn {
    /// Waits for the turn.
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

/// Whether the story can run here; prints why it is skipped otherwise.
#[must_use]
pub fn can_run(name: &str) -> bool {
    if nix::unistd::geteuid().is_root() {
        return true;
    }
    skip(name, "network namespaces need root");
    false
}

/// Says that a story is skipped, in the form that `tests/run` collects.
pub fn skip(name: &str, reason: &str) {
    println!("SKIPPED {name}: {reason}");
}
