//! `--dry-run`: which VNIs would be taken over, and why the others would not.

use std::fmt::Write as _;

use bpf::{Hook, bypass_obstacle};
use configuration::Output;
use control::{Datapath, Update};
use path::Policy;
use serde::Serialize;

/// A VNI that would be taken over.
#[derive(Debug, Serialize)]
struct Taken {
    netdev: String,
    vni: u32,
    local: std::net::IpAddr,
    destination_port: u16,
    policy: String,
    remote_macs: usize,
    flood_vteps: usize,
    learning: bool,
    frame_limit: u32,
}

/// A netdev that would stay with the kernel.
#[derive(Debug, Serialize)]
struct Left {
    netdev: String,
    vni: u32,
    /// Whether the netdev has no VNI of its own (`external`).
    external: bool,
    datapath: &'static str,
    /// The policy for source ports; `five-tuple` if the kernel chooses them.
    policy: String,
    reason_slug: &'static str,
    reason: String,
}

/// A bridge port, and why it would not use the bypass.
#[derive(Debug, Serialize)]
struct Port {
    port: String,
    vni: u32,
    bypass: bool,
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    hook: String,
    uplinks: Vec<String>,
    taken: Vec<Taken>,
    left: Vec<Left>,
    ports: Vec<Port>,
    notes: Vec<String>,
}

/// The report as text.
pub(crate) fn report(update: &Update, hook: Hook, notes: Vec<String>, output: Output) -> String {
    let taken = update.plan.vnis.values().filter_map(|vni| {
        let table = update.snapshot.vni(vni.index.get())?;
        Some(Taken {
            netdev: vni.name.clone(),
            vni: vni.vni.get(),
            local: vni.local,
            destination_port: vni.destination_port,
            policy: table.entropy.policy().to_string(),
            remote_macs: table.fdb.len(),
            flood_vteps: table.flood.len(),
            learning: table.learning.is_some(),
            frame_limit: vni.frame_limit,
        })
    });
    let left = update.left.iter().map(|left| Left {
        netdev: left.name.clone(),
        vni: left.vni,
        external: left.reason.is_external(),
        datapath: Datapath::Kernel.name(),
        policy: update
            .plan
            .choice_of(left.source)
            .map_or(Policy::FiveTuple, |choice| choice.entropy.policy())
            .to_string(),
        reason_slug: left.reason.slug(),
        reason: left.reason.to_string(),
    });
    let ports = update.ports.iter().map(|port| {
        let reason = port.reason.map(|reason| reason.to_string());
        let obstacle = || bypass_obstacle(update.plan.ports.get(&port.ifindex)?);
        let reason = reason.or_else(obstacle);
        Port { port: port.name.clone(), vni: port.vni.get(), bypass: reason.is_none(), reason }
    });
    let report = Report {
        hook: hook.to_string(),
        uplinks: update.plan.uplinks.iter().map(|uplink| uplink.name.clone()).collect(),
        taken: taken.collect(),
        left: left.collect(),
        ports: ports.collect(),
        notes,
    };
    match output {
        Output::Json => serde_json::to_string_pretty(&report).unwrap_or_default() + "\n",
        Output::Table => table(&report),
    }
}

fn table(report: &Report) -> String {
    let mut text = String::new();
    let uplinks =
        if report.uplinks.is_empty() { "none yet".to_owned() } else { report.uplinks.join(" ") };
    // Writing to a string does not fail.
    let _ = writeln!(text, "Steering by {}; uplinks: {uplinks}\n", report.hook);
    let _ = writeln!(text, "Would be taken over: {}", report.taken.len());
    if !report.taken.is_empty() {
        let _ = writeln!(
            text,
            "  {:<16} {:>8}  {:<15} {:>5}  {:<10} {:>6} {:>6} {:>8} {:>12}",
            "netdev", "vni", "local", "port", "policy", "macs", "flood", "learning", "frame limit"
        );
    }
    for t in &report.taken {
        let _ = writeln!(
            text,
            "  {:<16} {:>8}  {:<15} {:>5}  {:<10} {:>6} {:>6} {:>8} {:>12}",
            t.netdev,
            t.vni,
            t.local,
            t.destination_port,
            t.policy,
            t.remote_macs,
            t.flood_vteps,
            if t.learning { "yes" } else { "no" },
            t.frame_limit
        );
    }
    let _ = writeln!(text, "Would stay with the kernel: {}", report.left.len());
    for l in &report.left {
        let vni = if l.external { "external".to_owned() } else { l.vni.to_string() };
        let _ = writeln!(
            text,
            "  {:<16} {vni:>8}  source ports by {}: {} [{}]",
            l.netdev, l.policy, l.reason, l.reason_slug
        );
    }
    for port in &report.ports {
        let reason = port.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        let has = if port.bypass { "would have the bypass" } else { "would not have the bypass" };
        let _ = writeln!(text, "Port {} (VNI {}) {has}{reason}", port.port, port.vni);
    }
    for note in &report.notes {
        let _ = writeln!(text, "Note: {note}");
    }
    text
}
