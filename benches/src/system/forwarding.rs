//! Encapsulation and decapsulation with senders at the maximum rate.

use std::collections::BTreeMap;
use std::time::Duration;

use testbed::measurement::Case;
use testbed::sender::Input;
use testbed::topology::{JUMBO, MTU};
use testbed::{Datapath, Measurement, Testbed, Traffic, ovs_dpdk};

use super::{Failure, LeftOut, Options};
use crate::table::{Better, Figure, Row};

/// The datapaths for encapsulation and decapsulation.
const DATAPATHS: [Datapath; 7] = [
    Datapath::SenderOnly,
    Datapath::Kernel,
    Datapath::KernelWithoutNf,
    Datapath::USERSPACE,
    Datapath::NO_BYPASS,
    Datapath::NO_GSO,
    Datapath::Offload,
];
/// Kernel VXLAN with chosen source ports, the physical limit, and programs that compute no outer
/// checksum or have a core of their own, for encapsulation.
const ENCAPSULATION: [Datapath; 5] = [
    Datapath::CHOSEN_PORT,
    Datapath::CHOSEN_PORT_MARKED,
    Datapath::Redirect,
    Datapath::OffloadNoChecksum,
    Datapath::OffloadRps,
];
/// The policy `qp-pin`, for encapsulation. It is compared with `qp-hash` in the same datapath.
const PINNED: [(Datapath, Datapath, &str); 2] = [
    (Datapath::Pinned { programs: true }, Datapath::Offload, "programs"),
    (Datapath::Pinned { programs: false }, Datapath::USERSPACE, "worker"),
];
/// The references for encapsulation.
const REFERENCES: [Datapath; 4] =
    [Datapath::OPEN_VSWITCH, Datapath::OPEN_VSWITCH_XDP, Datapath::TESTPMD, Datapath::TESTPMD_XDP];

/// The maximum frame length in bytes for the usual MTU, including the Ethernet header.
const USUAL: usize = MTU as usize + 14;

type Measurements = BTreeMap<(Datapath, Case), Vec<Measurement>>;

pub(super) fn measure(options: &Options, left_out: &mut LeftOut) -> Result<Vec<Row>, Failure> {
    let testbeds = Testbeds { own: Testbed::new("")?, references: Testbed::new("r")? };
    ovs_dpdk::prepare(&testbeds.references)?;
    let shown = [&DATAPATHS[..], &ENCAPSULATION, &REFERENCES].concat();
    let all = [&shown[..], &PINNED.map(|(pinned, ..)| pinned)].concat();
    let encapsulate =
        measurements(options, &testbeds, &all, &cases(options, &[Input::Host]), left_out)?;
    let mut rows = table(&encapsulate, "encapsulate", &shown, encapsulation_target);
    rows.extend(beside_hash(&encapsulate));
    rows.extend(beside_open_vswitch(&encapsulate));
    let inputs = [Input::Singles, Input::SuperFrames];
    let decapsulate =
        measurements(options, &testbeds, &DATAPATHS, &cases(options, &inputs), left_out)?;
    rows.extend(table(&decapsulate, "decapsulate", &DATAPATHS, decapsulation_target));
    rows.extend(fabrics(&decapsulate));
    Ok(rows)
}

/// The testbeds for vtepd and the kernel, and for the references.
struct Testbeds {
    own: Testbed,
    references: Testbed,
}

/// The cases to measure: on one core, on two cores, and on two with a busy thread on vtepd's core.
fn cases(options: &Options, inputs: &[Input]) -> Vec<Case> {
    let (lengths, pairs): (&[usize], &[u32]) = if options.quick {
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
                if input == Input::Host && !options.quick {
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
fn is_measured(datapath: Datapath, case: Case) -> bool {
    let Case { traffic: Traffic { input, length, queue_pairs, bursts }, cores, busy } = case;
    match datapath {
        // The cost of the sender is the same with two cores.
        Datapath::SenderOnly => cores == 1 && !busy,
        // A program that polls in a loop takes as much of a shared core as it can get.
        Datapath::Testpmd { .. } if cores == 1 => false,
        Datapath::OpenVswitch { .. } | Datapath::Testpmd { .. } => {
            [64, 1082].contains(&length) && [1, 64].contains(&queue_pairs) && !bursts && !busy
        }
        // The port matters to encapsulation only.
        Datapath::ChosenPort { .. } | Datapath::Redirect | Datapath::OffloadNoChecksum => {
            input == Input::Host && cores == 1 && !bursts
        }
        Datapath::OffloadRps => input == Input::Host && cores == 2 && !bursts && !busy,
        Datapath::Pinned { .. } => {
            input == Input::Host && cores == 1 && !bursts && queue_pairs == 64
        }
        Datapath::Kernel
        | Datapath::KernelWithoutNf
        | Datapath::Vtepd { .. }
        | Datapath::Offload => true,
    }
}

fn measurements(
    options: &Options,
    testbeds: &Testbeds,
    datapaths: &[Datapath],
    cases: &[Case],
    left_out: &mut LeftOut,
) -> Result<Measurements, Failure> {
    let mut measurements = Measurements::new();
    let has_switch = testbeds.own.set_bridge_nf(true)?;
    for round in 1..=options.rounds {
        for &datapath in datapaths
            .iter()
            .filter(|datapath| options.includes(**datapath))
            .filter(|datapath| has_switch || **datapath != Datapath::KernelWithoutNf)
        {
            if let Some(package) = datapath.missing_package() {
                left_out.insert(datapath, format!("install {package}"));
                continue;
            }
            let cases: Vec<Case> =
                cases.iter().copied().filter(|case| is_measured(datapath, *case)).collect();
            eprintln!("round {round} of {}: {datapath}, {} cases", options.rounds, cases.len());
            let testbed =
                if datapath.is_reference() { &testbeds.references } else { &testbeds.own };
            match measure_cases(options, testbed, datapath, &cases, &mut measurements) {
                // The other figures are valid without this reference.
                Err(error) if datapath.is_reference() && options.check_interrupt().is_ok() => {
                    left_out.insert(datapath, format!("the rest of round {round}: {error}"));
                }
                result => result?,
            }
        }
    }
    Ok(measurements)
}

/// Measures one datapath in all cases once.
fn measure_cases(
    options: &Options,
    testbed: &Testbed,
    datapath: Datapath,
    cases: &[Case],
    measurements: &mut Measurements,
) -> Result<(), Failure> {
    let time = Duration::from_millis(if options.quick { 200 } else { 500 });
    // Long frames need links with a larger MTU.
    let (long, usual): (Vec<Case>, Vec<Case>) =
        cases.iter().partition(|case| case.traffic.length > USUAL);
    for (mtu, cases) in [(MTU, usual), (JUMBO, long)] {
        if cases.is_empty() {
            continue;
        }
        // The beds of references have their own MTU.
        if !datapath.is_reference() {
            testbed.set_mtu(mtu)?;
        }
        let daemon = datapath.start(testbed, &options.vtepd)?;
        for case in cases {
            options.check_interrupt()?;
            let measured = Measurement::take(testbed, case, time, datapath, daemon.as_ref());
            let measured =
                measured.map_err(|error| format!("{datapath}, {}: {error}", named(case)))?;
            measurements.entry((datapath, case)).or_default().push(measured);
        }
        daemon.map(testbed::Daemon::stop).transpose()?;
    }
    if datapath.is_reference() { Ok(()) } else { Ok(testbed.set_mtu(MTU)?) }
}

/// The rows of all cases and datapaths.
fn table(
    measurements: &Measurements,
    bench: &str,
    datapaths: &[Datapath],
    target: fn(&Case, Datapath, What) -> Option<f64>,
) -> Vec<Row> {
    let cases: Vec<Case> = measurements
        .keys()
        .filter(|(datapath, _)| *datapath == Datapath::Kernel)
        .map(|(_, case)| *case)
        .collect();
    let mut rows = Vec::new();
    for case in cases {
        let alone = Case { cores: 1, busy: false, ..case };
        let sender =
            of(measurements, Datapath::SenderOnly, alone, |measured| 1e9 / measured.offered).median;
        // The sender's own cost is subtracted in `net CPU`. The kernel's figures have no rows of their
        // own, but are shown beside the others.
        let shown = |datapath: &&Datapath| {
            ![Datapath::SenderOnly, Datapath::Kernel].contains(datapath)
                && measurements.contains_key(&(**datapath, case))
        };
        for &datapath in datapaths.iter().filter(shown) {
            let mut push = |what: What, vtepd: Figure, kernel: Option<Figure>| {
                let case_name = format!("{}, {datapath}: {}", named(case), what.name());
                let target = target(&case, datapath, what);
                rows.push(Row {
                    target,
                    ..Row::beside(bench, case_name, what.unit(), vtepd, kernel, what.better())
                });
            };
            let figures = |datapath: Datapath, what: What| match what {
                What::Net => {
                    of(measurements, datapath, case, |measured| 1e9 / measured.rate - sender)
                }
                What::Arrived => of(measurements, datapath, case, |measured| measured.rate),
                What::Share => of(measurements, datapath, case, |measured| {
                    100.0 * measured.rate / measured.offered
                }),
                What::Own => of(measurements, datapath, case, |measured| measured.cpu_per_frame),
                What::Together => {
                    of(measurements, datapath, case, |measured| measured.frames_per_packet)
                }
            };
            if case.cores == 1 {
                push(
                    What::Net,
                    figures(datapath, What::Net),
                    Some(figures(Datapath::Kernel, What::Net)),
                );
            }
            push(
                What::Arrived,
                figures(datapath, What::Arrived),
                Some(figures(Datapath::Kernel, What::Arrived)),
            );
            if matches!(datapath, Datapath::Vtepd { .. }) || datapath.is_reference() {
                push(
                    What::Share,
                    figures(datapath, What::Share),
                    Some(figures(Datapath::Kernel, What::Share)),
                );
                push(What::Own, figures(datapath, What::Own), None);
            }
            if let Datapath::Vtepd { gso: true, .. } = datapath
                && case.traffic.input == Input::Host
            {
                push(What::Together, figures(datapath, What::Together), None);
            }
        }
        if case == alone {
            let figure =
                of(measurements, Datapath::SenderOnly, alone, |measured| 1e9 / measured.offered);
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

/// The cost of the policy `qp-pin`, compared with `qp-hash`.
fn beside_hash(measurements: &Measurements) -> Vec<Row> {
    let mut rows = Vec::new();
    for (pinned, hashed, who) in PINNED {
        let cases = measurements.keys().filter(|(datapath, _)| *datapath == pinned);
        for (_, case) in cases.filter(|(_, case)| measurements.contains_key(&(hashed, *case))) {
            let sender =
                of(measurements, Datapath::SenderOnly, *case, |of| 1e9 / of.offered).median;
            let net = |datapath| of(measurements, datapath, *case, |of| 1e9 / of.rate - sender);
            let (figure, with) = (net(pinned), net(hashed));
            let name = format!("{}, qp-pin / qp-hash, {who}: net CPU", named(*case));
            let row = Row::beside("encapsulate", name, "ns/frame", figure, None, Better::Lower);
            let ratio = Some(figure.median / with.median);
            rows.push(Row { ratio, target: Some(1.02), ..row });
        }
    }
    rows
}

/// vtepd compared with Open vSwitch, each on a core of its own.
fn beside_open_vswitch(measurements: &Measurements) -> Vec<Row> {
    let mut rows = Vec::new();
    for (other, case) in measurements.keys().filter(|(datapath, case)| {
        matches!(datapath, Datapath::OpenVswitch { .. }) && case.cores == 2
    }) {
        let theirs = of(measurements, *other, *case, |measured| measured.rate);
        let vtepds = [Datapath::USERSPACE, Datapath::Offload, Datapath::OffloadRps];
        for datapath in vtepds.into_iter().filter(|of| measurements.contains_key(&(*of, *case))) {
            let vtepd = of(measurements, datapath, *case, |measured| measured.rate);
            let name = format!("{}, {datapath} / {other}: arrived", named(*case));
            let row = Row::beside("encapsulate", name, "frames/s", vtepd, None, Better::Higher);
            let target = (datapath != Datapath::USERSPACE).then_some(1.25);
            rows.push(Row { ratio: Some(vtepd.median / theirs.median), target, ..row });
        }
    }
    rows
}

/// Compares decapsulation of vtepd's super-frames with kernel VXLAN that receives single frames, as
/// in a fabric of kernels.
fn fabrics(measurements: &Measurements) -> Vec<Row> {
    let mut rows = Vec::new();
    for (_, case) in measurements.keys().filter(|(datapath, case)| {
        *datapath == Datapath::Kernel && case.traffic.input == Input::SuperFrames
    }) {
        if case.cores == 1 || case.busy {
            continue;
        }
        let singles = Case { traffic: Traffic { input: Input::Singles, ..case.traffic }, ..*case };
        let vtepds = [Datapath::USERSPACE, Datapath::Offload];
        for datapath in vtepds.into_iter().filter(|of| measurements.contains_key(&(*of, *case))) {
            let vtepd = of(measurements, datapath, *case, |measured| measured.rate);
            let kernel = of(measurements, Datapath::Kernel, singles, |measured| measured.rate);
            let name = format!("{}, {datapath}; kernel: single frames: arrived", named(*case));
            rows.push(Row::beside(
                "decapsulate",
                name,
                "frames/s",
                vtepd,
                Some(kernel),
                Better::Higher,
            ));
        }
    }
    rows
}

fn of(
    measurements: &Measurements,
    datapath: Datapath,
    case: Case,
    what: impl Fn(&Measurement) -> f64,
) -> Figure {
    Figure::of(measurements.get(&(datapath, case)).into_iter().flatten().map(what))
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

/// The target for the ratio to the kernel's figure: encapsulation on one core.
fn encapsulation_target(case: &Case, datapath: Datapath, what: What) -> Option<f64> {
    let Traffic { length, queue_pairs: 64, bursts: false, .. } = case.traffic else { return None };
    if case.cores != 1 || case.busy {
        return None;
    }
    match (datapath, what, length) {
        (Datapath::USERSPACE, What::Net, 64) => Some(0.50),
        (Datapath::USERSPACE, What::Net, 1082) => Some(0.75),
        (Datapath::Offload, What::Net, 64) => Some(0.32),
        (Datapath::Offload, What::Net, 1082) => Some(0.35),
        (Datapath::Offload, What::Arrived, 64) => Some(2.1),
        (Datapath::Offload, What::Arrived, 1082) => Some(1.9),
        (Datapath::CHOSEN_PORT, What::Net, _) => Some(1.03),
        (Datapath::CHOSEN_PORT, What::Arrived, _) => Some(0.97),
        (Datapath::CHOSEN_PORT_MARKED, What::Net, _) => Some(1.15),
        _ => None,
    }
}

/// The target for the ratio to the kernel's figure: decapsulation of single frames on one core.
fn decapsulation_target(case: &Case, datapath: Datapath, what: What) -> Option<f64> {
    if datapath != Datapath::Offload || case.cores != 1 || case.traffic.input != Input::Singles {
        return None;
    }
    match (what, case.traffic.length) {
        (What::Net, 64) => Some(0.32),
        (What::Net, 1082) => Some(0.35),
        _ => None,
    }
}
