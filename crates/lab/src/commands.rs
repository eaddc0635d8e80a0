//! Implements the subcommands: calls the library and prints the results.

mod wan;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use lab::counters;
use lab::daemon;
use lab::demo;
use lab::deployed::Deployed;
use lab::fabric::{Fabric, FabricError};
use lab::roce::{InnerPort, Limit, Sink, Source, connections};
use lab::topology::Topology;
use lab::verify;
use serde::Serialize;

use crate::{
    Cli, Command, Counters, Demo, Down, Exec, Output, Receive, Roce, Send, Up, Verify, Where, Which,
};

type Outcome = Result<ExitCode, Box<dyn Error>>;

/// Set on SIGINT, SIGTERM and SIGHUP. Long operations check it.
fn interrupt() -> &'static Arc<AtomicBool> {
    static INTERRUPT: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    INTERRUPT.get_or_init(Arc::default)
}

pub(crate) fn interrupted() -> bool {
    interrupt().load(Ordering::Relaxed)
}

pub(crate) fn run(cli: Cli) -> Outcome {
    if !matches!(cli.command, Command::Exec(_)) {
        for signal in
            [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            signal_hook::flag::register(signal, Arc::clone(interrupt()))?;
        }
    }
    if !nix::unistd::geteuid().is_root() {
        return Err("network namespaces need root: run it with sudo".into());
    }
    match cli.command {
        Command::Up(arguments) => up(&arguments, cli.output),
        Command::Down(arguments) => down(&arguments),
        Command::List => list(cli.output),
        Command::Inspect(which) => inspect(&which, cli.output),
        Command::Exec(arguments) => exec(&arguments),
        Command::Counters(arguments) => show_counters(&arguments, cli.output),
        Command::Roce(Roce::Send(arguments)) => send(&arguments, cli.output),
        Command::Roce(Roce::Receive(arguments)) => receive(&arguments, cli.output),
        Command::Demo(arguments) => show_demo(&arguments, cli.output),
        Command::Verify(arguments) => verify(&arguments, cli.output),
        Command::Wan(arguments) => wan::run(&arguments, cli.output),
    }
}

/// Reports progress: one changing line on a terminal, separate lines otherwise.
struct Progress {
    bar: ProgressBar,
    start: Instant,
    /// The text that was reported last.
    last: Mutex<String>,
}

impl Progress {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar, start: Instant::now(), last: Mutex::default() }
    }

    fn report(&self, text: &str) -> Result<(), FabricError> {
        let seconds = self.start.elapsed().as_secs();
        if std::io::stderr().is_terminal() {
            self.bar.set_message(format!("{seconds:>3} s  {text}"));
        } else if self.is_new(text) {
            // A closed standard error must not stop the work.
            let _ = writeln!(io::stderr(), "{seconds:>3} s  {text}");
        }
        if interrupted() { Err(FabricError::Interrupted) } else { Ok(()) }
    }

    /// Whether the text differs from the last one.
    fn is_new(&self, text: &str) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *last, text.to_owned()) != text
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Prints a line. It is no error if the reader has closed the pipe (`lab list | head -1`).
fn print(line: impl fmt::Display) -> io::Result<()> {
    match writeln!(io::stdout(), "{line}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn print_json(value: &impl Serialize) -> Outcome {
    print(serde_json::to_string_pretty(value)?)?;
    Ok(ExitCode::SUCCESS)
}

fn open(name: Option<&str>) -> Result<Fabric, Box<dyn Error>> {
    if let Some(name) = name {
        return Ok(Fabric::open(name)?);
    }
    match Fabric::list().as_slice() {
        [] => Err("no fabric is up; 'lab up FILE' brings one up".into()),
        [name] => Ok(Fabric::open(name)?),
        names => Err(format!("several fabrics are up ({}): which one?", names.join(", ")).into()),
    }
}

fn up(arguments: &Up, output: Output) -> Outcome {
    let topology = Topology::load(&arguments.file)?;
    let name = arguments.name.as_deref().unwrap_or(&topology.name);
    if Fabric::is_kept(name) && !arguments.rebuild {
        return Err(format!(
            "the fabric {name} is up already: --rebuild takes it down first, 'lab down {name}' ends it, and --name gives this one \
             another name"
        )
        .into());
    }
    if let Some(sidecars) = vtepd_nodes(&topology) {
        let _ = writeln!(
            io::stderr(),
            "lab: no vtepd is started for {sidecars}: kernel VXLAN forwards until 'lab exec LEAF -- vtepd' runs one"
        );
    }
    for note in &topology.notes {
        // A closed standard error is no error.
        let _ = writeln!(io::stderr(), "lab: {note}");
    }
    let progress = Progress::new();
    let report = |text: &str| progress.report(text);
    let fabric = Fabric::up(topology, arguments.name.as_deref(), &report)?;
    if !arguments.no_wait {
        fabric.converge(Duration::from_secs(arguments.timeout), &report)?;
    }
    drop(progress);
    let fabric = fabric.keep()?;
    if !fabric.hash_seeds() {
        let _ = writeln!(
            io::stderr(),
            "lab: this kernel has no net.ipv4.fib_multipath_hash_seed (Linux 6.11): all routers hash alike, each tier repeats the \
             choice of the one before, and only some of the paths can be reached"
        );
    }
    match output {
        Output::Json => inspect_fabric(&fabric, output),
        Output::Table => {
            print(format_args!(
                "{} is up: 'lab exec NODE -- COMMAND' to look around, 'lab down {0}' to end it",
                fabric.name()
            ))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The nodes that run vtepd in another node's namespace with ContainerLab. vtepd is part of their
/// images, which the lab does not use.
fn vtepd_nodes(topology: &Topology) -> Option<String> {
    let is_vtepd =
        |name: &str, group: Option<&str>| name.starts_with("vtepd") || group == Some("vtepd");
    let sharing = topology.nodes.iter().filter(|(_, node)| node.shares.is_some());
    let names: Vec<&str> = sharing
        .filter(|(name, node)| is_vtepd(name, node.group.as_deref()))
        .map(|(name, _)| name.as_str())
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn down(arguments: &Down) -> Outcome {
    if arguments.all {
        // Continue with the other fabrics after an error.
        let mut first = Ok(ExitCode::SUCCESS);
        for name in Fabric::list() {
            if let Err(error) = Fabric::open(&name).and_then(Fabric::down) {
                first = first.and(Err(error.into()));
            }
        }
        return first;
    }
    open(arguments.name.as_deref())?.down()?;
    Ok(ExitCode::SUCCESS)
}

fn list(output: Output) -> Outcome {
    let names = Fabric::list();
    if output == Output::Json {
        return print_json(&names);
    }
    names.iter().try_for_each(print)?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct NodeLine {
    node: String,
    namespace: String,
    processes: BTreeMap<String, i32>,
}

fn inspect(which: &Which, output: Output) -> Outcome {
    inspect_fabric(&open(which.name.as_deref())?, output)
}

fn inspect_fabric(fabric: &Fabric, output: Output) -> Outcome {
    let processes = fabric.processes()?;
    let lines: Vec<NodeLine> = fabric
        .nodes()
        .iter()
        .map(|node| {
            let own = processes.iter().filter(|process| process.node == node.name());
            Ok::<_, FabricError>(NodeLine {
                node: node.name().to_owned(),
                namespace: node.namespace()?.name().to_owned(),
                processes: own
                    .map(|process| (process.name.clone(), process.identity.pid))
                    .collect(),
            })
        })
        .collect::<Result<_, _>>()?;
    if output == Output::Json {
        return print_json(&lines);
    }
    for line in lines {
        let processes: Vec<String> =
            line.processes.iter().map(|(name, pid)| format!("{name} {pid}")).collect();
        print(format_args!("{:<10} {:<28} {}", line.node, line.namespace, processes.join(", ")))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn exec(arguments: &Exec) -> Outcome {
    let node = open(arguments.which.name.as_deref())?.node(&arguments.node)?;
    let status = node.status(&arguments.command)?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

fn show_counters(arguments: &Counters, output: Output) -> Outcome {
    let fabric = open(arguments.which.name.as_deref())?;
    let mut all = BTreeMap::new();
    for node in fabric.nodes() {
        let own = fabric
            .topology()
            .nodes
            .get(node.name())
            .is_none_or(|settings| settings.shares.is_none());
        // Nodes that share a namespace have the interfaces of its owner.
        let wanted = (arguments.node.is_empty() && own)
            || arguments.node.iter().any(|name| name == node.name());
        if wanted {
            all.insert(node.name().to_owned(), counters::read(&node.namespace()?)?);
        }
    }
    if output == Output::Json {
        return print_json(&all);
    }
    print(format_args!(
        "{:<24} {:>14} {:>14} {:>10} {:>10}",
        "link", "sent", "received", "not sent", "dropped"
    ))?;
    for (node, interfaces) in all {
        for (interface, counters) in interfaces {
            print(format_args!(
                "{:<24} {:>14} {:>14} {:>10} {:>10}",
                format!("{node}:{interface}"),
                counters.tx_packets,
                counters.rx_packets,
                counters.tx_dropped,
                counters.rx_dropped
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `f` in the namespace of the given node, or in the current one.
fn at<T: core::marker::Send>(
    place: &Where,
    f: impl FnOnce() -> T + core::marker::Send,
) -> Result<T, Box<dyn Error>> {
    let Some(node) = &place.node else { return Ok(f()) };
    Ok(open(place.which.name.as_deref())?.node(node)?.namespace()?.enter(f)?)
}

fn send(arguments: &Send, output: Output) -> Outcome {
    let source = Source {
        interface: arguments.place.interface.clone(),
        destination: arguments.to,
        connections: connections(arguments.seed, arguments.queue_pairs),
        inner_port: arguments.inner_port.map_or(InnerPort::PerQueuePair, InnerPort::Constant),
        payload: arguments.payload,
        rate: arguments.rate,
        mark: arguments.place.mark,
        cpu: arguments.cpu,
    };
    let limit = match arguments.frames {
        Some(frames) => Limit::Frames(frames),
        None => Limit::Time(Duration::from_secs(arguments.seconds)),
    };
    let sent = at(&arguments.place, || source.run(limit, interrupt(), &AtomicU64::new(0)))??;
    if output == Output::Json {
        return print_json(&sent);
    }
    let seconds = sent.nanoseconds as f64 / 1e9;
    print(format_args!(
        "{} frames of {} queue pairs in {seconds:.2} s",
        sent.frames, sent.queue_pairs
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn receive(arguments: &Receive, output: Output) -> Outcome {
    let mut sink =
        at(&arguments.place, || Sink::open(&arguments.place.interface, arguments.place.mark))??;
    let quiet = Duration::from_secs(arguments.quiet_seconds);
    let mut last = Instant::now();
    let mut before = 0;
    while !interrupted() && (before == 0 || last.elapsed() < quiet) {
        sink.receive()?;
        if sink.received() > before {
            before = sink.received();
            last = Instant::now();
        }
    }
    let report = sink.report();
    if output == Output::Json {
        return print_json(&report);
    }
    print(format_args!(
        "{:<12} {:>10} {:>8} {:>10} {:>11} {:>10}",
        "queue pair", "received", "lost", "reordered", "duplicated", "corrupted"
    ))?;
    for line in &report.queue_pairs {
        print(format_args!(
            "{:<12} {:>10} {:>8} {:>10} {:>11} {:>10}",
            format!("{:#08x}", line.queue_pair),
            line.received,
            line.lost,
            line.reordered,
            line.duplicated,
            line.corrupted
        ))?;
    }
    print(format_args!(
        "{:<12} {:>10} {:>8} {:>10} {:>11} {:>10}",
        "all",
        report.received(),
        report.lost(),
        report.reordered(),
        report.duplicated(),
        report.corrupted()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The path of the demo's topology: below the current directory, or in the checkout that the
/// program was built in.
fn demo_topology(own: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let places = std::iter::once(Path::new("")).chain(own.ancestors().skip(1));
    let file = places.map(|place| place.join(demo::TOPOLOGY)).find(|file| file.is_file());
    file.ok_or_else(|| {
        format!(
            "{} is neither here nor above {}: name it with --topology",
            demo::TOPOLOGY,
            own.display()
        )
        .into()
    })
}

fn show_demo(arguments: &Demo, output: Output) -> Outcome {
    let own = std::env::current_exe()?;
    if Fabric::is_kept(demo::FABRIC) {
        return Err(format!(
            "the fabric of an earlier demo is still up (--keep); end it first, as root: {} down {}",
            from_here(&own).display(),
            demo::FABRIC
        )
        .into());
    }
    let topology = match &arguments.topology {
        Some(file) => file.clone(),
        None => demo_topology(&own)?,
    };
    let vtepd = arguments.vtepd.clone().unwrap_or_else(|| own.with_file_name("vtepd"));
    if !vtepd.exists() {
        return Err(format!(
            "{} is missing: build it with 'cargo build --release -p vtepd'",
            vtepd.display()
        )
        .into());
    }
    let settings = demo::Settings {
        fabric: demo::FABRIC.to_owned(),
        topology,
        vtepd: std::path::absolute(vtepd)?,
        queue_pairs: arguments.queue_pairs.into(),
        rate: arguments.rate,
        frames: arguments.frames,
    };
    let cannot_write = |path: &Path, error| format!("cannot write {}: {error}", path.display());
    if let Some(path) = &arguments.json {
        // Report an unwritable file before the measurement.
        write_for_user(path, b"").map_err(|error| cannot_write(path, error))?;
    }
    let progress = Progress::new();
    let (fabric, outcome) = demo::run(&settings, &|text| progress.report(text), interrupt())?;
    if let Some(path) = &arguments.json {
        write_for_user(path, &serde_json::to_vec_pretty(&outcome)?)
            .map_err(|error| cannot_write(path, error))?;
    }
    if !arguments.keep {
        progress.report("taking the fabric down")?;
        fabric.down()?;
        drop(progress);
        return show_outcome(&outcome, output);
    }
    drop(progress);
    let code = show_outcome(&outcome, output)?;
    print_tour(&fabric.keep()?, &own)?;
    Ok(code)
}

fn verify(arguments: &Verify, output: Output) -> Outcome {
    let mut topology = Topology::load(&arguments.file)?;
    if let Some(name) = &arguments.name {
        topology.name.clone_from(name);
    }
    let deployed = Deployed::find(topology)?;
    let settings = verify::Settings {
        vtepd: !arguments.kernel,
        queue_pairs: arguments.queue_pairs.into(),
        rate: arguments.rate,
        frames: arguments.frames,
        failover: !arguments.no_failover,
        figures: arguments.figures.as_deref().map(demo::Figures::load).transpose()?,
        limit: Duration::from_secs(arguments.timeout),
    };
    let progress = Progress::new();
    let outcome = verify::run(&deployed, &settings, &|text| progress.report(text), interrupt())?;
    drop(progress);
    if let Some(path) = &arguments.json {
        write_for_user(path, &serde_json::to_vec_pretty(&outcome)?)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    if output == Output::Json {
        print_json(&outcome)?;
    } else {
        print(&outcome)?;
    }
    Ok(if outcome.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes a file and gives it to the user who called sudo.
fn write_for_user(path: &Path, text: &[u8]) -> std::io::Result<()> {
    std::fs::write(path, text)?;
    let id = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    match (id("SUDO_UID"), id("SUDO_GID")) {
        (None, None) => Ok(()),
        (user, group) => std::os::unix::fs::chown(path, user, group),
    }
}

fn show_outcome(outcome: &demo::Outcome, output: Output) -> Outcome {
    if output == Output::Json {
        return print_json(outcome);
    }
    print(outcome)?;
    Ok(ExitCode::SUCCESS)
}

/// The path relative to the current directory if it is below it, otherwise the path itself.
fn from_here(path: &Path) -> &Path {
    std::env::current_dir().ok().and_then(|here| path.strip_prefix(here).ok()).unwrap_or(path)
}

/// Prints commands to explore the fabric that the demo leaves.
fn print_tour(fabric: &Fabric, own: &Path) -> Result<(), Box<dyn Error>> {
    let lab = from_here(own);
    let (lab, name) = (lab.display(), fabric.name());
    let leaf = fabric.node("leaf1")?;
    // A closed standard error is no error.
    let _ = writeln!(
        io::stderr(),
        "The fabric is still up, with vtepd on every leaf. As root:
  {lab} inspect --name {name}                                              nodes and processes
  {lab} exec --name {name} leaf1 -- vtysh -c 'show bgp l2vpn evpn'         what FRR knows
  {lab} exec --name {name} host1 -- ping -c 3 192.168.10.4                 a host
  {lab} exec --name {name} leaf1 -- tcpdump -c 10 -nei up1 udp port 4789   what leaves leaf1
  {lab} exec --name {name} leaf1 -- curl -s http://{}/metrics   what vtepd counts
  {}   its configuration; 'kill -HUP' makes it read it again
End it:
  {lab} down {name}",
        daemon::METRICS,
        daemon::configuration(&leaf).display()
    );
    Ok(())
}
