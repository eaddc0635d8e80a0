//! `lab sim` beside htsim, the simulator of Ultra Ethernet, as programs: the same connection matrices,
//! in turns. The user names the program; nothing of it is here.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use sim::matrix::Matrix;
use sim::reference::flows;

use crate::table::{Better, Figure, Row};

/// How often each is measured.
const TURNS: usize = 5;
/// Schemes with 64 numbers that switches hash.
const SCHEMES: [&str; 3] = ["bitmap", "reps", "oblivious"];
/// Hosts of which htsim would take hours.
const MANY: u32 = 8192;
/// How often the memory of a program is read.
const LOOK: Duration = Duration::from_millis(1);

/// A figure of a run: its name with the unit, and where it is.
type Quantity = (&'static str, fn(&Cost) -> f64);

/// What a run cost, and what it found.
struct Cost {
    /// Seconds of user CPU time.
    user: f64,
    /// The most memory in MB.
    memory: f64,
    /// The end of the last flow in microseconds.
    completion: f64,
}

/// A fabric and its traffic in a folder of their own, which goes away with it.
struct Case {
    hosts: u32,
    folder: PathBuf,
}

impl Drop for Case {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Measures a permutation of 2 MB a host in fat trees of 128 and 1,024 hosts, and `lab sim` alone with
/// 8,192. `quick`: 128 alone.
///
/// # Errors
/// If a program cannot be run, or a flow does not finish.
pub fn run(htsim: &Path, quick: bool) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut rows = Vec::new();
    for hosts in [128, 1024].into_iter().filter(|hosts| !quick || *hosts == 128) {
        let case = Case::new(hosts)?;
        for scheme in SCHEMES {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for turn in 1..=TURNS {
                eprintln!("sim: {hosts} hosts, {scheme}-64, beside htsim, turn {turn} of {TURNS}");
                ours.push(case.lab(scheme)?);
                theirs.push(case.htsim(htsim, scheme)?);
            }
            rows.extend(beside(hosts, scheme, &ours, &theirs));
        }
    }
    if !quick {
        eprintln!("sim: {MANY} hosts");
        rows.extend(beside(MANY, "bitmap", &[Case::new(MANY)?.lab("bitmap")?], &[]));
    }
    Ok(rows)
}

/// The least of the figures of both, or of one.
fn beside(hosts: u32, scheme: &str, ours: &[Cost], theirs: &[Cost]) -> [Row; 3] {
    let figures: [Quantity; 3] = [
        ("user CPU, s", |cost| cost.user),
        ("most memory, MB", |cost| cost.memory),
        ("last flow, µs", |cost| cost.completion),
    ];
    figures.map(|(unit, figure)| {
        let name = format!("permutation-2M, {hosts} hosts, {scheme}-64");
        let theirs = (!theirs.is_empty()).then(|| least(theirs.iter().map(figure)));
        let ours = least(ours.iter().map(figure));
        Row::beside("lab sim, the program", name, unit, ours, theirs, Better::Lower)
    })
}

/// The least of some figures, with their range: other work on the machine only makes them larger.
fn least(figures: impl Iterator<Item = f64>) -> Figure {
    let Figure { range, .. } = Figure::of(figures);
    Figure { median: range[0], range }
}

impl Case {
    fn new(hosts: u32) -> Result<Self, Box<dyn Error>> {
        let folder = std::env::temp_dir().join(format!("htsim-{hosts}-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let case = Self { hosts, folder };
        let flows = flows("permutation-2M", hosts, 1);
        fs::write(case.file("matrix.cm"), Matrix { nodes: hosts, flows }.text())?;
        fs::write(case.file("fabric.topo"), topology(hosts, width(hosts)))?;
        for scheme in SCHEMES {
            fs::write(case.file(&format!("{scheme}.toml")), simulation(hosts, scheme))?;
        }
        Ok(case)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// `lab` beside this program.
    fn lab(&self, scheme: &str) -> Result<Cost, Box<dyn Error>> {
        let program = std::env::current_exe()?.with_file_name("lab");
        let out = self.file("out");
        let _ = fs::remove_dir_all(&out);
        let mut command = Command::new(program);
        command.arg("sim").arg(self.file(&format!("{scheme}.toml"))).arg("--out").arg(&out);
        command.args(["--threads", "1"]);
        let (user, memory, _) = measure(&mut command)?;
        let text = fs::read_to_string(out.join("results.jsonl"))?;
        let line: serde_json::Value =
            serde_json::from_str(text.lines().next().unwrap_or_default())?;
        let completion = line.get("completion").and_then(serde_json::Value::as_f64);
        let completion = completion.ok_or("lab sim: a flow did not finish")?;
        Ok(Cost { user, memory, completion })
    }

    fn htsim(&self, program: &Path, scheme: &str) -> Result<Cost, Box<dyn Error>> {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).args(["-tm", "matrix.cm", "-topo", "fabric.topo"]);
        command.args(["-sender_cc_only", "-end", "60000", "-seed", "1", "-o", "log.dat"]);
        command.args(["-paths", "64", "-load_balancing_algo", scheme]);
        let (user, memory, text) = measure(&mut command)?;
        let ends: Vec<f64> = text.lines().filter_map(finished).collect();
        if ends.len() != self.hosts as usize {
            let (hosts, ends) = (self.hosts, ends.len());
            return Err(format!("htsim: {ends} of {hosts} flows finished").into());
        }
        Ok(Cost { user, memory, completion: ends.into_iter().fold(0.0, f64::max) })
    }
}

/// The end of a flow in microseconds, if htsim tells it in this line.
fn finished(line: &str) -> Option<f64> {
    let rest = line.strip_prefix("Flow ")?.split_once(" finished at ")?.1;
    rest.split_whitespace().next()?.parse().ok()
}

/// Runs a program: its user CPU time in seconds, the most memory in MB that it was seen with, and its
/// output. No other program may be run at the same time.
fn measure(command: &mut Command) -> Result<(f64, f64, String), Box<dyn Error>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let user = || -> Result<f64, nix::Error> {
        let time = getrusage(UsageWho::RUSAGE_CHILDREN)?.user_time();
        Ok(time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6)
    };
    let before = user()?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    let status = format!("/proc/{}/status", child.id());
    let mut stdout = child.stdout.take().ok_or("no output")?;
    let output = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut stdout, &mut bytes).map(|_| bytes)
    });
    let mut memory = 0.0_f64;
    let ended = loop {
        memory = memory.max(peak(&status).unwrap_or_default());
        match child.try_wait()? {
            Some(ended) => break ended,
            None => std::thread::sleep(LOOK),
        }
    };
    let bytes = output.join().map_err(|_| "the output cannot be read")??;
    if !ended.success() {
        return Err(format!("{name}: {ended}").into());
    }
    Ok((user()? - before, memory, String::from_utf8_lossy(&bytes).into_owned()))
}

/// The most memory that a process has had so far, in MB.
fn peak(status: &str) -> Option<f64> {
    let text = fs::read_to_string(status).ok()?;
    let most = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(most.trim().strip_suffix(" kB")?.parse::<f64>().ok()? / 1024.0)
}

/// Ports of a switch in each direction, as in [`sim::reference::fat_tree`].
fn width(hosts: u32) -> u32 {
    match hosts {
        ..=128 => 4,
        129..=1024 => 8,
        _ => 16,
    }
}

/// The fat tree of [`sim::reference::fat_tree`] as htsim reads it.
fn topology(hosts: u32, width: u32) -> String {
    let pod = width * width;
    let mut text = format!("Nodes {hosts}\nTiers 3\nPodsize {pod}\n");
    for tier in 0..3 {
        let down = if tier == 2 { hosts / pod } else { width };
        // Writing to a string cannot fail.
        let _ = write!(text, "\nTier {tier}\nDownlink_speed_Gbps 100\nRadix_Down {down}\n");
        if tier < 2 {
            let _ = write!(text, "Oversubscribed 1\nRadix_Up {width}\n");
        }
        text += "Downlink_Latency_ns 1000\nSwitch_Latency_ns 0\n";
        if tier > 0 {
            text += "Bundle 1\n";
        }
    }
    text
}

/// The same for `lab sim`.
fn simulation(hosts: u32, scheme: &str) -> String {
    let width = width(hosts);
    format!(
        "name = \"htsim\"\ntitle = \"Beside htsim\"\nquestion = \"How long does it take?\"\n\
         seeds = 1\nend = \"60ms\"\n[fabric]\nkind = \"fat-tree\"\npods = {}\nleaves = {width}\n\
         hosts = {width}\naggregations = {width}\ncores = {width}\nrate = \"100Gbit/s\"\n\
         delay = \"1us\"\n[[traffic]]\nkind = \"matrix\"\nfile = \"matrix.cm\"\n\
         [[variant]]\nscheme = \"{scheme}\"\nvalues = 64\n",
        hosts / (width * width)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text for htsim has as many hosts, switches and links as the simulator's fat tree.
    #[test]
    fn both_simulate_the_same_fabric() {
        for hosts in [128, 1024, MANY] {
            let width = width(hosts);
            let ours = sim::reference::fat_tree(hosts);
            let text = topology(hosts, width);
            let downs: Vec<u32> = text
                .lines()
                .filter_map(|line| line.strip_prefix("Radix_Down ")?.parse().ok())
                .collect();
            let [leaf, aggregation, core] = downs[..] else { panic!("{text}") };
            let pods = hosts / (width * width);
            // Links: of hosts, of leaves, of aggregation switches.
            let cores = width * width;
            let links = hosts + pods * aggregation * width + cores * core;
            assert_eq!((leaf, core, links as usize), (width, pods, ours.links.len()), "{text}");
            let file = simulation(hosts, "reps");
            let cases = sim::file::cases(Path::new("htsim.toml"), &file).unwrap();
            let [case] = &cases[..] else { panic!("{file}") };
            let matrix = Matrix { nodes: hosts, flows: flows("permutation-2M", hosts, 1) }.text();
            let read = |_: &Path| Ok(matrix.clone());
            let scenario = case.file.scenario(&case.file.variants[0], 1, &read).unwrap();
            assert_eq!(scenario.flows.len(), hosts as usize);
            assert_eq!(scenario.topology.links.len(), ours.links.len());
        }
    }

    #[test]
    fn lines_of_htsim_and_costs_of_programs() {
        let line = "Flow Uec_0_17 flowId 1 uecSrc 0 finished at 176.245 total messages 1";
        assert_eq!(finished(line), Some(176.245));
        assert_eq!(finished("Flow Uec_0_17 flowId 1 starting at 0"), None);
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done; sleep 0.1";
        let (user, memory, text) = measure(Command::new("sh").args(["-c", script])).unwrap();
        assert!(user > 0.0 && (0.1..100.0).contains(&memory), "{user} s, {memory} MB");
        assert_eq!(text, "done\n");
        let error = measure(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
        assert!(measure(&mut Command::new("/no/such/program")).is_err());
    }
}
