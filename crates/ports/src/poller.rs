//! Sleeps until a descriptor is readable, and wakes up once.
//!
//! A thread that sleeps in poll(2) or epoll(7) stays in each socket's wait queue until it is
//! scheduled. Until then every further frame wakes it again. A poll of io_uring(7) leaves the wait
//! queue with the first frame (`io_poll_wake()`, `io_uring/poll.c`). See
//! docs/adr/0008-one-shot-polls.md.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::{IoUring, opcode, types};
use nix::sys::time::TimeSpec;

/// Flags of io_uring_enter(2) (`include/uapi/linux/io_uring.h`). `NO_IOWAIT` (Linux 6.15) keeps the
/// kernel from accounting the sleep as I/O wait.
const GETEVENTS: u32 = 1 << 0;
const EXT_ARG: u32 = 1 << 3;
const NO_IOWAIT: u32 = 1 << 7;

/// `struct io_uring_getevents_arg`.
#[repr(C)]
struct WaitTerms {
    mask: u64,
    mask_size: u32,
    least_microseconds: u32,
    timeout: u64,
}

/// A descriptor that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// Its position among the descriptors that were waited for.
    pub number: usize,
    /// Whether the socket has an error (`POLLERR`).
    pub failed: bool,
}

/// Waits for a fixed list of descriptors. Belongs to the thread that created it.
pub struct Poller {
    way: Way,
    ready: Vec<Ready>,
    of_this_thread: PhantomData<*const ()>,
}

enum Way {
    /// One-shot polls of io_uring. `waits` marks the descriptors with a pending poll.
    Once {
        ring: Box<IoUring>,
        waits: Vec<bool>,
    },
    Poll(Vec<libc::pollfd>),
}

impl Poller {
    /// A poller for this many descriptors that uses one-shot polls, or [`Self::poll`] where the
    /// kernel lacks them or denies them.
    #[must_use]
    pub fn once(descriptors: usize) -> Self {
        let Ok(ring) = one_shot(descriptors) else { return Self::poll(descriptors) };
        Self::by(Way::Once { ring: Box::new(ring), waits: vec![false; descriptors] }, descriptors)
    }

    /// A poller for this many descriptors that uses poll(2). It is cheaper for a thread that never
    /// sleeps.
    #[must_use]
    pub fn poll(descriptors: usize) -> Self {
        Self::by(Way::Poll(Vec::with_capacity(descriptors)), descriptors)
    }

    fn by(way: Way, descriptors: usize) -> Self {
        Self { way, ready: Vec::with_capacity(descriptors), of_this_thread: PhantomData }
    }

    /// Sleeps until a descriptor is readable or has an error, a signal arrives, or the timeout
    /// expires. `descriptors` are those that the poller was created for, or the first of them,
    /// always in the same order. Nothing is allocated.
    ///
    /// # Errors
    /// As poll(2) and io_uring_enter(2).
    pub fn wait<'a>(
        &mut self,
        descriptors: impl Iterator<Item = BorrowedFd<'a>>,
        timeout: Option<Duration>,
    ) -> io::Result<&[Ready]> {
        self.ready.clear();
        let waited = match &mut self.way {
            Way::Once { ring, waits } => {
                wait_once(ring, waits, descriptors, timeout, &mut self.ready)
            }
            Way::Poll(polls) => wait_by_poll(polls, descriptors, timeout, &mut self.ready),
        };
        match waited {
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => {
                Err(error)
            }
            _ => Ok(&self.ready),
        }
    }
}

/// Whether the kernel has one-shot polls and lets this process use them.
#[must_use]
pub fn has_one_shot() -> bool {
    one_shot(1).is_ok()
}

/// Creates a ring. Its completions are processed by the thread that waits for them, not by the
/// senders of the frames (`IORING_SETUP_DEFER_TASKRUN`, Linux 6.1).
fn one_shot(descriptors: usize) -> io::Result<IoUring> {
    let entries = u32::try_from(descriptors).unwrap_or(u32::MAX).max(1).next_power_of_two();
    let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries)?;
    // The kernel refuses flags that it does not know. SAFETY: nothing is submitted, and nothing is
    // waited for.
    unsafe { ring.submitter().enter::<WaitTerms>(0, 0, GETEVENTS | NO_IOWAIT, None)? };
    Ok(ring)
}

fn wait_once<'a>(
    ring: &mut IoUring,
    waits: &mut [bool],
    descriptors: impl Iterator<Item = BorrowedFd<'a>>,
    timeout: Option<Duration>,
    ready: &mut Vec<Ready>,
) -> io::Result<()> {
    let mut added = 0;
    for ((number, waits), descriptor) in waits.iter_mut().enumerate().zip(descriptors) {
        if !*waits {
            let poll = opcode::PollAdd::new(types::Fd(descriptor.as_raw_fd()), libc::POLLIN as u32);
            // SAFETY: a poll refers to no memory, and holds a reference to its file.
            unsafe { ring.submission().push(&poll.build().user_data(number as u64)) }
                .map_err(io::Error::other)?;
            *waits = true;
            added += 1;
        }
    }
    let timeout = timeout.map(types::Timespec::from);
    let terms = WaitTerms {
        mask: 0,
        mask_size: 0,
        least_microseconds: 0,
        timeout: timeout.as_ref().map_or(0, |timeout| std::ptr::from_ref(timeout) as u64),
    };
    // SAFETY: `terms`, and the timeout that it points at, outlive the call.
    let waited =
        unsafe { ring.submitter().enter(added, 1, GETEVENTS | EXT_ARG | NO_IOWAIT, Some(&terms)) };
    for done in ring.completion() {
        let number = done.user_data() as usize;
        if let Some(waits) = waits.get_mut(number) {
            *waits = false;
        }
        if done.result() < 0 {
            return Err(io::Error::from_raw_os_error(-done.result()));
        }
        ready.push(Ready { number, failed: done.result() & i32::from(libc::POLLERR) != 0 });
    }
    waited.map(drop)
}

fn wait_by_poll<'a>(
    polls: &mut Vec<libc::pollfd>,
    descriptors: impl Iterator<Item = BorrowedFd<'a>>,
    timeout: Option<Duration>,
    ready: &mut Vec<Ready>,
) -> io::Result<()> {
    let poll = |descriptor: BorrowedFd<'_>| libc::pollfd {
        fd: descriptor.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    polls.clear();
    polls.extend(descriptors.map(poll));
    let timeout = timeout.map(TimeSpec::from);
    let timeout =
        timeout.as_ref().map_or(std::ptr::null(), |timeout| std::ptr::from_ref(timeout.as_ref()));
    // SAFETY: pointer and length describe `polls`, and the timeout outlives the call.
    let waited = unsafe {
        libc::ppoll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout, std::ptr::null())
    };
    if waited < 0 {
        return Err(io::Error::last_os_error());
    }
    let told = polls.iter().enumerate().filter(|(_, poll)| poll.revents != 0);
    ready.extend(
        told.map(|(number, poll)| Ready { number, failed: poll.revents & libc::POLLERR != 0 }),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::time::Instant;

    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::*;

    const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
    const LONG: Option<Duration> = Some(Duration::from_secs(20));

    /// Both kinds of poller; the first falls back to poll(2) where the kernel lacks io_uring.
    fn both() -> [Poller; 2] {
        if !has_one_shot() {
            println!(
                "SKIPPED io_uring: this kernel has none that can be waited for like this, or does not allow it"
            );
        }
        [Poller::once(2), Poller::poll(2)]
    }

    fn event() -> EventFd {
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap()
    }

    #[test]
    fn what_is_readable_is_told_until_it_is_read() {
        for mut readiness in both() {
            let (one, other) = (event(), event());
            let mut wait = |timeout| {
                readiness.wait([one.as_fd(), other.as_fd()].into_iter(), timeout).unwrap().to_vec()
            };
            let ready = |number| Ready { number, failed: false };
            assert_eq!(wait(AT_ONCE), []);
            other.write(1).unwrap();
            assert_eq!(wait(LONG), [ready(1)]);
            assert_eq!(wait(LONG), [ready(1)]);
            other.read().unwrap();
            // The poll of a descriptor that became ready while another was read.
            one.write(1).unwrap();
            assert_eq!(wait(LONG), [ready(0)]);
            other.write(1).unwrap();
            // Both are reported, possibly by separate calls.
            let told: Vec<Ready> = (0..2).flat_map(|_| wait(LONG)).collect();
            assert!([0, 1].iter().all(|number| told.contains(&ready(*number))), "{told:?}");
            one.read().unwrap();
            other.read().unwrap();
            // A report may be stale if the event was read since. That happens at most twice.
            assert!((0..3).any(|_| wait(AT_ONCE).is_empty()));
        }
    }

    #[test]
    fn whoever_sleeps_is_woken() {
        for mut readiness in both() {
            let event = event();
            std::thread::scope(|scope| {
                for _ in 0..100 {
                    scope.spawn(|| event.write(1).unwrap());
                    let begun = Instant::now();
                    while event.read().is_err() {
                        readiness.wait([event.as_fd()].into_iter(), LONG).unwrap();
                        assert!(begun.elapsed() < LONG.unwrap(), "nobody woke it");
                    }
                }
            });
        }
    }

    #[test]
    fn time_and_errors_are_told() {
        for mut readiness in both() {
            let event = event();
            let begun = Instant::now();
            let least = Duration::from_millis(30);
            assert_eq!(readiness.wait([event.as_fd()].into_iter(), Some(least)).unwrap(), []);
            assert!(begun.elapsed() >= least);

            // A pipe without a reader.
            let (reader, mut writer) = io::pipe().unwrap();
            drop(reader);
            assert!(writer.write(b"x").is_err());
            let ready = readiness.wait([event.as_fd(), writer.as_fd()].into_iter(), LONG).unwrap();
            assert_eq!(ready, [Ready { number: 1, failed: true }]);
        }
    }
}
