//! `lab run` on the smallest fabric: it continues after each kind of end, keeps the results so far,
//! and repeats itself.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use experiment::record::{Arrival, QueuePair};
use experiment::{Experiment, Plan, Run};
use fabric::Fabric;
use fabric::metrics;
use fabric::netns;
use fabric::process::{Process, wait_until};
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::Signal;
use root_test::root_test;
use traffic::stream::FRAME;
use vtepd_tests::daemon::{Metrics, lab_program, program};

use super::fixture::{CONVERGENCE, frr};

const REPETITIONS: usize = 8;
/// 14 pages: nine of the topology and its files, three other files, and some runs.
const SMALL: &str = "size=56k";

/// An AllReduce, and in one of two variants another job between the same hosts, which takes a part of
/// the circuit's rate.
const NEIGHBOUR: &str = "\
[traffic]
sites = [['host1'], ['host2']]
[workload]
collective = 'all-reduce-ring'
bytes = 400000
iterations = 2
warm-up = 0
[[variant]]
name = 'alone'
[[variant]]
name = 'beside'
[[job]]
name = 'neighbour'
sites = [['host1'], ['host2']]
variants = ['beside']
[job.workload]
collective = 'permutation'
bytes = 100000
";

/// A folder for the files of the test. Drop unmounts and deletes it, and stops the fabric.
struct Folder {
    path: PathBuf,
    /// How the names of its fabrics begin.
    name: &'static str,
}

impl Folder {
    /// `rest`: the tables of the experiment beside topology, dataplanes, sweep and repetitions.
    fn new(name: &'static str, dataplanes: &str, rest: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("small")).unwrap();
        let topology = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../deploy/containerlab/minimal.clab.yml")
            .canonicalize()
            .unwrap();
        let text = format!(
            "name = 'story'\ntitle = 'A story'\nquestion = 'Does it continue?'
             topologies = ['{}']\ndataplane = [{dataplanes}]
             {rest}\n[sweep]\nqueue-pairs = [4]
             [repetitions]\nmin = {REPETITIONS}\nmax = {REPETITIONS}\nturn = 4\n",
            topology.display()
        );
        fs::write(folder.join("story.toml"), text).unwrap();
        Self { path: folder, name }
    }

    /// The name of the fabric of a directory with results.
    fn fabric(&self, out: &str) -> String {
        format!("{}-{out}", self.name)
    }

    fn file(&self) -> PathBuf {
        self.path.join("story.toml")
    }

    fn command(&self, out: &str) -> Command {
        let mut command = Command::new(lab_program());
        command.arg("run").arg(self.file()).arg("--out").arg(self.path.join(out));
        command.args(["--name", &self.fabric(out), "--vtepd"]).arg(program());
        command
    }

    fn runs(&self, out: &str) -> Vec<Run> {
        let text = fs::read_to_string(self.path.join(out).join("runs.jsonl")).unwrap_or_default();
        experiment::record::parse_lines::<Run>(&text).unwrap().0
    }

    /// Starts the experiment, and ends it by `end` once it has this number of runs. Returns what it
    /// wrote to standard error.
    fn end_after(
        &self,
        out: &str,
        runs: usize,
        end: impl FnOnce(&Process),
    ) -> (Option<i32>, String) {
        let mut command = self.command(out);
        let log = self.path.join(format!("{out}.log"));
        command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap());
        let mut lab = Process::spawn(&mut command).unwrap();
        let there = wait_until(CONVERGENCE, || self.runs(out).len() >= runs);
        let said = || fs::read_to_string(&log).unwrap();
        assert!(there, "{} runs of {runs}: {}", self.runs(out).len(), said());
        end(&lab);
        let status = lab.wait(CONVERGENCE).unwrap();
        (status.code(), said())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It is mounted only during a part of the test.
        let _ = umount(&self.path.join("small"));
        let _ = fs::remove_dir_all(&self.path);
        for out in ["out", "small"] {
            if let Ok(fabric) = Fabric::open(&self.fabric(out).parse().unwrap()) {
                fabric.down().unwrap();
            }
        }
    }
}

/// The flows on each link, by run. A flow is 50 frames.
fn flows(runs: &[Run]) -> BTreeMap<(String, u32), Vec<u64>> {
    let flows = |run: &Run| {
        let loads = run.tiers.iter().flat_map(|tier| tier.links.values());
        loads.map(|load| (load + 25) / 50).collect()
    };
    runs.iter().map(|run| ((run.key.dataplane.clone(), run.key.repetition), flows(run))).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[root_test(needs = frr)]
fn an_experiment_continues_after_each_end_and_repeats_itself() {
    let folder = Folder::new(
        "evpn-experiment",
        "{policy = 'kernel'}, {policy = 'qp-hash'}",
        "[traffic]\nframes = 50\nrate = 2000",
    );
    // Most of the time, both wait for their routers.
    let (all, again) = std::thread::scope(|scope| {
        let again = scope.spawn(|| ends_of_the_machine(&folder));
        (ends_of_the_program(&folder), again.join().unwrap())
    });
    let (experiment, _) = Experiment::load(&folder.file()).unwrap();
    let planned = Plan::new(&experiment).turns.into_iter().flat_map(|turn| turn.runs);
    assert!(again.len() > 3, "{again:?}");
    let planned: Vec<_> = planned.collect();
    // The same runs in the same order, whatever ended the sessions.
    assert!(again.iter().map(|run| &run.key).eq(planned.iter().take(again.len())));
    assert!(all.iter().map(|run| &run.key).eq(&planned));
    let (all, again) = (flows(&all), flows(&again));
    // The CPU of the sender decides about kernel VXLAN's uplink.
    for (key, flows) in again.iter().filter(|((dataplane, _), _)| dataplane != "kernel") {
        assert_eq!(flows, &all[key], "{key:?}");
    }
}

/// Returns all runs.
fn ends_of_the_program(folder: &Folder) -> Vec<Run> {
    let results = folder.path.join("out");

    // Killed: the next call removes its fabric, and the line that was cut.
    let (code, _) = folder.end_after("out", 2, |lab| lab.signal(Signal::SIGKILL).unwrap());
    assert_eq!(code, None);
    let before = folder.runs("out");
    let runs = results.join("runs.jsonl");
    fs::File::options().append(true).open(&runs).unwrap().write_all(b"{\"fabric\":").unwrap();

    // Interrupted by the user: the results so far are there.
    let interrupt = |lab: &Process| lab.signal(Signal::SIGINT).unwrap();
    let (code, text) = folder.end_after("out", before.len() + 2, interrupt);
    assert!(code == Some(130) && text.ends_with("lab: interrupted\n"), "{code:?} {text}");
    assert_eq!(folder.runs("out")[..before.len()], before, "complete runs stay");
    let page = fs::read_to_string(results.join("report.html")).unwrap();
    assert!(page.contains("The experiment is not complete"), "{page}");
    assert!(Fabric::open(&folder.fabric("out").parse().unwrap()).is_err(), "the fabric is gone");

    // Another experiment must not add to it.
    let other = folder.path.join("other.toml");
    let changed = fs::read_to_string(folder.file()).unwrap();
    fs::write(&other, format!("{changed}# changed\n")).unwrap();
    let mut command = Command::new(lab_program());
    command.arg("run").arg(&other).arg("--out").arg(&results).arg("--vtepd").arg(program());
    let refused = command.output().unwrap();
    assert!(said(&refused).contains("has results that cannot be continued"), "{}", said(&refused));
    assert!(said(&refused).contains("\n  file: "), "{}", said(&refused));

    // Undisturbed: the rest, each run once.
    let output = folder.command("out").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let runs = folder.runs("out");
    assert_eq!((runs.len(), flows(&runs).len()), (2 * REPETITIONS, 2 * REPETITIONS));
    let arrival: Arrival = runs.iter().map(|run| run.arrival.unwrap()).sum();
    assert_eq!(arrival.lost + arrival.reordered, 0);
    runs.iter().for_each(queue_pairs_are_those_of_the_run);
    let page = fs::read_to_string(results.join("report.html")).unwrap();
    assert!(!page.contains("is not complete") && page.contains("qp-hash"), "{page}");
    let lines = |file: &str| fs::read_to_string(results.join(file)).unwrap().lines().count();
    assert_eq!(lines("queue-pairs.csv"), 1 + runs.len() * 4);
    assert!(lines("timeline.csv") > runs.len() * 8, "200 frames at 2,000 a second take 0.1 s");
    plots(&results);
    beside_reference(&folder.path.join("reference"), &results);
    for file in ["summary.csv", "runs.csv", "links.csv", "minimal-constant-leaf.svg"] {
        assert!(fs::metadata(results.join(file)).unwrap().len() > 100, "{file}");
    }
    runs
}

/// `lab compare` with reference results, which are a summary alone.
fn beside_reference(reference: &Path, results: &Path) {
    let summary = fs::read_to_string(results.join("summary.csv")).unwrap();
    fs::create_dir(reference).unwrap();
    fs::write(reference.join("summary.csv"), &summary).unwrap();
    let compare = || {
        let mut command = Command::new(lab_program());
        let output = command.arg("compare").arg(reference).arg(results).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (same, text) = compare();
    assert!(same && text.starts_with("0 of ") && text.contains(" figures are beyond"), "{text}");
    let other = summary.replace(",qp-hash,", ",qp-pin,");
    fs::write(reference.join("summary.csv"), other).unwrap();
    let (same, text) = compare();
    assert!(!same && text.contains("qp-pin leaf: not measured"), "{text}");
}

/// `lab plot` draws the results, as SVG, and as PDF where the converter is installed.
fn plots(results: &Path) {
    let plot = |options: &[&str]| {
        let mut command = Command::new(lab_program());
        let output = command.arg("plot").arg(results).args(options).output().unwrap();
        (output.status.success(), said(&output))
    };
    let (svg, pdf) = (results.join("mmr.svg"), results.join("mmr.pdf"));
    let [svg_name, pdf_name] = [&svg, &pdf].map(|path| path.to_str().unwrap());
    let of = ["--x", "queue_pairs", "--y", "mmr"];
    let (done, text) = plot(&[&of[..], &["--svg", svg_name]].concat());
    assert!(done, "{text}");
    let drawn = fs::read_to_string(&svg).unwrap();
    assert!(drawn.contains(">MMR</text>") && drawn.contains("kernel VXLAN"), "{drawn}");
    let (done, text) = plot(&[&of[..], &["--pdf", pdf_name]].concat());
    let installed = !text.contains("librsvg2-bin");
    assert_eq!(done, installed, "{text}");
    assert!(!installed || fs::read(&pdf).unwrap().starts_with(b"%PDF"), "{text}");
    let (done, text) = plot(&["--x", "outrage", "--y", "mmr", "--svg", svg_name]);
    assert!(!done && text.contains("no table has the columns outrage, mmr, dataplane"), "{text}");
    for file in [svg, pdf] {
        let _ = fs::remove_file(file);
    }
}

/// The records of queue pairs and bins add up to the run.
fn queue_pairs_are_those_of_the_run(run: &Run) {
    let sum = |of: fn(&QueuePair) -> u64| run.pairs.iter().map(of).sum::<u64>();
    assert_eq!((run.pairs.len(), sum(|pair| pair.sent)), (4, run.sent), "{run:?}");
    let arrived = run.sent - sum(|pair| pair.lost);
    assert_eq!(sum(|pair| pair.bytes), arrived * FRAME, "{run:?}");
    // By kernel VXLAN, too. The links of their paths have carried their frames.
    assert!(run.pairs.iter().all(|pair| pair.moves == Some(0)), "nothing moves: {run:?}");
    let leaf = &run.tiers[0].links;
    let mut loads: BTreeMap<&str, u64> = leaf.keys().map(|name| (name.as_str(), 0)).collect();
    for pair in &run.pairs {
        let links: Vec<&str> = pair.path.as_ref().unwrap().split(' ').collect();
        assert_eq!(links.len(), run.tiers.len(), "a link of each tier: {pair:?}");
        *loads.get_mut(links[0]).unwrap() += pair.sent;
    }
    for (name, load) in loads {
        // Routing protocols add little.
        assert!(leaf[name].abs_diff(load) * 20 <= run.sent, "{name}: {load} of {leaf:?}");
    }
    let timeline = run.timeline.as_ref().unwrap();
    assert_eq!(timeline.sent.iter().sum::<u64>(), run.sent, "{timeline:?}");
    assert_eq!(timeline.arrived.iter().sum::<u64>(), arrived, "{timeline:?}");
    assert_eq!(timeline.failure, None);
}

/// Returns the runs that fit on the disk.
fn ends_of_the_machine(folder: &Folder) -> Vec<Run> {
    let small = folder.path.join("small");
    mount(Some("none"), &small, Some("tmpfs"), MsFlags::empty(), Some(SMALL)).unwrap();

    // A namespace vanishes: the error names it.
    let host = format!("lab-{}-host2", folder.fabric("small"));
    let (code, text) = folder.end_after("small", 2, |_| netns::delete(&host).unwrap());
    assert!(code == Some(1) && text.contains(&host), "{text}");
    let before = folder.runs("small");

    // A full disk: the error names the file, and the runs so far can be read.
    let output = folder.command("small").output().unwrap();
    assert!(!output.status.success() && said(&output).contains("runs.jsonl"), "{}", said(&output));
    assert!(said(&output).contains("No space left on device"), "{}", said(&output));
    let runs = folder.runs("small");
    assert_eq!(runs[..before.len()], before, "complete runs stay");
    runs
}

#[root_test(needs = frr)]
fn a_run_in_which_vtepd_ends_does_not_count() {
    let traffic = "[traffic]\nframes = 500\nrate = 2000";
    let folder = Folder::new("evpn-vtepd-ends", "{policy = 'qp-hash'}", traffic);
    let kill = |_: &Process| {
        let fabric = Fabric::open(&folder.fabric("out").parse().unwrap()).unwrap();
        let processes = fabric.processes().unwrap();
        let vtepd = processes.iter().find(|of| (&*of.node, &*of.name) == ("leaf1", "vtepd"));
        // In the middle of a run: between two runs it would just be started again.
        let leaf = fabric.node("leaf1").unwrap().namespace().unwrap();
        let frames =
            || metrics::read(&leaf).map_or(0, |text| Metrics(text).sum("vtepd_vni_frames_total"));
        let before = frames();
        assert!(wait_until(CONVERGENCE, || frames() > before + 100), "no traffic after {before}");
        vtepd.unwrap().identity.signal(Signal::SIGKILL).unwrap();
    };
    let (code, text) = folder.end_after("out", 2, kill);
    assert_eq!(code, Some(0), "{text}");
    let runs = folder.runs("out");
    assert_eq!(runs.len(), REPETITIONS);
    let discarded: Vec<_> = runs.iter().flat_map(|run| &run.discarded).collect();
    assert!(discarded.iter().any(|of| of.failed && of.reason.starts_with("vtepd on leaf1 ended")));
    // vtepd forwarded in each run that counts: each queue pair has one path, and its frames.
    for loads in flows(&runs).into_values() {
        assert!(loads.iter().all(|flows| flows % 10 == 0), "{loads:?}");
    }
    let page = fs::read_to_string(folder.path.join("out/report.html")).unwrap();
    for said in ["Runs did not count and were repeated: vtepd on leaf1 ended", "Repeated runs"] {
        assert!(page.contains(said), "{said}");
    }
}

#[root_test(needs = frr)]
fn a_job_beside_the_workload_has_results_of_its_own() {
    let folder = Folder::new("evpn-neighbour", "{policy = 'kernel'}", NEIGHBOUR);
    let output = folder.command("out").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let runs = folder.runs("out");
    assert_eq!(runs.len(), 2 * REPETITIONS);
    for run in &runs {
        let beside = run.key.point.variant() == "beside";
        assert!(run.workload.as_ref().is_some_and(|result| result.iterations == 2), "{run:?}");
        let neighbour = run.jobs.get("neighbour");
        assert_eq!(neighbour.is_some(), beside, "{run:?}");
        // It runs again and again, and carries its bytes.
        let lively = |job: &experiment::record::Completion| {
            job.iterations > 0 && job.milliseconds > 0.0 && job.bus_bandwidth > 0.0
        };
        assert!(neighbour.is_none_or(lively), "{run:?}");
    }
    let read = |file: &str| fs::read_to_string(folder.path.join("out").join(file)).unwrap();
    let jobs = read("jobs.csv");
    assert_eq!(jobs.lines().count(), 1 + REPETITIONS, "{jobs}");
    assert!(jobs.lines().skip(1).all(|line| line.contains(",beside,")), "{jobs}");
    let title = "Time of an iteration of the job 'neighbour'";
    assert!(read("report.html").contains(title), "{title}");
    assert!(read("minimal-constant-job-neighbour.svg").contains(title), "{title}");
}

/// Two parts, as two machines would run them, are all runs; one of them alone is not.
#[root_test(needs = frr)]
fn parts_of_an_experiment_are_joined() {
    let traffic = "[traffic]\nframes = 50\nrate = 2000";
    let folder = Folder::new("evpn-parts", "{policy = 'kernel'}, {policy = 'qp-hash'}", traffic);
    let parts = [("out", "0/2"), ("small", "1/2")].map(|(out, shard)| {
        let output = folder.command(out).args(["--shard", shard]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let repetitions = folder.runs(out).into_iter().map(|run| run.key.repetition % 2);
        let index: u32 = shard[..1].parse().unwrap();
        assert_eq!(repetitions.collect::<Vec<_>>(), vec![index; REPETITIONS], "{shard}");
        folder.path.join(out)
    });
    let merge = |parts: &[PathBuf]| {
        let mut command = Command::new(lab_program());
        command.arg("merge").args(parts).arg("--out").arg(folder.path.join("all")).output().unwrap()
    };
    let refused = merge(&parts[..1]);
    assert!(said(&refused).contains("part 1/2 is missing"), "{}", said(&refused));
    let output = merge(&parts);
    assert!(output.status.success(), "{}", said(&output));
    let (experiment, _) = Experiment::load(&folder.file()).unwrap();
    let planned = Plan::new(&experiment).turns.into_iter().flat_map(|turn| turn.runs);
    assert!(folder.runs("all").into_iter().map(|run| run.key).eq(planned));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("all/report.html"), "{text}");
    // Parts do not continue what has all runs.
    let again = folder.command("all").args(["--shard", "0/2"]).output().unwrap();
    assert!(said(&again).contains("cannot be continued"), "{}", said(&again));
    let many = folder.command("none").args(["--shard", "0/9"]).output().unwrap();
    assert!(said(&many).contains("has 8 repetitions"), "{}", said(&many));
}
