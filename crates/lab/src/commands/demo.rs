//! `lab demo`: compares kernel VXLAN with each policy of vtepd.

use std::error::Error;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use experiment::units::Name;
use fabric::Fabric;
use lab::demo;
use study::daemon;

use crate::arguments::{Demo, Output};
use crate::output::{Outcome, Progress, built_vtepd, interrupt, show, write};

/// The path of the demo's topology: below the current directory, or in the checkout that the
/// program was built in.
fn demo_topology(own: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let places = std::iter::once(Path::new("")).chain(own.ancestors().skip(1));
    let file = places.map(|place| place.join(demo::TOPOLOGY)).find(|file| file.is_file());
    file.ok_or_else(|| {
        format!(
            "{} was found neither below the current folder nor above {}: set it with --topology",
            demo::TOPOLOGY,
            own.display()
        )
        .into()
    })
}

pub(super) fn run(arguments: &Demo, output: Output) -> Outcome {
    let own = std::env::current_exe()?;
    let fabric: Name = demo::FABRIC.parse()?;
    if Fabric::is_kept(&fabric) {
        return Err(format!(
            "the fabric of an earlier demo is still running (--keep); stop it first, as root: {} down {}",
            from_here(&own).display(),
            demo::FABRIC
        )
        .into());
    }
    let topology = match &arguments.topology {
        Some(file) => file.clone(),
        None => demo_topology(&own)?,
    };
    let vtepd = built_vtepd(arguments.vtepd.as_ref())?;
    let settings = demo::Settings {
        fabric,
        topology,
        vtepd,
        queue_pairs: arguments.queue_pairs.into(),
        rate: arguments.rate,
        frames: arguments.frames,
    };
    if let Some(path) = &arguments.json {
        // Report an unwritable file before the measurement.
        write(path, b"")?;
    }
    let progress = Progress::new();
    let (fabric, outcome) = demo::run(&settings, &|text| progress.report(text), interrupt())?;
    if let Some(path) = &arguments.json {
        write(path, &serde_json::to_vec_pretty(&outcome)?)?;
    }
    if !arguments.keep {
        progress.report("stopping the fabric")?;
        fabric.down()?;
        drop(progress);
        return show(&outcome, output);
    }
    drop(progress);
    let code = show(&outcome, output)?;
    print_tour(&fabric.keep()?, &own)?;
    Ok(code)
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
        "The fabric is still running, with vtepd on every leaf. As root:
  {lab} web {name}                                                         see it live in a browser
  {lab} inspect --name {name}                                              nodes and processes
  {lab} exec --name {name} leaf1 -- vtysh -c 'show bgp l2vpn evpn'         EVPN routes of FRR
  {lab} exec --name {name} host1 -- ping -c 3 192.168.10.4                 ping between two hosts
  {lab} exec --name {name} leaf1 -- tcpdump -c 10 -nei up1 udp port 4789   encapsulated frames of leaf1
  {lab} exec --name {name} leaf1 -- curl -s http://{}/metrics   vtepd's metrics
  {}   vtepd's configuration; SIGHUP reloads it
Stop the fabric:
  {lab} down {name}",
        fabric::metrics::ADDRESS,
        daemon::configuration(&leaf).display()
    );
    Ok(())
}
