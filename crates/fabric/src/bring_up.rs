//! Creates a fabric's namespaces, links and processes in the order that the topology file requires.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use experiment::units::Name;

use crate::frr;
use crate::half_links;
use crate::lifecycle::{Fabric, FabricError, HASH_SEED, sysctl_path};
use crate::management;
use crate::netns::{self, Namespace, NetnsError};
use crate::node::{Node, NodeError, TOP, View};
use crate::process::{ProcessError, wait_until};
use crate::progress::OnProgress;
use crate::rtnl::VethEnd;
use crate::stage_tracker::StageTracker;
use crate::state::Record;
use crate::super_frames::cut_super_frames;
use crate::topology::order::is_awaited;
use crate::topology::{
    EndSettings, Healthcheck, Kind, Link, Stage, StageSettings, Topology, is_lab,
};

/// Whether a node forwards IPv4 packets.
const IP_FORWARD: &str = "net.ipv4.ip_forward";
/// How long the lab watches a new program. A program that cannot run ends within this time.
const SETTLING: Duration = Duration::from_millis(500);

impl Fabric {
    /// Brings the topology up. `name` replaces the topology's own name. What a killed process left
    /// under this name is removed first.
    ///
    /// # Errors
    /// [`FabricError::AlreadyUp`] if a fabric of this name was kept. Otherwise everything that was built so far is removed again.
    pub fn up(
        topology: Topology,
        name: Option<&Name>,
        report: OnProgress,
    ) -> Result<Self, FabricError> {
        let fabric = Self::create(topology, name, report)?;
        bring_up(&fabric, report)?;
        Ok(fabric)
    }
}

/// Creates everything in the topology. Nodes come up in parallel.
fn bring_up(fabric: &Fabric, report: OnProgress) -> Result<(), FabricError> {
    let nodes = fabric.nodes();
    for node in nodes.iter().filter(|node| node.settings.shares.is_none()) {
        let _kept = Namespace::create(node.namespace.clone())?.keep();
    }
    report("namespaces created")?;
    for node in &nodes {
        node.prepare(&management::hosts(fabric.topology(), fabric.name(), node))?;
        set_sysctls(node)?;
        if node.settings.kind == Kind::Bridge {
            node.namespace()?.rtnl(|rtnl| rtnl.add_bridge(node.bridge(), true))?;
        }
    }
    management::connect(fabric.topology(), &fabric.between("mgmt"), &nodes)?;
    for (index, link) in fabric.topology().half_links.iter().enumerate() {
        let namespace = fabric.node(&link.end.node)?.namespace()?;
        half_links::add(&namespace, &fabric.between("stitch"), index, link)
            .map_err(|error| FabricError::HalfLink { end: link.end.to_string(), error })?;
    }
    let tracker = StageTracker::new(fabric.topology());
    thread::scope(|scope| {
        let tracker = &tracker;
        let start = |(index, node)| {
            scope.spawn(move || {
                let result = run_stages(node, index, tracker, report);
                if result.is_err() {
                    tracker.stop();
                }
                result
            })
        };
        let threads: Vec<_> = nodes.iter().enumerate().map(start).collect();
        let make = |index: usize| {
            fabric.topology().links.get(index).map_or(Ok(()), |made| link(fabric, made))
        };
        let ended = || threads.iter().all(thread::ScopedJoinHandle::is_finished);
        let made = tracker.make_links(make, ended, report);
        if made.is_err() {
            tracker.stop();
        }
        let results: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        made?;
        Ok(results.into_iter().collect::<Result<_, NodeError>>()?)
    })
}

/// Takes a node through its stages, up to the last one that is required.
fn run_stages(
    node: &Node,
    index: usize,
    tracker: &StageTracker,
    report: OnProgress,
) -> Result<(), NodeError> {
    node.start_init()?;
    let (name, settings) = (node.name(), &node.settings);
    let run = |commands: &[Vec<String>]| run_commands(node, commands, tracker, report);
    let enter = |stage: Stage| {
        let goes_on = tracker.enter(name, stage);
        match settings.stages.get(&stage).filter(|_| goes_on) {
            Some(stage) => run(&stage.on_enter).map(|()| true),
            None => Ok(goes_on),
        }
    };
    let leave = |stage: Stage| {
        settings.stages.get(&stage).map_or(Ok(()), |stage| run(&stage.on_exit))?;
        tracker.done(name, stage);
        Ok::<_, NodeError>(())
    };

    if !enter(Stage::Create)? || !tracker.pause(Duration::from_secs(settings.startup_delay)) {
        return Ok(());
    }
    leave(Stage::Create)?;
    if !enter(Stage::CreateLinks)? || !tracker.await_links(name) {
        return Ok(());
    }
    if let Some(refused) = frr::start(node)? {
        let _ = report(&format!("warning: {name}: refused of frr.conf: {}", in_one_line(&refused)));
    }
    let program = start_program(node)?;
    leave(Stage::CreateLinks)?;
    if !enter(Stage::Configure)? {
        return Ok(());
    }
    leave(Stage::Configure)?;
    run(&settings.exec)?;
    frr::identify(node, index)?;
    let is_awaited = |stage: Stage| is_awaited(tracker.topology(), name, stage);
    // A program may need what the commands set.
    if let Some(program) = &program
        && !is_awaited(Stage::Exit)
        && !settings.stages.contains_key(&Stage::Exit)
        && wait_until(SETTLING, || !program.identity.alive())
    {
        return Err(ended(node, program));
    }
    // As in ContainerLab, a node with commands for this stage enters it, too.
    let healthy = settings.stages.get(&Stage::Healthy);
    if is_awaited(Stage::Healthy) || healthy.is_some_and(StageSettings::has_commands) {
        if !enter(Stage::Healthy)? {
            return Ok(());
        }
        if let Some(check) = &settings.healthcheck {
            if !await_health(node, check, tracker, report)? {
                return Ok(());
            }
            leave(Stage::Healthy)?;
        }
    }
    if !is_awaited(Stage::Exit) || !enter(Stage::Exit)? {
        return Ok(());
    }
    let runs = || program.as_ref().is_some_and(|program| program.identity.alive());
    while runs() {
        if !tracker.pause(SETTLING) {
            return Ok(());
        }
    }
    leave(Stage::Exit)
}

fn in_one_line(text: &str) -> String {
    text.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Runs commands of the file. One that fails is reported and ends nothing, as in ContainerLab: public
/// files have `ip route del default`, for instance, which needs a management network.
fn run_commands(
    node: &Node,
    commands: &[Vec<String>],
    tracker: &StageTracker,
    report: OnProgress,
) -> Result<(), NodeError> {
    for words in commands.iter().take_while(|_| tracker.goes_on()) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let cause = match node.run_while(&words, &|| tracker.goes_on()) {
            Ok(_) => continue,
            Err(NodeError::Netns(NetnsError::Failed { status, stderr, .. })) => {
                format!("{status}: {}", in_one_line(&stderr))
            }
            Err(NodeError::Netns(NetnsError::Start { source, .. })) => source.to_string(),
            Err(error) => return Err(error),
        };
        // An interrupt is noticed by the thread that makes the links.
        let _ =
            report(&format!("warning: {}: '{}' failed ({cause})", node.name(), words.join(" ")));
    }
    Ok(())
}

/// Starts the program of `entrypoint` and `cmd`.
fn start_program(node: &Node) -> Result<Option<Record>, NodeError> {
    let Some((program, arguments)) = node.settings.program.split_first() else { return Ok(None) };
    if node.has_frr() {
        return Ok(None);
    }
    let path = if is_lab(program) { own_program()? } else { PathBuf::from(program) };
    // The parser refuses others: the name is a part of the path of the log.
    let name = Path::new(program).file_name().map(OsStr::to_string_lossy);
    let name = name.ok_or_else(|| NodeError::NotInstalled(program.clone()))?;
    node.spawn_main(&name, node.command(&[path])?.args(arguments)).map(Some)
}

/// The path of `lab`: the current executable, or the one beside a test executable.
pub fn own_program() -> Result<PathBuf, NodeError> {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join("lab"));
    let this = own.file_name().is_some_and(|name| name == "lab").then(|| own.clone());
    this.into_iter()
        .chain(beside)
        .find(|path| path.is_file())
        .ok_or_else(|| NodeError::NotInstalled("lab (cargo build -p lab)".into()))
}

fn ended(node: &Node, program: &Record) -> NodeError {
    let log = std::fs::read_to_string(node.log(&program.name)).unwrap_or_default();
    NodeError::Ended {
        node: node.name().to_owned(),
        program: program.name.clone(),
        last_line: log.lines().last().unwrap_or("no message").to_owned(),
    }
}

/// Runs the health check until the node is healthy, for the first time after one interval. As in
/// ContainerLab, that may take as long as it likes. Returns `false` if the work was stopped.
fn await_health(
    node: &Node,
    check: &Healthcheck,
    tracker: &StageTracker,
    report: OnProgress,
) -> Result<bool, NodeError> {
    let start = Instant::now();
    let mut failures = 0;
    loop {
        if !tracker.pause(check.interval) {
            return Ok(false);
        }
        let mut command = node.command(&check.test)?;
        command.current_dir(TOP).stdout(Stdio::null()).stderr(Stdio::null());
        let mut test = node.start(View::Inside, &mut command)?;
        match test.wait(check.timeout) {
            Ok(status) if status.success() => return Ok(true),
            Ok(_) | Err(ProcessError::StillRuns { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // Dropping a test that still runs kills it.
        drop(test);
        if start.elapsed() >= check.start_period {
            failures += 1;
        }
        if failures == check.retries.max(1) {
            let (node, test) = (node.name(), check.test.join(" "));
            let _ = report(&format!("warning: {node} is not healthy: '{test}' fails"));
        }
    }
}

fn set_sysctls(node: &Node) -> Result<(), FabricError> {
    // As Docker does.
    let forwards = (IP_FORWARD.to_owned(), "1".to_owned());
    let forwards = Some(&forwards).filter(|_| node.settings.shares.is_none());
    let forwards = forwards.map(|(name, value)| (name, value));
    let set = || {
        for (name, value) in forwards.into_iter().chain(&node.settings.sysctls) {
            let path = sysctl_path(name);
            // Linux before 6.11 does not have it; `Fabric::hash_seeds` reports that.
            if name == HASH_SEED && !path.exists() {
                continue;
            }
            std::fs::write(&path, value).map_err(|source| FabricError::Sysctl {
                node: node.name().to_owned(),
                name: name.clone(),
                value: value.clone(),
                source,
            })?;
        }
        Ok(())
    };
    node.namespace()?.enter(set)?
}

/// Creates a link and applies the settings of its ends.
fn link(fabric: &Fabric, link: &Link) -> Result<(), FabricError> {
    let [a, b] = &link.ends;
    let [a_node, b_node] = [fabric.node(&a.node)?, fabric.node(&b.node)?];
    let [a_space, b_space] = [a_node.namespace()?, b_node.namespace()?];
    let [a_settings, b_settings] = &link.settings;
    // The topology file has only valid MAC addresses.
    let mac = |settings: &EndSettings| settings.mac.as_ref().and_then(|mac| mac.parse().ok());
    let a_end = VethEnd { name: &a.interface, mac: mac(a_settings), mtu: link.mtu };
    let b_end = VethEnd { name: &b.interface, mac: mac(b_settings), mtu: link.mtu };
    netns::veth_pair((&a_space, a_end), (&b_space, b_end))?;
    let ends = [(a, a_settings, a_node, a_space), (b, b_settings, b_node, b_space)];
    for (end, settings, node, namespace) in ends {
        let is_port = node.settings.kind == Kind::Bridge;
        if !is_port && !node.has_frr() && node.settings.program.is_empty() {
            // A host. If the kernel refuses, its endpoints send frames one by one.
            let _ = namespace.enter(|| cut_super_frames(&end.interface))?;
        }
        if is_port {
            namespace.rtnl(|rtnl| rtnl.set_master(&end.interface, Some(node.bridge())))?;
        }
        if let Some(name) = &settings.alternative {
            namespace.rtnl(|rtnl| rtnl.add_name(&end.interface, name))?;
        }
    }
    Ok(())
}
