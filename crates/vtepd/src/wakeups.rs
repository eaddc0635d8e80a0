//! The thread that answers the steering programs: it wakes workers, and tells that the process
//! lives.

use std::io;
use std::os::fd::AsFd;

use bpf::{Call, Wakeups};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use worker::Waker;

/// Starts the thread. It ends with the process.
///
/// # Errors
/// When the thread cannot be created.
pub(crate) fn serve(mut wakeups: Wakeups, workers: Vec<Waker>) -> io::Result<()> {
    std::thread::Builder::new().name("wakeups".to_owned()).spawn(move || {
        loop {
            let mut ready = [PollFd::new(wakeups.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => {
                    tracing::warn!("the steering programs get no answer any more: {error}");
                    return;
                }
            }
            while let Some(call) = wakeups.next() {
                match call {
                    Call::Worker(number) => {
                        if let Some(worker) = workers.get(number) {
                            worker.wake();
                        }
                    }
                    Call::Process => wakeups.send_heartbeat(),
                }
            }
        }
    })?;
    Ok(())
}
