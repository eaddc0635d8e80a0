//! Sleeps in poll(2) until a descriptor is readable.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;

/// A descriptor that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// Its position among the descriptors that were waited for.
    pub number: usize,
    /// Whether the socket has an error (`POLLERR`).
    pub failed: bool,
}

/// Waits for descriptors. It keeps its memory between two calls, so that waiting allocates nothing.
#[derive(Debug, Default)]
pub struct Poller {
    descriptors: Vec<libc::pollfd>,
    ready: Vec<Ready>,
}

impl Poller {
    /// Sleeps until a descriptor is readable or has an error, a signal arrives, or the timeout
    /// expires. Returns the descriptors that are ready.
    ///
    /// # Errors
    /// As ppoll(2), except `EINTR`.
    pub fn wait<'a>(
        &mut self,
        descriptors: impl Iterator<Item = BorrowedFd<'a>>,
        timeout: Option<Duration>,
    ) -> io::Result<&[Ready]> {
        self.ready.clear();
        self.descriptors.clear();
        self.descriptors.extend(descriptors.map(|descriptor| libc::pollfd {
            fd: descriptor.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }));
        let timeout = timeout.map(TimeSpec::from);
        let timeout = timeout
            .as_ref()
            .map_or(std::ptr::null(), |timeout| std::ptr::from_ref(timeout.as_ref()));
        let (list, length) = (self.descriptors.as_mut_ptr(), self.descriptors.len());
        // SAFETY: pointer and length describe `descriptors`, and the timeout outlives the call.
        let found = unsafe { libc::ppoll(list, length as libc::nfds_t, timeout, std::ptr::null()) };
        if found < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(&self.ready),
                _ => Err(error),
            };
        }
        let ready = self.descriptors.iter().enumerate().filter(|(_, poll)| poll.revents != 0);
        self.ready.extend(
            ready.map(|(number, poll)| Ready { number, failed: poll.revents & libc::POLLERR != 0 }),
        );
        Ok(&self.ready)
    }
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

    fn event() -> EventFd {
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap()
    }

    #[test]
    fn a_readable_descriptor_is_reported_until_it_is_read() {
        let (mut poller, one, other) = (Poller::default(), event(), event());
        let mut wait = |timeout| {
            poller.wait([one.as_fd(), other.as_fd()].into_iter(), timeout).unwrap().to_vec()
        };
        let ready = |number| Ready { number, failed: false };
        assert_eq!(wait(AT_ONCE), []);
        other.write(1).unwrap();
        assert_eq!(wait(LONG), [ready(1)]);
        assert_eq!(wait(LONG), [ready(1)]);
        other.read().unwrap();
        one.write(1).unwrap();
        assert_eq!(wait(LONG), [ready(0)]);
        other.write(1).unwrap();
        assert_eq!(wait(LONG), [ready(0), ready(1)]);
        one.read().unwrap();
        other.read().unwrap();
        assert_eq!(wait(AT_ONCE), []);
    }

    #[test]
    fn a_sleeping_thread_is_woken() {
        let (mut poller, event) = (Poller::default(), event());
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| event.write(1).unwrap());
                let start = Instant::now();
                while event.read().is_err() {
                    poller.wait([event.as_fd()].into_iter(), LONG).unwrap();
                    assert!(start.elapsed() < LONG.unwrap(), "it was not woken");
                }
            }
        });
    }

    #[test]
    fn timeouts_and_errors_are_reported() {
        let (mut poller, event, start) = (Poller::default(), event(), Instant::now());
        let timeout = Duration::from_millis(30);
        assert_eq!(poller.wait([event.as_fd()].into_iter(), Some(timeout)).unwrap(), []);
        assert!(start.elapsed() >= timeout);

        // A pipe without a reader.
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        assert!(writer.write(b"x").is_err());
        let ready = poller.wait([event.as_fd(), writer.as_fd()].into_iter(), LONG).unwrap();
        assert_eq!(ready, [Ready { number: 1, failed: true }]);
    }
}
