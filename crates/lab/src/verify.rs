//! Verifies a fabric that is up. All hosts must reach each other, vtepd must forward on each leaf,
//! and queue pairs must spread over the uplinks. A lost uplink may cost milliseconds, a silent
//! failure of a circuit the time that BFD needs.
//!
//! It only uses the namespaces of the nodes, so the container images need no tools.

mod bfd;
pub(crate) mod failover;
mod report;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::demo::{Figures, KERNEL};
use experiment::balance::{self, RandomPlacement};
use fabric::deployed::{Deployed, Overlay};
use fabric::netns::NetnsError;
use fabric::progress::{Interrupted, OnProgress};
use fabric::rtnl::Route;
use fabric::topology::Endpoint;
use fabric::{STABLE_TIME, few_at_once};
use failover::Measured;
use study::RunError;
use traffic::roce::{Limit, Sent};
use traffic::spread::{self, Paths, Spread};
use traffic::stream::{Stream, Streamed};

pub use report::{Balance, Failover, Leaf, Outage, Outcome, Reach, WideAreaFailover};

/// How long all routes must be unchanged if the sending leaf does not use one of its uplinks. FRR
/// that started before its links existed may take a minute to use them.
const UNUSED_UPLINK_TIME: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(200);
/// Pings at the same time. More delay each other on a small machine.
const PINGS: usize = 64;
/// How many times frames are sent if routes change meanwhile.
const ATTEMPTS: u32 = 3;
/// The interval at which routes are looked at meanwhile. A lost neighbour does not return in this
/// time.
const LOOK: Duration = Duration::from_millis(500);

/// The settings of a verification.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether vtepd is expected to forward on each leaf; otherwise no vtepd is expected.
    pub vtepd: bool,
    /// The number of queue pairs between the two hosts, 1 to 1000.
    pub queue_pairs: usize,
    /// Frames per second.
    pub rate: u32,
    /// The number of frames for the measurement of balance.
    pub frames: u64,
    /// Whether an uplink and a circuit, if there are any, are interrupted under traffic.
    pub failover: bool,
    /// Figures of the demo that the balance must match.
    pub figures: Option<Figures>,
    /// How long to wait until the fabric is complete.
    pub limit: Duration,
}

/// Verifies the fabric. Deviations are in [`Outcome::faults`].
///
/// # Errors
/// [`RunError`] if the verification could not be carried out.
pub fn run(
    deployed: &Deployed,
    settings: &Settings,
    report: OnProgress,
    interrupted: &AtomicBool,
) -> Result<Outcome, RunError> {
    let (overlay, unused) = await_complete(deployed, settings, report)?;
    let reach = reach(deployed, &overlay)?;
    let reached = reach.iter().filter(|reach| reach.reached).count();
    report(&format!("{reached} of {} pairs of hosts reach each other", reach.len()))?;
    let leaves = leaves(deployed, &overlay)?;

    let (from, to) = spread::ends(deployed.topology(), &overlay).ok_or_else(|| {
        RunError::NoHosts("no two hosts of one VNI at different leaves were found".into())
    })?;
    report(&format!(
        "{} queue pairs from {} to {}",
        settings.queue_pairs, from.end.node, to.end.node
    ))?;
    let paths = Paths::new(deployed.topology(), &from.leaf, &to.leaf);
    let sending =
        |limit| Stream::between(deployed, from, to, settings.queue_pairs, settings.rate, limit);
    let stream = sending(Limit::Frames(settings.frames))?;
    let attempt = send_undisturbed(&stream, &paths, (deployed, settings), report, interrupted)?;
    let Attempt { sent, spread, is_disturbed, unused: later } = attempt;
    let unused = later.unwrap_or(unused);
    let (uplinks, tier) = (paths.uplinks(), paths.widest());
    let names: Vec<String> = uplinks.iter().map(Endpoint::to_string).collect();
    let chance = RandomPlacement::new(settings.queue_pairs, tier.len());
    let balance = Balance {
        from: from.end.node.clone(),
        to: to.end.node.clone(),
        policy: policy(&leaves),
        queue_pairs: settings.queue_pairs,
        frames: sent.frames,
        floor_mmr: balance::floor(settings.queue_pairs, tier.len()),
        random_mmr: chance.expected_mmr(),
        random_mmr_at_most: chance.quantile_mmr(0.999),
        widest: tier.clone(),
        uplinks: names.iter().map(|name| (name.clone(), spread.share(name, &names))).collect(),
        spread,
    };
    let (vtep, rate) = (to.vtep, settings.rate);
    let traffic = failover::Traffic { deployed, vtep, rate, sending: &sending, interrupted };
    let mut disturbed = Vec::new();
    let failures = if settings.failover {
        interrupt_links(&traffic, &paths, &balance.spread, report, &mut disturbed)?
    } else {
        (None, None)
    };
    if interrupted.load(Ordering::Relaxed) {
        return Err(Interrupted.into());
    }
    let differences = settings.figures.as_ref().map_or_else(Vec::new, |figures| {
        figures.differences(&balance.policy, settings.queue_pairs, &balance.spread, &tier)
    });
    let mut outcome = Outcome::new(deployed, settings.vtepd, reach, leaves, balance, failures);
    outcome.faults.extend(differences);
    if is_disturbed {
        disturbed.push("frames were sent".to_owned());
    }
    let faults = disturbed.into_iter();
    outcome.faults.extend(
        faults.map(|when| format!("routes changed while {when}, in each of {ATTEMPTS} attempts")),
    );
    outcome
        .faults
        .extend(unused.iter().map(|uplink| format!("no route to the other leaf uses {uplink}")));
    Ok(outcome)
}

/// The frames of a stream that count.
struct Attempt {
    sent: Sent,
    /// What arrived on which links.
    spread: Spread,
    /// Whether routes changed meanwhile.
    is_disturbed: bool,
    /// The sending leaf's uplinks that no route uses, if earlier attempts were disturbed.
    unused: Option<Vec<String>>,
}

/// Sends the frames of a stream. If a router loses a neighbour meanwhile, as on a busy machine, the
/// frames are not those of one set of routes: they are sent again, up to [`ATTEMPTS`] times in all.
fn send_undisturbed(
    stream: &Stream,
    paths: &Paths,
    (deployed, settings): (&Deployed, &Settings),
    report: OnProgress,
    interrupted: &AtomicBool,
) -> Result<Attempt, RunError> {
    let (mut attempt, mut unused) = (1, None);
    loop {
        let (before, routes) = (paths.loads(deployed)?, deployed.routes()?);
        let (mut same, mut looked) = (true, Instant::now());
        let Streamed { sent, arrived, .. } = stream.run(interrupted, |_| {
            if looked.elapsed() >= LOOK {
                (same, looked) = (same && deployed.routes()? == routes, Instant::now());
            }
            Ok::<_, RunError>(())
        })?;
        let spread = paths.spread(&before, &paths.loads(deployed)?, &arrived);
        let is_disturbed = !same || deployed.routes()? != routes;
        if !is_disturbed || attempt == ATTEMPTS {
            return Ok(Attempt { sent, spread, is_disturbed, unused });
        }
        attempt += 1;
        report("routes changed while frames were sent: once more")?;
        unused = Some(await_complete(deployed, settings, report)?.1);
    }
}

/// Interrupts the uplink with the most traffic, and the circuit with the most, each if there is
/// another one. Traffic flows meanwhile.
fn interrupt_links(
    traffic: &failover::Traffic<'_>,
    paths: &Paths,
    spread: &Spread,
    report: OnProgress,
    disturbed: &mut Vec<String>,
) -> Result<(Option<Failover>, Option<WideAreaFailover>), RunError> {
    let busiest = |links: &[Endpoint]| {
        let names: Vec<String> = links.iter().map(Endpoint::to_string).collect();
        let shares =
            links.iter().map(|link| (link.clone(), spread.share(&link.to_string(), &names)));
        shares.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|_| links.len() > 1)
    };
    let mut failover = None;
    if let Some((uplink, share)) = busiest(&paths.uplinks()) {
        report(&format!("{uplink} goes down and comes up again"))?;
        let lose = || traffic.lose_uplink(&uplink, share);
        failover = Some(undisturbed(lose, &uplink, report, disturbed)?);
    }
    let circuits = paths.circuits(traffic.deployed.topology());
    let near: Vec<Endpoint> = circuits.keys().cloned().collect();
    let Some((near, share)) = busiest(&near) else { return Ok((failover, None)) };
    let Some(port) = circuits.get(&near) else { return Ok((failover, None)) };
    report(&format!("the circuit at {port} fails silently and recovers"))?;
    let lose = || traffic.lose_circuit(&near, port, share);
    let wide_area = match undisturbed(lose, port, report, disturbed) {
        Err(RunError::Netns(NetnsError::Rtnl { error, .. }))
            if error.errno() == Some(Errno::EBUSY as i32) =>
        {
            report("skipped: only Linux 6.2 and later can rename an interface that is up")?;
            None
        }
        cut => Some(cut?),
    };
    Ok((failover, wide_area))
}

/// Repeats a failure of `link` while routers lose other ways as it recovers, up to [`ATTEMPTS`] times
/// in all. If they always do, adds that to `disturbed`.
fn undisturbed<T>(
    lose: impl Fn() -> Result<Measured<T>, RunError>,
    link: &Endpoint,
    report: OnProgress,
    disturbed: &mut Vec<String>,
) -> Result<T, RunError> {
    for _ in 1..ATTEMPTS {
        let measured = lose()?;
        if !measured.is_disturbed {
            return Ok(measured.failover);
        }
        // An interrupt ends the verification here.
        report(&format!("other routes changed while {link} recovered: once more"))?;
    }
    let measured = lose()?;
    if measured.is_disturbed {
        disturbed.push(format!("{link} recovered"));
    }
    Ok(measured.failover)
}

/// Waits until the kernels of all leaves know all other leaves and hosts, and routes are stable.
/// Also returns the sending leaf's uplinks that no route uses.
fn await_complete(
    deployed: &Deployed,
    settings: &Settings,
    report: OnProgress,
) -> Result<(Overlay, Vec<String>), RunError> {
    let start = Instant::now();
    let mut stable = (start, Vec::new());
    loop {
        let overlay = deployed.overlay()?;
        let (floods, addresses) = overlay.entries(&deployed.databases(&overlay)?);
        let leaves = leaves(deployed, &overlay)?;
        let without: Vec<&str> = leaves
            .iter()
            .filter(|leaf| settings.vtepd && !leaf.forwards)
            .map(|leaf| leaf.node.as_str())
            .collect();
        let missing = match without.as_slice() {
            [] => String::new(),
            nodes => format!(
                ", vtepd does not forward yet on {} (with --kernel, none is expected)",
                nodes.join(", ")
            ),
        };
        let unprobed: Vec<&str> =
            leaves.iter().filter(|leaf| leaf.unprobed > 0).map(|leaf| leaf.node.as_str()).collect();
        let missing = match unprobed.as_slice() {
            [] => missing,
            nodes => format!("{missing}, qp-pin still looks for paths on {}", nodes.join(", ")),
        };
        let unused = unused_uplinks(deployed, &overlay)?;
        let by = if unused.is_empty() {
            String::new()
        } else {
            format!(", no route uses {}", unused.join(", "))
        };
        report(&format!("flood entries {floods}, remote MACs {addresses}{missing}{by}",))?;
        let complete = floods.expected > 0 && floods.complete() && addresses.complete();
        let ready = without.is_empty() && unprobed.is_empty();
        let routes = deployed.routes()?;
        if routes != stable.1 {
            stable = (Instant::now(), routes);
        }
        // After the limit, the verification continues and reports what is missing.
        let stable_time = if unused.is_empty() { STABLE_TIME } else { UNUSED_UPLINK_TIME };
        if (complete && ready && stable.0.elapsed() >= stable_time)
            || start.elapsed() >= settings.limit
        {
            return Ok((overlay, unused));
        }
        deployed.announce(&overlay.hosts)?;
        std::thread::sleep(POLL);
    }
}

/// The sending leaf's uplinks on the shortest paths that are not used. If its vtepd forwards, they
/// are not among vtepd's next hops; otherwise they are not in the kernel's route.
fn unused_uplinks(deployed: &Deployed, overlay: &Overlay) -> Result<Vec<String>, RunError> {
    let Some((from, to)) = spread::ends(deployed.topology(), overlay) else {
        return Ok(Vec::new());
    };
    let namespace = deployed.namespace(&from.leaf)?;
    let metrics = fabric::metrics::read(&namespace);
    let used: BTreeSet<String> = match &metrics {
        Ok(metrics) if Leaf::of(&from.leaf, Ok(metrics)).forwards => uplinks_of(metrics),
        _ => {
            let (routes, links) = namespace.rtnl(|rtnl| Ok((rtnl.routes()?, rtnl.links()?)))?;
            let routes = routes.iter().filter(|route| route.is_to(to.vtep));
            let used: Vec<u32> = routes.flat_map(Route::interfaces).collect();
            let links = links.into_iter().filter(|link| used.contains(&link.index));
            links.map(|link| link.name).collect()
        }
    };
    let uplinks = Paths::new(deployed.topology(), &from.leaf, &to.leaf).uplinks();
    let unused = uplinks.iter().filter(|uplink| !used.contains(&uplink.interface));
    Ok(unused.map(ToString::to_string).collect())
}

/// The uplinks of vtepd's next hops, from its metrics.
fn uplinks_of(metrics: &str) -> BTreeSet<String> {
    let labels =
        metrics.lines().filter_map(|line| line.strip_prefix("vtepd_path_frames_total{uplink=\""));
    labels.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

/// Pings from every host to every other host of its VNI.
fn reach(deployed: &Deployed, overlay: &Overlay) -> Result<Vec<Reach>, RunError> {
    let pairs = overlay.hosts.iter().flat_map(|from| {
        let others = overlay.hosts.iter().filter(|to| to.vni == from.vni && to.end != from.end);
        others.map(move |to| (from, to))
    });
    let pairs: Vec<_> = pairs.collect();
    few_at_once(PINGS, &pairs, |(from, to)| {
        let address = to.address.to_string();
        let ping = ["ping", "-q", "-c", "3", "-i", "0.2", "-W", "1", &address];
        let output = deployed.namespace(&from.end.node)?.output(&ping)?;
        Ok(Reach {
            from: from.end.node.clone(),
            to: to.end.node.clone(),
            vni: from.vni,
            reached: output.status.success(),
        })
    })
}

/// Reads the metrics of vtepd on each leaf.
fn leaves(deployed: &Deployed, overlay: &Overlay) -> Result<Vec<Leaf>, RunError> {
    let names: BTreeSet<&str> = overlay.tunnels.iter().map(|tunnel| tunnel.node.as_str()).collect();
    names
        .into_iter()
        .map(|node| {
            Ok(Leaf::of(node, fabric::metrics::read(&deployed.namespace(node)?).as_deref()))
        })
        .collect()
}

/// The policy of all leaves, or `mixed` if they differ.
fn policy(leaves: &[Leaf]) -> String {
    let policies: BTreeSet<&str> =
        leaves.iter().flat_map(|leaf| leaf.policies.values().map(String::as_str)).collect();
    match Vec::from_iter(policies).as_slice() {
        [] => KERNEL.to_owned(),
        [policy] => (*policy).to_owned(),
        _ => "mixed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uplinks_in_use_are_those_of_vtepds_next_hops() {
        let metrics = "\
# TYPE vtepd_path_frames counter
vtepd_path_frames_total{uplink=\"up2\",gateway=\"169.254.0.1\"} 7
vtepd_path_bytes_total{uplink=\"up3\",gateway=\"169.254.0.1\"} 7
";
        assert_eq!(uplinks_of(metrics), BTreeSet::from(["up2".to_owned()]));
    }
}
