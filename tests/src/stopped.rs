//! A thread of another process that stands still.

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// A thread that is stopped with ptrace, as in a system call that does not return, until
/// [`Self::resume`] or the end of the process. The calling thread is the tracer.
#[derive(Debug)]
pub struct Stopped(Pid);

impl Stopped {
    /// Stops the thread with this id.
    ///
    /// # Panics
    /// If there is no such thread.
    #[must_use]
    pub fn thread(tid: i32) -> Self {
        let tid = Pid::from_raw(tid);
        ptrace::seize(tid, ptrace::Options::empty()).expect("trace the thread");
        ptrace::interrupt(tid).expect("stop the thread");
        waitpid(tid, Some(WaitPidFlag::__WALL)).expect("the stopped thread");
        Self(tid)
    }

    /// Continues the thread.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn resume(self) {
        ptrace::detach(self.0, None).expect("let the thread go on");
    }
}
