//! Creates a fabric's namespaces, links and processes in the order that the topology file requires.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::fabric::{Fabric, FabricError, OnProgress, set_sysctls};
use crate::frr;
use crate::netns::{self, Namespace};
use crate::node::{Node, NodeError};
use crate::process::{Process, ProcessError, wait_until};
use crate::stages::{Board, is_asked_for};
use crate::state::Record;
use crate::topology::{EndSettings, Endpoint, Healthcheck, Kind, Link, Stage, is_lab};

/// How long the lab watches a new program. A program that cannot run ends within this time.
const SETTLING: Duration = Duration::from_millis(100);

/// Creates everything in the topology. Nodes come up in parallel.
pub(crate) fn bring_up(fabric: &Fabric, report: OnProgress) -> Result<(), FabricError> {
    let nodes = fabric.nodes();
    for node in nodes.iter().filter(|node| node.settings.shares.is_none()) {
        let _kept = Namespace::create(node.namespace.clone())?.keep();
    }
    report("namespaces made")?;
    for node in &nodes {
        node.prepare()?;
        set_sysctls(node)?;
        if node.settings.kind == Kind::Bridge {
            let namespace = node.namespace()?;
            namespace.run(&["ip", "link", "add", node.name(), "type", "bridge"])?;
            namespace.run(&["ip", "link", "set", node.name(), "up"])?;
        }
    }
    let board = Board::new(fabric.topology());
    thread::scope(|scope| {
        let board = &board;
        let start = |node| {
            scope.spawn(move || {
                let result = run_stages(node, board);
                if result.is_err() {
                    board.stop();
                }
                result
            })
        };
        let threads: Vec<_> = nodes.iter().map(start).collect();
        let make = |index: usize| {
            fabric.topology().links.get(index).map_or(Ok(()), |made| link(fabric, made))
        };
        let ended = || threads.iter().all(thread::ScopedJoinHandle::is_finished);
        let overseen = board.oversee(make, ended, report);
        if overseen.is_err() {
            board.stop();
        }
        let results: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        overseen?;
        Ok(results.into_iter().collect::<Result<_, NodeError>>()?)
    })
}

/// Takes a node through its stages, up to the last one that is required.
fn run_stages(node: &Node, board: &Board) -> Result<(), NodeError> {
    let (name, settings) = (node.name(), &node.settings);
    let run = |commands: &[Vec<String>]| {
        commands.iter().try_for_each(|words| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            node.run(&words).map(drop)
        })
    };
    let enter = |stage: Stage| {
        let goes_on = board.enter(name, stage);
        match settings.stages.get(&stage).filter(|_| goes_on) {
            Some(stage) => run(&stage.on_enter).map(|()| true),
            None => Ok(goes_on),
        }
    };
    let leave = |stage: Stage| {
        settings.stages.get(&stage).map_or(Ok(()), |stage| run(&stage.on_exit))?;
        board.done(name, stage);
        Ok::<_, NodeError>(())
    };

    if !enter(Stage::Create)? || !board.pause(Duration::from_secs(settings.startup_delay)) {
        return Ok(());
    }
    leave(Stage::Create)?;
    if !enter(Stage::CreateLinks)? || !board.await_links(name) {
        return Ok(());
    }
    frr::start(node)?;
    let program = start_program(node)?;
    leave(Stage::CreateLinks)?;
    if !enter(Stage::Configure)? {
        return Ok(());
    }
    run(&settings.exec)?;
    if let Some(program) = &program
        && !is_asked_for(board.topology(), name, Stage::Exit)
        && wait_until(SETTLING, || !program.identity.alive())
    {
        return Err(ended(node, program));
    }
    leave(Stage::Configure)?;
    if !is_asked_for(board.topology(), name, Stage::Healthy) || !enter(Stage::Healthy)? {
        return Ok(());
    }
    if let Some(check) = &settings.healthcheck
        && !await_health(node, check, board)?
    {
        return Ok(());
    }
    leave(Stage::Healthy)?;
    if !is_asked_for(board.topology(), name, Stage::Exit) || !enter(Stage::Exit)? {
        return Ok(());
    }
    let runs = || program.as_ref().is_some_and(|program| program.identity.alive());
    while runs() {
        if !board.pause(SETTLING) {
            return Ok(());
        }
    }
    leave(Stage::Exit)
}

/// Starts the program of `entrypoint` and `cmd`.
fn start_program(node: &Node) -> Result<Option<Record>, NodeError> {
    let Some((program, arguments)) = node.settings.program.split_first() else { return Ok(None) };
    if node.has_frr() {
        let reason =
            "lab starts it as its daemons file says; take entrypoint and cmd of the node away";
        return Err(NodeError::Frr { node: node.name().to_owned(), reason: reason.to_owned() });
    }
    let path = if is_lab(program) { own_program()? } else { PathBuf::from(program) };
    let name = Path::new(program)
        .file_name()
        .map_or(program.as_str().into(), |name| name.to_string_lossy());
    node.spawn(&name, node.command(&[path])?.args(arguments)).map(Some)
}

/// The path of `lab`: the current executable, or the one beside a test executable.
fn own_program() -> Result<PathBuf, NodeError> {
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
        said: log.lines().last().unwrap_or("it has said nothing").to_owned(),
    }
}

/// Runs the health check until the node is healthy. Returns `false` if the work was stopped.
fn await_health(node: &Node, check: &Healthcheck, board: &Board) -> Result<bool, NodeError> {
    let start = Instant::now();
    let mut failures = 0;
    loop {
        let mut command = node.command(&check.test)?;
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut test = node.enter(|| Process::spawn(&mut command))??;
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
        if failures >= check.retries.max(1) {
            return Err(NodeError::Sick {
                node: node.name().to_owned(),
                test: check.test.join(" "),
            });
        }
        if !board.pause(check.interval) {
            return Ok(false);
        }
    }
}

/// Creates a link and applies the settings of its ends.
fn link(fabric: &Fabric, link: &Link) -> Result<(), FabricError> {
    let [a, b] = &link.ends;
    let namespace = |end: &Endpoint| Ok::<_, FabricError>(fabric.node(&end.node)?.namespace()?);
    netns::veth((&namespace(a)?, &a.interface), (&namespace(b)?, &b.interface), link.mtu)?;
    for (end, EndSettings { mac, addresses }) in link.ends.iter().zip(&link.settings) {
        let (node, namespace) = (fabric.node(&end.node)?, namespace(end)?);
        if node.settings.kind == Kind::Bridge {
            namespace.run(&["ip", "link", "set", &end.interface, "master", node.name()])?;
        }
        if let Some(mac) = mac {
            namespace.run(&["ip", "link", "set", &end.interface, "address", mac])?;
        }
        for address in addresses {
            namespace.run(&["ip", "addr", "add", address, "dev", &end.interface])?;
        }
    }
    Ok(())
}
