//! A worker that changes its CPU only while nothing of what it has sent waits on the one that it
//! leaves.
//!
//! What a thread sends over a veth waits in the backlog of the CPU that it ran on, at each hop
//! (`enqueue_to_backlog()`, `net/core/dev.c`). So a thread that the scheduler moves between two
//! sends overtakes its own frames when they still wait: rare (some forty moves in ten seconds of
//! full load, and one of ten such runs reordered), but nobody's to accept. A worker that has
//! something to do is therefore held where it is. It is let go again and again, so that it comes to
//! where there is room for it, but only with an empty backlog, which is when all of its frames have
//! arrived. (What a network card's queue or another CPU, by receive packet steering, has of them
//! does not count: there, order is the scheduler's and the card's as for any sender.)

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::{Pid, getpid};

/// For how long it is held at least.
const HELD: Duration = Duration::from_millis(100);
/// How soon the backlog is looked at again after it was not empty, for the first time; then after
/// twice as long each time.
const AGAIN: Duration = Duration::from_millis(1);
/// The calling thread, for the kernel.
const THIS: Pid = Pid::from_raw(0);

/// See the module's description. Belongs to the thread that it was made in.
///
/// Whoever says where the process runs (taskset(1) with `-a`, control groups) says it to the main
/// thread as well, and what is new there is what the worker goes by when it is let go: its own mask
/// says nothing new where somebody has put it on the CPU that it was held on.
#[derive(Debug)]
pub struct Affinity {
    /// Where it may run. `None` for one CPU, which needs no care, and where nothing can be changed.
    allowed: Option<CpuSet>,
    /// Where it is held.
    held: Option<usize>,
    /// Where the process may run, as it was said when the thread was held.
    process: Option<CpuSet>,
    /// How soon the backlog is looked at again if it is not empty.
    again: Duration,
    /// When it may be let go, or where it may run is looked at again.
    until: Option<Instant>,
    /// `/proc/net/softnet_stat`, of all CPUs and the same in every namespace; read into `said`.
    backlogs: Option<File>,
    said: String,
}

impl Affinity {
    /// Of the calling thread.
    #[must_use]
    pub fn of_this_thread() -> Self {
        let backlogs = File::open("/proc/net/softnet_stat").ok();
        let (allowed, held, process, until) = (None, None, None, None);
        let mut affinity =
            Self { allowed, held, process, again: AGAIN, until, backlogs, said: String::new() };
        // A kernel that does not say what waits gives no reason to hold on to anything.
        let knows = affinity.backlog(0).is_some();
        affinity.allow(sched_getaffinity(THIS).ok().filter(|_| knows));
        if !knows {
            affinity.backlogs = None;
        }
        affinity
    }

    /// Holds the thread on its CPU, if it is not held yet.
    #[inline]
    pub fn hold(&mut self) {
        if self.held.is_none() && self.allowed.is_some() {
            self.hold_here();
        }
    }

    /// Lets the thread go if it is time and nothing waits on its CPU. Returns whether it did.
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
        // Somebody may have spoken of this thread alone.
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

    /// Where the thread may run from now on.
    fn allow(&mut self, cpus: Option<CpuSet>) {
        self.allowed = cpus.filter(|cpus| {
            (0..CpuSet::count()).filter(|cpu| cpus.is_set(*cpu) == Ok(true)).count() > 1
        });
    }

    /// Frames in the backlog of a CPU. `None` if the kernel does not say (before Linux 5.10).
    fn backlog(&mut self, cpu: usize) -> Option<u32> {
        let file = self.backlogs.as_mut()?;
        self.said.clear();
        file.rewind().ok()?;
        file.read_to_string(&mut self.said).ok()?;
        backlog(&self.said, cpu)
    }
}

/// One line a CPU, whose number is its 13th word and its backlog the 12th (`softnet_seq_show()`,
/// `net/core/net-procfs.c`).
fn backlog(said: &str, cpu: usize) -> Option<u32> {
    let words = said.lines().map(|line| line.split_ascii_whitespace().skip(11));
    words.into_iter().find_map(|mut words| {
        let frames = u32::from_str_radix(words.next()?, 16).ok()?;
        (usize::from_str_radix(words.next()?, 16).ok()? == cpu).then_some(frames)
    })
}

fn only(cpu: usize) -> CpuSet {
    let mut cpus = CpuSet::new();
    // The kernel numbers no CPU higher than a set has room for.
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
        // Others of this machine may have something in the backlog.
        let mut let_go = |affinity: &mut Affinity| {
            (0..1000).any(|_| {
                now += HELD;
                affinity.let_go(now)
            })
        };
        assert!(let_go(&mut affinity));
        assert_eq!(sched_getaffinity(THIS).unwrap(), before);

        // Somebody puts this thread elsewhere meanwhile.
        affinity.hold();
        let others: Vec<usize> =
            (0..CpuSet::count()).filter(|cpu| before.is_set(*cpu) == Ok(true)).collect();
        let other = *others.iter().find(|cpu| affinity.held != Some(**cpu)).unwrap();
        sched_setaffinity(THIS, &only(other)).unwrap();
        assert!(let_go(&mut affinity));
        assert_eq!(sched_getaffinity(THIS).unwrap(), only(other));
        affinity.hold();
        assert_eq!(affinity.held, None, "there is no choice any more");
        // And gives it all of them again.
        sched_setaffinity(THIS, &before).unwrap();
        assert!(!let_go(&mut affinity));
        affinity.hold();
        assert!(affinity.held.is_some());

        // Or leaves it a choice.
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

        // Somebody puts the process where this thread is held, this thread included: it stays
        // there.
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
