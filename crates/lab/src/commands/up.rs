//! `lab up`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use fabric::topology::Topology;
use fabric::{Fabric, FabricError};
use lab::zebra;
use study::RunError;

use crate::arguments::{Output, Up};
use crate::output::{Outcome, Progress, note, print, vtepd};

/// Brings a fabric up, and vtepd beside its leaves.
pub(super) fn run(arguments: &Up, output: Output) -> Outcome {
    let topology = Topology::load_as(&arguments.file, arguments.name.as_ref())?;
    if Fabric::is_kept(&topology.name) && arguments.rebuild {
        Fabric::open(&topology.name)?.down()?;
    }
    let vtepd = sidecar_program(arguments, &topology)?;
    topology.notes.iter().for_each(note);
    if let Some(text) = lab::doctor::neighbours_beyond(topology.wires().len()) {
        note(text);
    }
    let progress = Progress::new();
    let report = |text: &str| progress.report(text);
    let fabric = Fabric::up(topology, None, &report)?;
    let mut started = 0;
    let mut start = || {
        let Some(program) = &vtepd else { return Ok(()) };
        started = study::leaves::start_sidecars(&fabric, program, !arguments.no_wait, &report)?;
        Ok::<_, RunError>(())
    };
    match arguments.no_wait {
        true => start()?,
        false => {
            let limit = Duration::from_secs(arguments.timeout);
            match fabric.converge_with(limit, &report, start) {
                Err(RunError::Fabric(FabricError::NotConverged {
                    missing,
                    forwards: true,
                    ..
                })) => {
                    note(format_args!("after {limit:?}: {missing}"));
                }
                converged => converged?,
            }
        }
    }
    let silent = match arguments.no_wait || vtepd.is_none() {
        true => Vec::new(),
        false => zebra::await_all(&fabric, &report)?,
    };
    drop(progress);
    let fabric = fabric.keep()?;
    for leaf in silent {
        note(format_args!(
            "zebra of {leaf} has not connected to vtepd by FPM: vtepd follows the kernel's routes \
             there. 'lab exec {leaf} -- vtysh -c \"show fpm status\"' tells more"
        ));
    }
    if !fabric.hash_seeds() {
        note(
            "this kernel lacks net.ipv4.fib_multipath_hash_seed (Linux 6.11): all routers compute \
             the same hash, so each tier repeats the choice of the previous one and some paths stay \
             unused",
        );
    }
    match output {
        Output::Json => super::inspect_fabric(&fabric, output),
        Output::Table => {
            print(format_args!(
                "fabric '{}' is running, {}: 'lab exec NODE -- COMMAND' runs a command, 'lab down {0}' \
                 stops the fabric",
                fabric.name(),
                match started {
                    0 => "kernel VXLAN forwards".to_owned(),
                    number => format!("vtepd on {number} leaves"),
                }
            ))?;
            if arguments.web {
                return super::web::serve(&fabric, ::web::Access::Full, 0);
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The path of vtepd, if nodes of the topology run it beside leaves.
fn sidecar_program(
    arguments: &Up,
    topology: &Topology,
) -> Result<Option<PathBuf>, Box<dyn std::error::Error>> {
    if arguments.no_vtepd || topology.nodes.values().all(|node| node.vtepd.is_none()) {
        return Ok(None);
    }
    let path = vtepd(arguments.vtepd.as_ref())?;
    if !path.exists() {
        return Err(format!(
            "{} is missing, which the file's nodes with `network-mode: container:LEAF` run: build \
             it with 'cargo build -p vtepd', name it with --vtepd, or leave them out with --no-vtepd",
            path.display()
        )
        .into());
    }
    Ok(Some(path))
}
