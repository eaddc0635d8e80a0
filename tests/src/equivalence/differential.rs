//! Differential fuzzing: random leaves, changes and frames, forwarded by kernel VXLAN and by vtepd.
//!
//! A case is a list of steps. Some set a knob of the table or undo it. Others send frames until
//! what arrives is stable. vtepd starts before one step and ends before another. What arrives at
//! each step is compared with what arrives with kernel VXLAN alone. A case that differs is shrunk
//! as long as it still differs.

use std::fmt;

use super::leaf::{Leaf, Plan};
use super::observation::Observation;
use super::rows::GROUPS;
use super::stimulus::{BROADCAST, Damage, GROUP, Inner, Kind, PEER, PEER2, Stimulus, Tunnel};
use super::table::{Bench, Row};
use super::wires::Wire;

/// A pseudo-random number generator (SplitMix64).
#[derive(Debug, Clone, Copy)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of a seed.
    #[must_use]
    pub const fn of(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let a = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        b ^ (b >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, odds: usize) -> bool {
        self.below(odds) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Restrictions for random cases.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    /// Knobs whose name contains one of these strings are left out.
    pub without: Vec<String>,
    /// Only well-formed frames of known VTEPs, and no ICMP messages of a router.
    pub plain: bool,
}

/// A step of a case.
#[derive(Clone, PartialEq, Eq)]
pub enum Step {
    /// Sets a knob, or undoes it if it is set.
    Turn(usize),
    /// Sends frames until what arrives is stable, and compares.
    Send(Vec<Stimulus>),
}

/// A leaf, and the steps that change it.
#[derive(Clone, PartialEq, Eq)]
pub struct Case {
    /// Options of the vxlan netdev.
    pub options: Vec<&'static str>,
    /// What the hosts are like.
    pub hosts: Hosts,
    /// Whether vtepd leaves the VNI to kernel VXLAN.
    pub kernel: bool,
    /// The steps.
    pub steps: Vec<Step>,
    /// vtepd starts before the step with this index.
    pub start: usize,
    /// vtepd ends before the step with this index.
    pub end: usize,
}

/// What is special about the hosts of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hosts {
    /// Whether the first or the second host has an interface for a VLAN, from which most frames come.
    pub tagged: [bool; 2],
    /// Whether they leave checksums to the device, as a virtual machine behind a TAP.
    pub partial: bool,
    /// Whether they have tunnels of their own.
    pub nested: bool,
    /// Whether the kernel of the first host has a tunnel of its own, and whether that is tagged.
    pub own_tunnel: Option<bool>,
}

impl Hosts {
    fn draw(random: &mut Random) -> Self {
        Self {
            tagged: [0, 1].map(|_| random.one_in(3)),
            partial: random.one_in(2),
            nested: random.one_in(4),
            own_tunnel: if random.one_in(3) { Some(random.one_in(2)) } else { None },
        }
    }

    /// A frame from or to the host at a wire, as this host sends it.
    fn shape(self, random: &mut Random, mut inner: Inner, wire: Wire) -> Inner {
        let number = usize::from(wire == Wire::H2);
        if self.tagged[number] && !random.one_in(8) {
            inner.tags = &[0x8100];
        }
        inner.partial = self.partial && random.one_in(2);
        inner.nested = self.nested && inner.length < 8000 && random.one_in(2);
        inner
    }
}

/// Whether this knob can be compared beside those of the steps before it.
fn comparable(all: &[&Row], steps: &[Step], knob: usize) -> bool {
    let depends_on_the_hash = |a: &Row, b: &Row| a.balanced && b.one_uplink;
    steps.iter().all(|step| match step {
        Step::Turn(other) => {
            let (a, b) = (all[knob], all[*other]);
            !depends_on_the_hash(a, b) && !depends_on_the_hash(b, a)
        }
        Step::Send(_) => true,
    })
}

/// All rows that change something and undo it.
fn knobs() -> Vec<&'static Row> {
    let rows = GROUPS.iter().flat_map(|group| group.rows);
    rows.filter(|row| !row.set.is_empty() && row.set != row.unset).collect()
}

impl Case {
    /// Generates the case of a seed.
    #[must_use]
    pub fn draw(random: &mut Random, limits: &Limits) -> Self {
        let mut options = vec![random.pick(&["nolearning", "learning"])];
        for more in
            [&["ttl 9", "ttl inherit"], &["tos 0x20", "tos inherit"], &["df set", "df inherit"]]
        {
            if random.one_in(4) {
                options.push(random.pick(more));
            }
        }
        if random.one_in(5) {
            options.push("noudpcsum");
        }
        let all = knobs();
        let allowed: Vec<usize> = (0..all.len())
            .filter(|index| !limits.without.iter().any(|part| all[*index].name.contains(part)))
            .collect();
        let mut steps = Vec::new();
        let (hosts, kernel) = (Hosts::draw(random), random.one_in(4));
        if kernel && random.one_in(2) {
            // vtepd may set a mark where a VTEP has several next hops.
            for part in ["two next hops", "mark"] {
                let of = |index: &usize| all[*index].name.contains(part);
                let knobs: Vec<usize> = allowed.iter().copied().filter(of).collect();
                if !knobs.is_empty() {
                    steps.push(Step::Turn(random.pick(&knobs)));
                }
            }
        }
        for _ in 0..2 + random.below(3) {
            if random.below(3) > 0 && !allowed.is_empty() {
                // Often a knob that is set already, so that it is undone.
                let turned = steps.iter().rev().find_map(|step| match step {
                    Step::Turn(knob) => Some(*knob),
                    Step::Send(_) => None,
                });
                let knob = match turned {
                    Some(knob) if random.one_in(3) => knob,
                    _ => random.pick(&allowed),
                };
                if comparable(&all, &steps, knob) {
                    steps.push(Step::Turn(knob));
                }
            }
            let count = 2 + random.below(8);
            steps.push(Step::Send((0..count).map(|_| draw_frame(random, limits, hosts)).collect()));
        }
        let middle = random.below(steps.len());
        let (start, end) = match random.below(3) {
            0 => (0, steps.len()),
            1 => (middle, steps.len()),
            _ => (0, middle.max(1)),
        };
        Self { options, hosts, kernel, steps, start, end }
    }

    /// Runs the case with kernel VXLAN alone and with vtepd. Returns the difference, if any.
    ///
    /// # Errors
    /// If kernel VXLAN is not stable, so that nothing can be compared.
    pub fn difference(&self) -> Result<Option<String>, String> {
        let kernel = self.run(None)?;
        match self.run(Some(&kernel)) {
            Ok(_) => Ok(None),
            Err(difference) => Ok(Some(difference)),
        }
    }

    /// Returns what arrives at each step. With `expected`, vtepd runs between its start and its
    /// end, and what arrives is compared.
    fn run(&self, expected: Option<&[Observation]>) -> Result<Vec<Observation>, String> {
        let all = knobs();
        let (own_tunnel, kernel) = (self.hosts.own_tunnel, self.kernel);
        let vxlan = self.options.join(" ");
        let plan = Plan { vxlan, own_tunnel, kernel, ..Plan::default() };
        let turned = |step: &Step| matches!(step, Step::Turn(knob) if all[*knob].balanced);
        let balanced = self.steps.iter().any(turned);
        let mut bench = Bench { leaf: Leaf::build(&plan), frames: Vec::new(), balanced };
        let mut set = vec![false; all.len()];
        let (mut seen, mut vtepd) = (Vec::new(), None);
        for (index, step) in self.steps.iter().enumerate() {
            if expected.is_some() && index == self.end {
                vtepd = None;
            }
            if expected.is_some() && (self.start..self.end).contains(&index) && vtepd.is_none() {
                vtepd = Some(bench.leaf.vtepd());
            }
            match step {
                Step::Turn(knob) => {
                    set[*knob] ^= true;
                    // If two knobs exclude each other, the second has no effect, with vtepd or
                    // without.
                    let row = all[*knob];
                    let _ = bench.leaf.run(if set[*knob] { row.set } else { row.unset });
                }
                Step::Send(frames) => {
                    bench.frames.clone_from(frames);
                    match expected.and_then(|expected| expected.get(seen.len())) {
                        Some(expected) => {
                            bench.vtepd(expected, &format!("step {index}"))?;
                            seen.push(expected.clone());
                        }
                        None => seen.push(bench.kernel()?),
                    }
                }
            }
        }
        Ok(seen)
    }

    /// Shrinks the case as long as it differs. Returns the smallest case and its difference.
    #[must_use]
    pub fn shrink(self, difference: String) -> (Self, String) {
        let (mut smallest, mut shown, mut budget) = (self, difference, 60_u32);
        'smaller: loop {
            for candidate in smallest.smaller() {
                budget = budget.saturating_sub(1);
                if budget == 0 {
                    return (smallest, shown);
                }
                if let Ok(Some(difference)) = candidate.difference() {
                    (smallest, shown) = (candidate, difference);
                    continue 'smaller;
                }
            }
            return (smallest, shown);
        }
    }

    /// Cases that each have a bit less.
    fn smaller(&self) -> Vec<Self> {
        let mut found = Vec::new();
        let mut add = |case: Self| {
            if case != *self && case.steps.iter().any(|step| matches!(step, Step::Send(_))) {
                found.push(case);
            }
        };
        for index in (0..self.steps.len()).rev() {
            let mut case = self.clone();
            case.steps.remove(index);
            case.start -= usize::from(case.start > index);
            case.end -= usize::from(case.end > index);
            if case.start < case.end {
                add(case);
            }
        }
        add(Self { start: 0, end: self.steps.len(), ..self.clone() });
        add(Self { kernel: false, ..self.clone() });
        for index in 1..self.options.len() {
            let mut case = self.clone();
            case.options.remove(index);
            add(case);
        }
        for (index, step) in self.steps.iter().enumerate() {
            let Step::Send(frames) = step else { continue };
            let (first, second) = frames.split_at(frames.len() / 2);
            let without = |index: usize| [&frames[..index], &frames[index + 1..]].concat();
            let single = (0..frames.len()).map(without);
            for fewer in [first.to_vec(), second.to_vec()].into_iter().chain(single) {
                if !fewer.is_empty() {
                    let mut case = self.clone();
                    case.steps[index] = Step::Send(fewer);
                    add(case);
                }
            }
        }
        found
    }
}

/// A random frame from a host or a VTEP, or an ICMP message of a router.
fn draw_frame(random: &mut Random, limits: &Limits, hosts: Hosts) -> Stimulus {
    if hosts.own_tunnel.is_some() && random.one_in(4) {
        let inner = Inner::udp(1, 3).length(random.pick(&[0, 40, 1400]));
        let kind = random.pick(&[Kind::Tcp, Kind::Udp, Kind::Arp]);
        return Stimulus::Own(Inner { partial: random.below(3) > 0, ..inner.kind(kind) });
    }
    if !limits.plain && random.one_in(16) {
        return Stimulus::TooBig { wire: Wire::U1, to: PEER, mtu: random.pick(&[600, 1500, 9000]) };
    }
    let uplink = random.pick(&[Wire::U1, Wire::U2]);
    let (own, vtep) = if uplink == Wire::U1 { (3, PEER) } else { (4, PEER2) };
    if random.one_in(2) {
        let wire = random.pick(&[Wire::H1, Wire::H2]);
        let to = random.pick(&[3, 3, 4, 4, 1, 2, 98, BROADCAST, GROUP]);
        let inner = draw_inner(random, limits, wire as u8 + 1, to);
        return Stimulus::Host(wire, hosts.shape(random, inner, wire));
    }
    let to = random.pick(&[1, 1, 2, 2, 3, 4, 99, BROADCAST, GROUP]);
    let mut inner = draw_inner(random, limits, own, to);
    if hosts.tagged[usize::from(to == 2)] && !random.one_in(4) {
        inner.tags = &[0x8100];
    }
    let mut tunnel = Tunnel::from(uplink, vtep);
    if !limits.plain && random.one_in(3) {
        match random.below(6) {
            0 => tunnel.source = random.pick(SOURCES),
            1 => tunnel.destination = random.pick(SOURCES),
            2 => tunnel.flip = 1 << random.below(64),
            3 => tunnel.vni = random.pick(&[0, 11, 0xff_ffff]),
            4 => tunnel.port = random.pick(&[4790, 8472]),
            _ => tunnel.tos = random.next() as u8,
        }
    }
    Stimulus::Tunnel(tunnel, inner)
}

const fn ip(a: u8, b: u8, c: u8, d: u8) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::new(a, b, c, d)
}

/// Outer addresses, valid and invalid ones.
const SOURCES: &[std::net::Ipv4Addr] = &[
    ip(0, 0, 0, 0),
    ip(127, 0, 0, 1),
    ip(224, 0, 0, 5),
    ip(255, 255, 255, 255),
    ip(10, 0, 0, 1),
    ip(10, 1, 1, 1),
    ip(10, 1, 2, 1),
    ip(10, 1, 1, 255),
    ip(10, 0, 0, 9),
    PEER,
    PEER2,
];

fn draw_inner(random: &mut Random, limits: &Limits, from: u8, to: u8) -> Inner {
    let mut inner = Inner::udp(from, to).length(random.pick(&[0, 40, 40, 1400, 2000, 8800]));
    inner.kind = match random.below(12) {
        0 => Kind::Tcp,
        1 => Kind::Ipv6,
        2 => Kind::Arp,
        3 => Kind::Other,
        4..=6 => Kind::Roce(random.below(1 << 24) as u32),
        _ => Kind::Udp,
    };
    inner.dont_fragment = random.one_in(3);
    if random.one_in(4) {
        (inner.tos, inner.ttl) = (random.next() as u8, random.pick(&[1, 5, 64, 255]));
    }
    if random.one_in(8) {
        inner.tags = random.pick(&[&[0x8100][..], &[0x88a8], &[0x9100], &[0x88a8, 0x8100]]);
    }
    if !limits.plain && random.one_in(10) {
        inner.damage = random.pick(&[
            Damage::Short,
            Damage::Version,
            Damage::HeaderLength,
            Damage::TooLong,
            Damage::Trailing,
            Damage::Checksum,
            Damage::Empty,
        ]);
        // Other kinds have no IPv4 header that could be damaged.
        inner.kind = Kind::Udp;
    }
    inner
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = knobs();
        writeln!(f, "  vxlan {}", self.options.join(" "))?;
        writeln!(f, "  {:?}, kernel datapath: {}", self.hosts, self.kernel)?;
        let mut set = vec![false; all.len()];
        for (index, step) in self.steps.iter().enumerate() {
            for (when, what) in [(self.end, "ends"), (self.start, "starts")] {
                if index == when {
                    writeln!(f, "  vtepd {what}")?;
                }
            }
            match step {
                Step::Turn(knob) => {
                    set[*knob] ^= true;
                    let what = if set[*knob] { "set" } else { "taken away" };
                    writeln!(f, "  {index}: {}: {what}", all[*knob].name)?;
                }
                Step::Send(frames) => {
                    writeln!(f, "  {index}: send")?;
                    for frame in frames {
                        writeln!(f, "      {frame:?}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The result of many cases.
#[derive(Debug, Default)]
pub struct Summary {
    /// Seeds whose case differs, each with its smallest case and the difference.
    pub differences: Vec<(u64, String)>,
    /// Seeds for which kernel VXLAN was not stable.
    pub unsteady: Vec<u64>,
}

/// Runs after which the state is printed.
const PROGRESS: u64 = 50;

/// Runs the cases of `runs` seeds, beginning with `first`, and prints what differs.
#[must_use]
pub fn run(first: u64, runs: u64, limits: &Limits) -> Summary {
    let mut summary = Summary::default();
    for seed in first..first.saturating_add(runs) {
        let done = seed - first;
        if done > 0 && done.is_multiple_of(PROGRESS) {
            let [differ, unsteady] = [summary.differences.len(), summary.unsteady.len()];
            eprintln!("{done} of {runs} runs: {differ} differ, {unsteady} cannot be compared");
        }
        let case = Case::draw(&mut Random::of(seed), limits);
        match case.difference() {
            Ok(None) => {}
            Err(_) => summary.unsteady.push(seed),
            Ok(Some(difference)) => {
                let (smallest, difference) = case.shrink(difference);
                let text = format!("seed {seed}:\n{smallest}{difference}");
                println!("{text}");
                summary.differences.push((seed, text));
            }
        }
    }
    summary
}
