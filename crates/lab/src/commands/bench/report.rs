//! The report of `lab bench`: vtepd's figures next to the kernel's, and a verdict.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use testbed::Datapath;
use testbed::sender::Input;
use testbed::table::{Better, Figure, Row};

/// vtepd's datapaths.
pub(super) const VTEPD: [(Datapath, &str); 3] = [
    (Datapath::Offload, "offload"),
    (Datapath::USERSPACE, "userspace"),
    (Datapath::CHOSEN_PORT, "kernel datapath"),
];
/// Within this share of the kernel's figure, vtepd counts as neither better nor worse: rounds
/// differ by more.
const ALIKE: f64 = 0.1;
/// How often a failed measurement is attempted in a round.
const ATTEMPTS: u8 = 2;

/// A quantity that is measured for each datapath.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// Frames per second that arrive when the sender is not limited.
    Frames { input: Input, length: usize, cores: usize },
    /// Median of the round-trip time.
    RoundTrip,
    /// 99th percentile of the round-trip time.
    LongestRoundTrips,
    /// TCP throughput from the leaf's host.
    Sent,
    /// TCP throughput to the leaf's host.
    Received,
}

impl What {
    fn name(self) -> String {
        match self {
            Self::Frames { input, length, cores } => {
                let what = if input == Input::Host { "encapsulate" } else { "decapsulate" };
                format!("{what} {length} B, {cores} core{}", if cores == 1 { "" } else { "s" })
            }
            Self::RoundTrip => "round trip, median".to_owned(),
            Self::LongestRoundTrips => "round trip, 99 of 100".to_owned(),
            Self::Sent => "TCP, sent".to_owned(),
            Self::Received => "TCP, received".to_owned(),
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Frames { .. } => "frames/s",
            Self::RoundTrip | Self::LongestRoundTrips => "µs",
            Self::Sent | Self::Received => "Gbit/s",
        }
    }

    const fn better(self) -> Better {
        match self {
            Self::RoundTrip | Self::LongestRoundTrips => Better::Lower,
            _ => Better::Higher,
        }
    }
}

/// Checks whether to go on.
///
/// # Errors
/// When the run was interrupted.
pub(super) fn check_interrupt(stop: &AtomicBool) -> Result<(), testbed::Error> {
    if stop.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
}

/// The results of all rounds. [`Datapath::SenderOnly`] is the rate of the sender alone.
#[derive(Debug, Default)]
pub(super) struct Figures {
    taken: BTreeMap<(Datapath, What), Vec<f64>>,
    /// The number of rounds without a figure, and the reason in the last of them. Without a `What`,
    /// the whole datapath has no figures.
    missing: BTreeMap<(Datapath, Option<What>), (u8, String)>,
}

impl Figures {
    /// Measures these quantities. A failed measurement is repeated once and then left out.
    ///
    /// # Errors
    /// When the run was interrupted.
    pub(super) fn take<const N: usize>(
        &mut self,
        stop: &AtomicBool,
        datapath: Datapath,
        whats: [What; N],
        mut measure: impl FnMut() -> Result<[f64; N], testbed::Error>,
    ) -> Result<(), testbed::Error> {
        for attempt in 1..=ATTEMPTS {
            check_interrupt(stop)?;
            match measure() {
                Ok(figures) => {
                    for (what, figure) in whats.into_iter().zip(figures) {
                        self.taken.entry((datapath, what)).or_default().push(figure);
                    }
                    return Ok(());
                }
                Err(error) if attempt == ATTEMPTS => {
                    // The interruption may be the cause of the error.
                    check_interrupt(stop)?;
                    whats.into_iter().for_each(|what| self.leave_out(datapath, Some(what), &error));
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Records that one round lacks this quantity, or with `None` all quantities of a datapath.
    pub(super) fn leave_out(
        &mut self,
        datapath: Datapath,
        what: Option<What>,
        error: &testbed::Error,
    ) {
        let (rounds, reason) = self.missing.entry((datapath, what)).or_default();
        *rounds += 1;
        *reason = error.to_string();
    }

    /// The figure of a quantity; `None` if there is none.
    fn of(&self, datapath: Datapath, what: What) -> Option<Figure> {
        Some(Figure::of(self.taken.get(&(datapath, what))?.iter().copied()))
    }

    /// Time per frame on one core in nanoseconds, without the time of the sender.
    fn net(&self, datapath: Datapath, what: What) -> Option<Figure> {
        let sender = 1e9 / self.of(Datapath::SenderOnly, what)?.median;
        Some(Figure::of(self.taken.get(&(datapath, what))?.iter().map(|rate| 1e9 / rate - sender)))
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (datapath, name) in VTEPD {
            for &(_, what) in self.taken.keys().filter(|(one, _)| *one == datapath) {
                let mut push = |case, unit, of: &dyn Fn(Datapath) -> Option<Figure>, better| {
                    let beside = |figure| {
                        Row::beside(name, case, unit, figure, of(Datapath::Kernel), better)
                    };
                    rows.extend(of(datapath).map(beside));
                };
                if let What::Frames { cores: 1, .. } = what {
                    let case = format!("{}, net CPU", what.name());
                    push(case, "ns/frame", &|datapath| self.net(datapath, what), Better::Lower);
                }
                push(what.name(), what.unit(), &|datapath| self.of(datapath, what), what.better());
            }
        }
        rows
    }

    fn left_out(&self) -> Vec<LeftOut> {
        let name = |datapath| match datapath {
            Datapath::Kernel => "kernel VXLAN",
            Datapath::SenderOnly => "the sender alone",
            _ => VTEPD.iter().find(|(one, _)| *one == datapath).map_or("vtepd", |(_, name)| name),
        };
        let left_out =
            |(&(datapath, what), (rounds, reason)): (&(Datapath, Option<What>), &(u8, String))| {
                LeftOut {
                    bench: name(datapath).to_owned(),
                    case: what.map_or_else(|| "everything".to_owned(), What::name),
                    rounds: *rounds,
                    reason: reason.clone(),
                }
            };
        self.missing.iter().map(left_out).collect()
    }
}

/// A quantity without a figure in some rounds.
#[derive(Debug, Serialize)]
struct LeftOut {
    bench: String,
    case: String,
    rounds: u8,
    reason: String,
}

/// How vtepd in one configuration compares with the kernel.
#[derive(Debug, PartialEq, Serialize)]
struct Verdict {
    bench: String,
    /// Number of figures that are better than the kernel's, within `alike` of them, and worse.
    better: usize,
    alike: usize,
    worse: usize,
    least_good: LeastGood,
}

/// The figure that compares worst.
#[derive(Debug, PartialEq, Serialize)]
struct LeastGood {
    case: String,
    ratio: f64,
    better: Better,
}

/// The complete results of a run.
#[derive(Debug, Serialize)]
pub(super) struct Compared {
    machine: String,
    /// Number of rounds. Figures are medians.
    rounds: u8,
    /// The share of the kernel's figure within which figures count as equal.
    alike: f64,
    rows: Vec<Row>,
    left_out: Vec<LeftOut>,
    verdict: Vec<Verdict>,
}

impl Compared {
    /// Compiles the results.
    ///
    /// # Errors
    /// The reason, if no figure of vtepd can be compared with the kernel's.
    pub(super) fn of(
        machine: String,
        rounds: u8,
        in_memory: Vec<Row>,
        figures: Figures,
    ) -> Result<Self, String> {
        let (mut rows, left_out) = (in_memory, figures.left_out());
        rows.extend(figures.rows());
        if !rows.iter().any(|row| row.ratio.is_some()) {
            let why = left_out
                .first()
                .map_or_else(String::new, |one| format!(": {}: {}", one.bench, one.reason));
            return Err(format!("nothing could be measured beside kernel VXLAN{why}"));
        }
        let verdict = VTEPD.iter().filter_map(|(_, name)| verdict(&rows, name)).collect();
        Ok(Self { machine, rounds, alike: ALIKE, rows, left_out, verdict })
    }

    /// What a frame costs in each datapath, a line for each.
    pub(super) fn brief(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        writeln!(
            out,
            "What forwarding costs, beside kernel VXLAN on the same core ({})",
            self.machine
        )?;
        for (_, name) in VTEPD {
            for row in self.rows.iter().filter(|row| row.bench == name) {
                let (Some(kernel), Some(ratio)) = (row.kernel, row.ratio) else { continue };
                if row.unit == "frames/s" {
                    continue;
                }
                let (case, figure, unit) = (&row.case, row.vtepd, &row.unit);
                writeln!(
                    out,
                    "  {name:<16} {case:<38} {figure:7.1} {unit:<9} {ratio:.2} of kernel VXLAN's {kernel:.1}"
                )?;
            }
        }
        for LeftOut { bench, case, reason, .. } in &self.left_out {
            writeln!(out, "  left out: {bench}, {case}: {reason}")?;
        }
        Ok(out)
    }

    /// The results as text.
    pub(super) fn text(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        writeln!(out, "{}\n", self.machine)?;
        out += &table(&self.rows);
        let (rounds, percent) = (self.rounds, ALIKE * 100.0);
        writeln!(
            out,
            "\nMedians of {rounds} rounds, and their least and largest. TIMES KERNEL is vtepd's figure divided by the kernel's.\n\
             net CPU: nanoseconds of the core from one frame that arrives to the next, less those that the sender alone needs: what\n\
             forwarding costs. frames/s: those that arrive of all that a sender can send; on 1 core the sender has its share of that.\n"
        )?;
        for LeftOut { bench, case, rounds: missing, reason } in &self.left_out {
            writeln!(out, "Left out in {missing} of {rounds} rounds: {bench}, {case}: {reason}")?;
        }
        writeln!(
            out,
            "Better and worse is what differs from the kernel's figure by more than {percent} %:"
        )?;
        for Verdict { bench, better, alike, worse, least_good } in &self.verdict {
            let LeastGood { case, ratio, better: direction } = least_good;
            let all = better + alike + worse;
            writeln!(
                out,
                "{bench}: better than kernel VXLAN in {better} of {all}, as good in {alike}, worse in {worse}; \
                 least good: {case}, {ratio:.2} times the kernel's ({} is better)",
                direction_of(*direction)
            )?;
        }
        Ok(out)
    }
}

const fn direction_of(better: Better) -> &'static str {
    match better {
        Better::Lower => "lower",
        Better::Higher => "higher",
    }
}

/// The rows under headings. Columns are two spaces apart; empty cells are shown as `-`.
fn table(rows: &[Row]) -> String {
    let figure = |figure: f64| {
        if figure < 1000.0 { format!("{figure:.1}") } else { format!("{figure:.0}") }
    };
    let range = |[least, most]: [f64; 2]| format!("{}-{}", figure(least), figure(most));
    let headings =
        ["WHO", "WHAT", "FIGURE", "MIN-MAX", "KERNEL", "MIN-MAX", "UNIT", "BETTER", "TIMES KERNEL"];
    let mut lines = vec![headings.map(str::to_owned)];
    lines.extend(rows.iter().map(|row| {
        let cell = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
        [
            row.bench.clone(),
            row.case.clone(),
            figure(row.vtepd),
            cell(row.range.map(range)),
            cell(row.kernel.map(figure)),
            cell(row.kernel_range.map(range)),
            row.unit.clone(),
            direction_of(row.better).to_owned(),
            cell(row.ratio.map(|ratio| format!("{ratio:.2}"))),
        ]
    }));
    let mut widths = [0; 9];
    for line in &lines {
        for (cell, width) in line.iter().zip(&mut widths) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}  "));
        text += cells.collect::<String>().trim_end();
        text += "\n";
    }
    text
}

/// The verdict on one configuration; `None` if no figure can be compared with the kernel's.
fn verdict(rows: &[Row], name: &str) -> Option<Verdict> {
    let (mut counts, mut worst) = ([0; 3], None);
    for row in rows.iter().filter(|row| row.bench == name) {
        let Some(ratio) = row.ratio else { continue };
        // By how much it is better than the kernel, as a share of the kernel's figure.
        let gain = match row.better {
            Better::Higher => ratio - 1.0,
            Better::Lower => 1.0 - ratio,
        };
        let place = if gain > ALIKE { 0 } else { 1 + usize::from(gain < -ALIKE) };
        *counts.get_mut(place)? += 1;
        if worst.as_ref().is_none_or(|(least, _)| gain < *least) {
            worst = Some((gain, LeastGood { case: row.case.clone(), ratio, better: row.better }));
        }
    }
    let ([better, alike, worse], (_, least_good)) = (counts, worst?);
    Some(Verdict { bench: name.to_owned(), better, alike, worse, least_good })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_CORE: What = What::Frames { input: Input::Host, length: 64, cores: 1 };

    /// Figures of one round each.
    fn figures(all: &[(Datapath, What, f64)]) -> Figures {
        let mut figures = Figures::default();
        for &(datapath, what, figure) in all {
            figures.take(&AtomicBool::new(false), datapath, [what], || Ok([figure])).unwrap();
        }
        figures
    }

    fn said(rounds: u8, figures: Figures) -> String {
        Compared::of("m".into(), rounds, Vec::new(), figures).unwrap().text().unwrap()
    }

    #[test]
    fn the_verdict_counts_what_is_better_and_names_the_worst() {
        let text = said(
            1,
            figures(&[
                (Datapath::Kernel, What::Sent, 10.0),
                (Datapath::USERSPACE, What::Sent, 9.5),
                (Datapath::Kernel, What::Received, 10.0),
                (Datapath::USERSPACE, What::Received, 20.0),
                (Datapath::Kernel, What::RoundTrip, 10.0),
                (Datapath::USERSPACE, What::RoundTrip, 20.0),
                (Datapath::Kernel, What::LongestRoundTrips, 10.0),
                (Datapath::USERSPACE, What::LongestRoundTrips, 5.0),
            ]),
        );
        let verdict = "by more than 10 %:\nuserspace: better than kernel VXLAN in 2 of 4, as good in 1, worse in 1; \
                       least good: round trip, median, 2.00 times the kernel's (lower is better)\n";
        assert!(text.ends_with(verdict), "{text}");
    }

    #[test]
    fn net_cpu_is_what_the_sender_does_not_need() {
        let all = [
            (Datapath::SenderOnly, ONE_CORE, 1e7),
            (Datapath::Kernel, ONE_CORE, 1e6),
            (Datapath::USERSPACE, ONE_CORE, 2e6),
        ];
        let rows = figures(&all).rows();
        let [net, arrived] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!(net.case, "encapsulate 64 B, 1 core, net CPU");
        assert!((net.vtepd - 400.0).abs() < 1e-6 && net.better == Better::Lower, "{net:?}");
        assert!((net.ratio.unwrap() - 400.0 / 900.0).abs() < 1e-9, "{net:?}");
        assert_eq!((arrived.unit.as_str(), arrived.ratio), ("frames/s", Some(2.0)));
    }

    #[test]
    fn what_fails_is_tried_again_and_then_left_out() {
        let check_interrupt = AtomicBool::new(false);
        let mut figures =
            figures(&[(Datapath::Kernel, What::Sent, 1.0), (Datapath::USERSPACE, What::Sent, 1.0)]);
        for wrong in [1, 2, 9] {
            let mut calls = 0;
            let measure = || {
                calls += 1;
                if calls <= wrong {
                    Err(format!("attempt {calls} failed").into())
                } else {
                    Ok([3.0])
                }
            };
            figures.take(&check_interrupt, Datapath::USERSPACE, [What::Received], measure).unwrap();
            assert_eq!(calls, 2, "one that fails is tried twice, not more");
        }
        assert_eq!(figures.taken[&(Datapath::USERSPACE, What::Received)], [3.0]);
        let text = said(3, figures);
        assert!(
            text.contains(
                "Left out in 2 of 3 rounds: userspace, TCP, received: attempt 2 failed\n"
            ),
            "{text}"
        );
        assert!(text.contains("userspace: better than kernel VXLAN in 0 of 1"), "{text}");
    }

    #[test]
    fn interrupted_it_ends() {
        let mut figures = Figures::default();
        let stop = AtomicBool::new(false);
        let error = figures.take(&stop, Datapath::USERSPACE, [What::Sent], || {
            stop.store(true, Ordering::Relaxed);
            Err("vtepd is gone".into())
        });
        assert_eq!(error.unwrap_err().to_string(), "interrupted");
        assert!(figures.missing.is_empty());
    }

    #[test]
    fn without_a_figure_the_reason_is_told() {
        let mut figures = figures(&[(Datapath::Kernel, What::Sent, 1.0)]);
        figures.leave_out(Datapath::USERSPACE, None, &"vtepd ended before".into());
        let error = Compared::of("m".into(), 1, Vec::new(), figures).unwrap_err();
        assert_eq!(
            error,
            "nothing could be measured beside kernel VXLAN: userspace: vtepd ended before"
        );
    }
}
