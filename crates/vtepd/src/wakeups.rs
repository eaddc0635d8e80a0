//! The thread that answers the steering programs: it wakes workers, tells that the process lives, and
//! remembers frames that the programs drop.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use bpf::{Call, Wakeups};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use worker::Waker;

use crate::program_drops::ProgramDrops;

/// Dropped frames that are read before calls are looked for again.
const DROPS_AT_ONCE: usize = 64;

/// Starts the thread. It ends with the process. Returns the frames that it remembers.
///
/// # Errors
/// When the thread cannot be created.
pub(crate) fn serve(
    mut wakeups: Wakeups,
    workers: Vec<Waker>,
    mut drops: bpf::ProgramDrops,
) -> io::Result<Arc<ProgramDrops>> {
    let remembered = Arc::new(ProgramDrops::new(drops.untold()));
    let all = Arc::clone(&remembered);
    std::thread::Builder::new().name("wakeups".to_owned()).spawn(move || {
        loop {
            let ready = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let mut ready = [ready(wakeups.as_fd()), ready(drops.as_fd())];
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
            remembered.remember(drops.by_ref().take(DROPS_AT_ONCE));
        }
    })?;
    Ok(all)
}
