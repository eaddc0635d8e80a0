//! Scheduling policy of the calling thread (sched(7)).

use std::io;

/// A scheduling policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThreadPolicy {
    /// `SCHED_FIFO` with priority 1: before all ordinary threads.
    Fifo,
    /// `SCHED_BATCH`.
    #[default]
    Batch,
}

impl ThreadPolicy {
    const fn number(self) -> libc::c_int {
        match self {
            Self::Fifo => libc::SCHED_FIFO,
            Self::Batch => libc::SCHED_BATCH,
        }
    }

    /// Sets the policy.
    ///
    /// # Errors
    /// As sched_setscheduler(2): `SCHED_FIFO` needs CAP_SYS_NICE.
    pub fn set(self) -> io::Result<()> {
        let parameters = libc::sched_param { sched_priority: i32::from(self == Self::Fifo) };
        // SAFETY: the parameters live through the call; 0 is the calling thread.
        match unsafe { libc::sched_setscheduler(0, self.number(), &raw const parameters) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether the policy is set.
    #[must_use]
    pub fn is_set(self) -> bool {
        // SAFETY: no memory is involved.
        unsafe { libc::sched_getscheduler(0) == self.number() }
    }
}
