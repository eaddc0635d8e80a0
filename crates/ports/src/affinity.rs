//! A worker that changes its CPU only while nothing of what it has sent waits on the one that it leaves.
//!
//! What a thread sends over a veth waits in the backlog of the CPU that it ran on, at each hop (`enqueue_to_backlog()`,
//! `net/core/dev.c`). So a thread that the scheduler moves between two sends overtakes its own frames when they still wait:
//! rare (some forty moves in ten seconds of full load, and one of ten such runs reordered), but nobody's to accept. A worker
//! that has something to do is therefore held where it is. It is let go again and again, so that it comes to where there is room
//! for it, but only with an empty backlog, which is when all of its frames have arrived.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

/// For how long it is held at least.
const HELD: Duration = Duration::from_millis(100);
/// How soon the backlog is looked at again after it was not empty.
const AGAIN: Duration = Duration::from_millis(1);
/// The calling thread, for the kernel.
const THIS: Pid = Pid::from_raw(0);

/// See the module's description. Belongs to the thread that it was made in.
#[derive(Debug)]
pub struct Affinity {
    /// Where it may run, by whoever has a say in that. `None` for one CPU, which needs no care, and where nothing can be changed.
    allowed: Option<CpuSet>,
    /// Where it is held.
    held: Option<usize>,
    /// When it may be let go.
    until: Option<Instant>,
    /// `/proc/net/softnet_stat`, of all CPUs and the same in every namespace; read into `said`.
    backlogs: Option<File>,
    said: String,
}

impl Affinity {
    /// Of the calling thread, which may run wherever it could before.
    #[must_use]
    pub fn of_this_thread() -> Self {
        let backlogs = File::open("/proc/net/softnet_stat").ok();
        let mut affinity = Self { allowed: None, held: None, until: None, backlogs, said: String::new() };
        affinity.allow(sched_getaffinity(THIS).ok());
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
        self.held.is_some_and(|cpu| *self.until.get_or_insert(now + HELD) <= now && self.let_go_of(cpu, now))
    }

    fn hold_here(&mut self) {
        self.held = sched_getcpu().ok().filter(|cpu| sched_setaffinity(THIS, &only(*cpu)).is_ok());
        if self.held.is_none() {
            self.allowed = None;
        }
    }

    #[cold]
    fn let_go_of(&mut self, cpu: usize, now: Instant) -> bool {
        if self.backlog(cpu).is_some_and(|frames| frames > 0) {
            self.until = Some(now + AGAIN);
            return false;
        }
        (self.held, self.until) = (None, None);
        match sched_getaffinity(THIS) {
            Ok(now) if now != only(cpu) => self.allow(Some(now)),
            _ => {
                if self.allowed.is_none_or(|allowed| sched_setaffinity(THIS, &allowed).is_err()) {
                    self.allowed = None;
                }
            }
        }
        true
    }

    /// Somebody has said where the thread may run.
    fn allow(&mut self, cpus: Option<CpuSet>) {
        self.allowed =
            cpus.filter(|cpus| (0..CpuSet::count()).filter(|cpu| cpus.is_set(*cpu) == Ok(true)).count() > 1);
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

/// One line a CPU, whose number is its 13th word and its backlog the 12th (`softnet_seq_show()`, `net/core/net-procfs.c`).
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
        let start = Instant::now();
        assert!(!affinity.let_go(start), "it is not held");
        affinity.hold();
        let cpu = affinity.held.unwrap();
        assert_eq!(sched_getaffinity(THIS).unwrap(), only(cpu));
        assert!(!affinity.let_go(start) && !affinity.let_go(start + HELD / 2));
        affinity.hold();
        assert_eq!(affinity.held, Some(cpu), "once");
        // Other threads of this machine may have something in the backlog.
        let let_go = |affinity: &mut Affinity| (0..1000).any(|i| affinity.let_go(start + HELD * (2 + i)));
        assert!(let_go(&mut affinity));
        assert_eq!(sched_getaffinity(THIS).unwrap(), before);

        // Somebody else decides meanwhile.
        affinity.hold();
        let other = (0..CpuSet::count()).rfind(|cpu| before.is_set(*cpu).unwrap()).unwrap();
        let other = if affinity.held == Some(other) { 0 } else { other };
        sched_setaffinity(THIS, &only(other)).unwrap();
        assert!(let_go(&mut affinity));
        assert_eq!(sched_getaffinity(THIS).unwrap(), only(other));
        affinity.hold();
        assert_eq!(affinity.held, None, "there is no choice any more");
        sched_setaffinity(THIS, &before).unwrap();
    }
}
