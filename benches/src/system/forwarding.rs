//! Encapsulation and decapsulation with senders at the maximum rate.

use std::collections::BTreeMap;
use std::time::Duration;

use testbed::measurement::Case;
use testbed::sender::Input;
use testbed::topology::{JUMBO, MTU};
use testbed::{Bed, Traffic, Turn, Way, ovs_dpdk};

use super::{Failure, LeftOut, Terms};
use crate::table::{Better, Figure, Row};

/// The datapaths for encapsulation and decapsulation. The targets of encapsulation apply only to
/// vtepd with super-frames.
const WAYS: [Way; 7] = [
    Way::Nobody,
    Way::Kernel,
    Way::KernelWithoutNf,
    Way::PUNT_SINGLE,
    Way::PUNT,
    Way::BYPASS_SINGLE,
    Way::BYPASS,
];
/// Kernel VXLAN with chosen source ports, for encapsulation.
const KERNEL_DATAPATH: [Way; 2] = [Way::CHOSEN_PORT, Way::CHOSEN_PORT_MARKED];
/// The references for encapsulation.
const REFERENCES: [Way; 4] =
    [Way::OPEN_VSWITCH, Way::OPEN_VSWITCH_XDP, Way::TESTPMD, Way::TESTPMD_XDP];

/// The maximum frame length in bytes for the usual MTU, including the Ethernet header.
const USUAL: usize = MTU as usize + 14;

type Turns = BTreeMap<(Way, Case), Vec<Turn>>;

pub(super) fn measure(terms: &Terms, left_out: &mut LeftOut) -> Result<Vec<Row>, Failure> {
    let beds = Beds { own: Bed::new("")?, references: Bed::new("r")? };
    ovs_dpdk::prepare(&beds.references)?;
    let all = [&WAYS[..], &KERNEL_DATAPATH, &REFERENCES].concat();
    let encapsulate = turns(terms, &beds, &all, &cases(terms, &[Input::Host]), left_out)?;
    let mut rows = table(&encapsulate, "encapsulate", &all, encapsulation_target);
    rows.extend(beside_open_vswitch(&encapsulate));
    let inputs = [Input::Singles, Input::SuperFrames];
    let decapsulate = turns(terms, &beds, &WAYS, &cases(terms, &inputs), left_out)?;
    rows.extend(table(&decapsulate, "decapsulate", &WAYS, decapsulation_target));
    rows.extend(fabrics(&decapsulate));
    Ok(rows)
}

/// The beds for vtepd and the kernel, and for the references.
struct Beds {
    own: Bed,
    references: Bed,
}

/// The cases to measure: on one core, on two cores, and on two with a busy thread on vtepd's core.
fn cases(terms: &Terms, inputs: &[Input]) -> Vec<Case> {
    let (lengths, pairs): (&[usize], &[u32]) = if terms.quick {
        (&[64, 1082], &[1, 64])
    } else {
        (&[64, 256, 1082, 4154], &[1, 8, 64, 1024])
    };
    let mut cases = Vec::new();
    for &input in inputs {
        for cores in [1, 2] {
            for &length in lengths {
                // Decapsulation depends less on the number of queue pairs.
                let pairs = if input == Input::Host { pairs } else { &[64] };
                let traffic =
                    |&queue_pairs: &u32| Traffic { input, length, queue_pairs, bursts: false };
                cases.extend(pairs.iter().map(traffic).map(|traffic| Case {
                    traffic,
                    cores,
                    busy: false,
                }));
                if input == Input::Host && !terms.quick {
                    let traffic = Traffic { input, length, queue_pairs: 64, bursts: true };
                    cases.push(Case { traffic, cores, busy: false });
                }
            }
        }
        let traffic = Traffic { input, length: 1082, queue_pairs: 64, bursts: false };
        cases.push(Case { traffic, cores: 2, busy: true });
    }
    cases
}

/// Whether this datapath is measured in this case.
fn is_taken(way: Way, case: Case) -> bool {
    let Case { traffic: Traffic { input, length, queue_pairs, bursts }, cores, busy } = case;
    match way {
        // The cost of the sender is the same with two cores.
        Way::Nobody => cores == 1 && !busy,
        // A program that polls in a loop takes as much of a shared core as it can get.
        Way::Testpmd { .. } if cores == 1 => false,
        Way::OpenVswitch { .. } | Way::Testpmd { .. } => {
            [64, 1082].contains(&length) && [1, 64].contains(&queue_pairs) && !bursts && !busy
        }
        // The port matters to encapsulation only.
        Way::ChosenPort { .. } => input == Input::Host && cores == 1 && !bursts,
        Way::Kernel | Way::KernelWithoutNf | Way::Vtepd { .. } => true,
    }
}

fn turns(
    terms: &Terms,
    beds: &Beds,
    ways: &[Way],
    cases: &[Case],
    left_out: &mut LeftOut,
) -> Result<Turns, Failure> {
    let mut turns = Turns::new();
    let has_switch = beds.own.set_bridge_nf(true)?;
    for round in 1..=terms.rounds {
        for &way in ways.iter().filter(|way| has_switch || **way != Way::KernelWithoutNf) {
            if let Some(package) = way.missing_package() {
                left_out.insert(way, format!("install {package}"));
                continue;
            }
            let cases: Vec<Case> =
                cases.iter().copied().filter(|case| is_taken(way, *case)).collect();
            eprintln!("round {round} of {}: {way}, {} cases", terms.rounds, cases.len());
            let bed = if way.is_reference() { &beds.references } else { &beds.own };
            match turns_of(terms, bed, way, &cases, &mut turns) {
                // The other figures are valid without this reference.
                Err(error) if way.is_reference() && terms.go_on().is_ok() => {
                    left_out.insert(way, format!("the rest of round {round}: {error}"));
                }
                result => result?,
            }
        }
    }
    Ok(turns)
}

/// Measures one datapath in all cases once.
fn turns_of(
    terms: &Terms,
    bed: &Bed,
    way: Way,
    cases: &[Case],
    turns: &mut Turns,
) -> Result<(), Failure> {
    let time = Duration::from_millis(if terms.quick { 200 } else { 500 });
    // Long frames need links with a larger MTU.
    let (long, usual): (Vec<Case>, Vec<Case>) =
        cases.iter().partition(|case| case.traffic.length > USUAL);
    for (mtu, cases) in [(MTU, usual), (JUMBO, long)] {
        if cases.is_empty() {
            continue;
        }
        // The beds of references have their own MTU.
        if !way.is_reference() {
            bed.set_mtu(mtu)?;
        }
        let daemon = way.take(bed, &terms.vtepd)?;
        for case in cases {
            terms.go_on()?;
            let turn = Turn::take(bed, case, time, way, daemon.as_ref());
            let turn = turn.map_err(|error| format!("{way}, {}: {error}", named(case)))?;
            turns.entry((way, case)).or_default().push(turn);
        }
        daemon.map(testbed::Daemon::stop).transpose()?;
    }
    if way.is_reference() { Ok(()) } else { Ok(bed.set_mtu(MTU)?) }
}

/// The rows of all cases and datapaths.
fn table(
    turns: &Turns,
    bench: &str,
    ways: &[Way],
    target: fn(&Case, Way, What) -> Option<f64>,
) -> Vec<Row> {
    let cases: Vec<Case> =
        turns.keys().filter(|(way, _)| *way == Way::Kernel).map(|(_, case)| *case).collect();
    let mut rows = Vec::new();
    for case in cases {
        let alone = Case { cores: 1, busy: false, ..case };
        let sender = of(turns, Way::Nobody, alone, |turn| 1e9 / turn.offered).median;
        // The sender's own cost is subtracted in `net CPU`. The kernel's figures have no rows of their
        // own, but are shown beside the others.
        let shown = |way: &&Way| {
            ![Way::Nobody, Way::Kernel].contains(way) && turns.contains_key(&(**way, case))
        };
        for &way in ways.iter().filter(shown) {
            let mut push = |what: What, vtepd: Figure, kernel: Option<Figure>| {
                let case_name = format!("{}, {way}: {}", named(case), what.name());
                let target = target(&case, way, what);
                rows.push(Row {
                    target,
                    ..Row::beside(bench, case_name, what.unit(), vtepd, kernel, what.better())
                });
            };
            let figures = |way: Way, what: What| match what {
                What::Net => of(turns, way, case, |turn| 1e9 / turn.rate - sender),
                What::Arrived => of(turns, way, case, |turn| turn.rate),
                What::Share => of(turns, way, case, |turn| 100.0 * turn.rate / turn.offered),
                What::Own => of(turns, way, case, |turn| turn.daemon),
                What::Together => of(turns, way, case, |turn| turn.together),
            };
            if case.cores == 1 {
                push(What::Net, figures(way, What::Net), Some(figures(Way::Kernel, What::Net)));
            }
            push(
                What::Arrived,
                figures(way, What::Arrived),
                Some(figures(Way::Kernel, What::Arrived)),
            );
            if matches!(way, Way::Vtepd { .. }) || way.is_reference() {
                push(
                    What::Share,
                    figures(way, What::Share),
                    Some(figures(Way::Kernel, What::Share)),
                );
                push(What::Own, figures(way, What::Own), None);
            }
            if let Way::Vtepd { gso: true, .. } = way
                && case.traffic.input == Input::Host
            {
                push(What::Together, figures(way, What::Together), None);
            }
        }
        if case == alone {
            let figure = of(turns, Way::Nobody, alone, |turn| 1e9 / turn.offered);
            rows.push(Row::beside(
                "sender alone",
                named(case),
                "ns/frame",
                figure,
                None,
                Better::Lower,
            ));
        }
    }
    rows
}

/// vtepd compared with Open vSwitch, each on a core of its own.
fn beside_open_vswitch(turns: &Turns) -> Vec<Row> {
    let mut rows = Vec::new();
    for (other, case) in
        turns.keys().filter(|(way, case)| matches!(way, Way::OpenVswitch { .. }) && case.cores == 2)
    {
        let theirs = of(turns, *other, *case, |turn| turn.rate);
        for way in [Way::PUNT, Way::BYPASS] {
            let vtepd = of(turns, way, *case, |turn| turn.rate);
            let name = format!("{}, {way} / {other}: arrived", named(*case));
            let row = Row::beside("encapsulate", name, "frames/s", vtepd, None, Better::Higher);
            rows.push(Row { ratio: Some(vtepd.median / theirs.median), target: Some(1.25), ..row });
        }
    }
    rows
}

/// Compares decapsulation of vtepd's super-frames with kernel VXLAN that receives single frames, as
/// in a fabric of kernels.
fn fabrics(turns: &Turns) -> Vec<Row> {
    let mut rows = Vec::new();
    for (_, case) in turns
        .keys()
        .filter(|(way, case)| *way == Way::Kernel && case.traffic.input == Input::SuperFrames)
    {
        if case.cores == 1 || case.busy {
            continue;
        }
        let singles = Case { traffic: Traffic { input: Input::Singles, ..case.traffic }, ..*case };
        for way in [Way::PUNT, Way::BYPASS] {
            let vtepd = of(turns, way, *case, |turn| turn.rate);
            let kernel = of(turns, Way::Kernel, singles, |turn| turn.rate);
            let name = format!("{}, {way}; kernel: single frames: arrived", named(*case));
            let target = decapsulation_target(case, way, What::Arrived);
            let row =
                Row::beside("decapsulate", name, "frames/s", vtepd, Some(kernel), Better::Higher);
            rows.push(Row { target, ..row });
        }
    }
    rows
}

fn of(turns: &Turns, way: Way, case: Case, what: impl Fn(&Turn) -> f64) -> Figure {
    Figure::of(turns.get(&(way, case)).into_iter().flatten().map(what))
}

fn named(case: Case) -> String {
    let Traffic { input, length, queue_pairs, bursts } = case.traffic;
    let input = match input {
        Input::Host => "",
        Input::Singles => " single",
        Input::SuperFrames => " in super-frames",
    };
    let bursts = if bursts { " in bursts" } else { "" };
    let busy = if case.busy { ", vtepd's busy" } else { "" };
    let pairs = if queue_pairs == 1 { "" } else { "s" };
    let cores = if case.cores == 1 { "1 core" } else { "2 cores" };
    format!("{length} B{input}, {queue_pairs} queue pair{pairs}{bursts}, {cores}{busy}")
}

/// The quantity in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Net,
    Arrived,
    Share,
    Own,
    Together,
}

impl What {
    const fn name(self) -> &'static str {
        match self {
            Self::Net => "net CPU",
            Self::Arrived => "arrived",
            Self::Share => "of those sent",
            Self::Own => "own CPU",
            Self::Together => "in a packet",
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Net | Self::Own => "ns/frame",
            Self::Arrived => "frames/s",
            Self::Share => "%",
            Self::Together => "frames",
        }
    }

    const fn better(self) -> Better {
        match self {
            Self::Net | Self::Own => Better::Lower,
            Self::Arrived | Self::Share | Self::Together => Better::Higher,
        }
    }
}

/// The target for the ratio to the kernel's figure, for vtepd with super-frames.
fn encapsulation_target(case: &Case, way: Way, what: What) -> Option<f64> {
    let Traffic { length, queue_pairs, bursts, .. } = case.traffic;
    if let (Way::ChosenPort { route_per_frame }, What::Net) = (way, what) {
        return Some(if route_per_frame { 1.15 } else { 1.03 });
    }
    if !matches!(way, Way::Vtepd { gso: true, .. }) || bursts || case.busy {
        return None;
    }
    match (what, case.cores, length, queue_pairs) {
        (What::Net, _, 64, 1) => Some(0.28),
        (What::Net, _, 64, 64) => Some(0.46),
        (What::Net, _, 1082, 1) => Some(0.40),
        (What::Net, _, 1082, 64) => Some(0.75),
        (What::Arrived, 2, 64, _) => Some(2.4),
        (What::Arrived, 2, 1082, _) => Some(1.7),
        _ => None,
    }
}

/// The target for the ratio to the kernel's figure, with vtepd on its own core.
fn decapsulation_target(case: &Case, way: Way, what: What) -> Option<f64> {
    let meant =
        matches!(way, Way::Vtepd { .. }) && what == What::Arrived && case.cores == 2 && !case.busy;
    meant.then_some(2.5)
}
