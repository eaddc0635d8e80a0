//! CPU affinity of a worker. It changes its CPU only while none of its frames wait in the backlog
//! of the CPU that it leaves.
//!
//! A frame that a thread sends over a veth link waits in the backlog of the thread's CPU, at each
//! hop (`enqueue_to_backlog()`, `net/core/dev.c`). A thread that the scheduler moves between two
//! sends can overtake its own frames. A worker with work is therefore held on its CPU. It is
//! released periodically, so that the scheduler can move it, but only while the backlog is empty.
//! See docs/adr/0009-worker-stays-on-its-cpu.md.
//!
//! Frames in the queue of a network card, or on another CPU through receive packet steering, are
//! not considered. Their order is the same as for any other sender.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::{Pid, getpid};

/// How long the worker is held at least.
const HELD: Duration = Duration::from_millis(100);
/// First interval after which a backlog that was not empty is read again. Each further interval is
/// twice as long.
const AGAIN: Duration = Duration::from_millis(1);
/// The calling thread, as process identifier 0.
const THIS: Pid = Pid::from_raw(0);

/// Holds the calling thread on its CPU while it has work. Belongs to the thread that created it.
///
/// A change of the process's affinity (taskset(1) with `-a`, control groups) also changes the mask
/// of the main thread. The worker adopts that mask when it is released. Its own mask would not show
/// a change to the CPU on which it is held.
#[derive(Debug)]
pub struct Affinity {
    /// The CPUs on which it may run. `None` if there is only one, or if nothing can be changed.
    allowed: Option<CpuSet>,
    /// The CPU on which it is held.
    held: Option<usize>,
    /// The main thread's mask when the worker was held.
    process: Option<CpuSet>,
    /// The next interval for a backlog that is not empty.
    again: Duration,
    /// When it may be released, or when its mask is read again if it is not held.
    until: Option<Instant>,
    /// `/proc/net/softnet_stat`, which covers all CPUs and is the same in every namespace. It is
    /// read into `said`.
    backlogs: Option<File>,
    said: String,
}

impl Affinity {
    /// Creates it for the calling thread.
    #[must_use]
    pub fn of_this_thread() -> Self {
        let backlogs = File::open("/proc/net/softnet_stat").ok();
        let (allowed, held, process, until) = (None, None, None, None);
        let mut affinity =
            Self { allowed, held, process, again: AGAIN, until, backlogs, said: String::new() };
        // If the kernel does not report the backlog, the thread is never held.
        let knows = affinity.backlog(0).is_some();
        affinity.allow(sched_getaffinity(THIS).ok().filter(|_| knows));
        if !knows {
            affinity.backlogs = None;
        }
        affinity
    }

    /// Holds the thread on its CPU, unless it is held already.
    #[inline]
    pub fn hold(&mut self) {
        if self.held.is_none() && self.allowed.is_some() {
            self.hold_here();
        }
    }

    /// Releases the thread if it is time and its CPU's backlog is empty. Returns whether it did.
    #[inline]
    pub fn let_go(&mut self, now: Instant) -> bool {
        *self.until.get_or_insert(now + HELD) <= now && self.review(now)
    }

    fn hold_here(&mut self) {
        self.process = sched_getaffinity(getpid()).ok();
        self.held = sched_getcpu().ok().filter(|cpu| sched_setaffinity(THIS, &only(*cpu)).is_ok());
        if self.held.is_none() {
            self.allowed = None;
        }
    }

    #[cold]
    fn review(&mut self, now: Instant) -> bool {
        self.until = None;
        let Some(cpu) = self.held else {
            let knows = self.backlogs.is_some();
            self.allow(sched_getaffinity(THIS).ok().filter(|_| knows));
            return false;
        };
        if self.backlog(cpu).is_some_and(|frames| frames > 0) {
            self.until = Some(now + self.again);
            self.again = (self.again * 2).min(HELD);
            return false;
        }
        (self.held, self.again) = (None, AGAIN);
        // The affinity of this thread alone may have been changed.
        let own = sched_getaffinity(THIS).ok().filter(|own| *own != only(cpu));
        if own.is_some() {
            self.allow(own);
            return true;
        }
        let process = sched_getaffinity(getpid()).ok();
        let freed = if process == self.process { self.allowed } else { process };
        let freed = freed.filter(|cpus| sched_setaffinity(THIS, cpus).is_ok());
        self.allow(freed);
        true
    }

    /// Sets the CPUs on which the thread may run.
    fn allow(&mut self, cpus: Option<CpuSet>) {
        self.allowed = cpus.filter(|cpus| {
            (0..CpuSet::count()).filter(|cpu| cpus.is_set(*cpu) == Ok(true)).count() > 1
        });
    }

    /// Frames in the backlog of a CPU. `None` if the kernel does not report it (before Linux 5.10).
    fn backlog(&mut self, cpu: usize) -> Option<u32> {
        let file = self.backlogs.as_mut()?;
        self.said.clear();
        file.rewind().ok()?;
        file.read_to_string(&mut self.said).ok()?;
        backlog(&self.said, cpu)
    }
}

/// Parses `/proc/net/softnet_stat`. Each line is one CPU, with the backlog as 12th and the CPU
/// number as 13th word (`softnet_seq_show()`, `net/core/net-procfs.c`).
fn backlog(said: &str, cpu: usize) -> Option<u32> {
    let words = said.lines().map(|line| line.split_ascii_whitespace().skip(11));
    words.into_iter().find_map(|mut words| {
        let frames = u32::from_str_radix(words.next()?, 16).ok()?;
        (usize::from_str_radix(words.next()?, 16).ok()? == cpu).then_some(frames)
    })
}

fn only(cpu: usize) -> CpuSet {
    let mut cpus = CpuSet::new();
    // CPU numbers never exceed the size of a set.
    let _ = cpus.set(cpu);
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backlog_of_a_cpu_is_the_twelfth_word_of_its_line() {
        let line = |backlog: &str, cpu: &str| {
            let rest = "00000000 ".repeat(9);
            format!("01fb8b94 00000002 {rest}{backlog} {cpu} 00000000 00000000\n")
        };
        let said = line("0000001f", "00000000") + &line("00000000", "0000000a");
        assert_eq!([0, 10, 1].map(|cpu| backlog(&said, cpu)), [Some(31), Some(0), None]);
        assert_eq!(backlog("01fb8b94 00000002 00000003\n", 0), None, "an old kernel does not say");
        let said = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
        assert!(backlog(&said, 0).is_some(), "{said}");
    }

    #[test]
    fn a_thread_is_held_for_a_while_and_let_go_to_where_it_may_be() {
        let before = sched_getaffinity(THIS).unwrap();
        let mut affinity = Affinity::of_this_thread();
        if affinity.allowed.is_none() {
            println!("SKIPPED a_thread_is_held_for_a_while…: there is one CPU");
            return;
        }
        let mut now = Instant::now();
        assert!(!affinity.let_go(now), "it is not held");
        affinity.hold();
        let cpu = affinity.held.unwrap();
        assert_eq!(sched_getaffinity(THIS).unwrap(), only(cpu));
        assert!(!affinity.let_go(now + HELD / 2));
        affinity.hold();
        assert_eq!(affinity.held, Some(cpu), "once");
        // Other processes of this machine may have frames in the backlog.
        let mut let_go = |affinity: &mut Affinity| {
            (0..1000).any(|_| {
                now += HELD;
                affinity.let_go(now)
            })
        };
        assert!(let_go(&mut affinity));
        assert_eq!(sched_getaffinity(THIS).unwrap(), before);

        // Another process moves this thread meanwhile.
        affinity.hold();
        let others: Vec<usize> =
            (0..CpuSet::count()).filter(|cpu| before.is_set(*cpu) == Ok(true)).collect();
        let other = *others.iter().find(|cpu| affinity.held != Some(**cpu)).unwrap();
        sched_setaffinity(THIS, &only(other)).unwrap();
        assert!(let_go(&mut affinity));
        assert_eq!(sched_getaffinity(THIS).unwrap(), only(other));
        affinity.hold();
        assert_eq!(affinity.held, None, "there is no choice any more");
        // It allows all CPUs again.
        sched_setaffinity(THIS, &before).unwrap();
        assert!(!let_go(&mut affinity));
        affinity.hold();
        assert!(affinity.held.is_some());

        // It allows two CPUs.
        if let [one, two, _, ..] = others.as_slice() {
            let mut both = only(*one);
            both.set(*two).unwrap();
            sched_setaffinity(THIS, &both).unwrap();
            for _ in 0..3 {
                assert!(let_go(&mut affinity));
                assert_eq!(sched_getaffinity(THIS).unwrap(), both);
                affinity.hold();
            }
        }

        // Another process restricts the whole process to the CPU on which this thread is held. The
        // thread stays there.
        let cpu = affinity.held.unwrap();
        let main = sched_getaffinity(getpid()).unwrap();
        sched_setaffinity(getpid(), &only(cpu)).unwrap();
        let gone = let_go(&mut affinity);
        affinity.hold();
        let (held, own) = (affinity.held, sched_getaffinity(THIS).unwrap());
        sched_setaffinity(getpid(), &main).unwrap();
        sched_setaffinity(THIS, &before).unwrap();
        assert!(gone && held.is_none() && own == only(cpu));
    }
}
