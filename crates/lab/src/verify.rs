//! Whether a fabric that is up does what it should: everybody reaches everybody, vtepd forwards on each leaf, queue pairs
//! spread over the uplinks, and a lost uplink costs milliseconds.
//!
//! It works from outside, by the namespaces of the nodes: the images need no tools.

mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::balance::{RandomPlacement, mmr};
use crate::counters::{self, CountersError};
use crate::daemon;
use crate::fabric::{FabricError, OnProgress};
use crate::netns::NetnsError;
use crate::overlay::{Deployed, Host, Overlay};
use crate::roce::{End, Limit, Report, RoceError, Sent, Stream};
use crate::topology::Endpoint;

pub use report::{Balance, Failover, Leaf, Outage, Outcome, Reach};

const POLL: Duration = Duration::from_millis(200);
/// How long the uplink is down, and how long it is watched on its return at most.
const DOWN: Duration = Duration::from_secs(3);
const RETURN: Duration = Duration::from_secs(20);
/// An uplink with this share of the frames is in use.
const USED: f64 = 0.02;

/// The fabric could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A namespace.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The traffic.
    #[error(transparent)]
    Roce(#[from] RoceError),
    /// The counters.
    #[error(transparent)]
    Counters(#[from] CountersError),
    /// There is nothing to verify.
    #[error("{0}")]
    Nothing(String),
}

/// How to look.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether each leaf is expected to have a vtepd that forwards; otherwise none is.
    pub vtepd: bool,
    /// Queue pairs between the two hosts, 1 to 1000.
    pub queue_pairs: usize,
    /// Frames per second.
    pub rate: u32,
    /// Frames for the balance.
    pub frames: u64,
    /// How long the fabric may take until everybody reaches everybody.
    pub limit: Duration,
}

/// Looks at everything. What is not as it should be is in [`Outcome::faults`].
///
/// # Errors
/// [`VerifyError`] if it could not be looked at.
pub fn run(
    deployed: &Deployed,
    settings: &Settings,
    report: OnProgress,
    interrupted: &AtomicBool,
) -> Result<Outcome, VerifyError> {
    let overlay = wait(deployed, settings, report)?;
    let reach = reach(deployed, &overlay)?;
    let reached = reach.iter().filter(|reach| reach.reached).count();
    report(&format!("{reached} of {} pairs of hosts reach each other", reach.len()))?;
    let leaves = leaves(deployed, &overlay)?;

    let (from, to) = ends(&overlay)?;
    report(&format!("{} queue pairs from {} to {}", settings.queue_pairs, from.end.node, to.end.node))?;
    let uplinks = uplinks(deployed, &overlay, &from.leaf);
    let sending = |limit| {
        Ok::<_, VerifyError>(Stream {
            from: End {
                namespace: deployed.namespace(&from.end.node)?,
                interface: from.end.interface.clone(),
            },
            to: End { namespace: deployed.namespace(&to.end.node)?, interface: to.end.interface.clone() },
            address: to.address,
            queue_pairs: settings.queue_pairs,
            rate: settings.rate,
            limit,
        })
    };
    let before = sent_frames(deployed, &uplinks)?;
    let (sent, arrived) =
        sending(Limit::Frames(settings.frames))?.run(interrupted, |_| Ok::<_, VerifyError>(()))?;
    let shares = shares(&before, &sent_frames(deployed, &uplinks)?);
    let balance = Balance {
        from: from.end.node.clone(),
        to: to.end.node.clone(),
        queue_pairs: settings.queue_pairs,
        frames: sent.frames,
        lost: arrived.lost(),
        reordered: arrived.reordered(),
        duplicated: arrived.duplicated(),
        mmr: mmr(&shares.values().map(|share| (share * 1e6) as u64).collect::<Vec<_>>()),
        random_mmr: RandomPlacement::new(settings.queue_pairs, uplinks.len()).expected_mmr(),
        random_mmr_at_most: RandomPlacement::new(settings.queue_pairs, uplinks.len()).quantile_mmr(0.999),
        uplinks: shares.iter().map(|(end, share)| (end.to_string(), *share)).collect(),
    };
    let failover = match shares.iter().max_by(|a, b| a.1.total_cmp(b.1)) {
        Some((uplink, share)) if uplinks.len() > 1 => {
            report(&format!("{uplink} is lost, and returns"))?;
            Some(failover(deployed, uplink, *share, settings.rate, &sending, interrupted)?)
        }
        _ => None,
    };
    if interrupted.load(Ordering::Relaxed) {
        return Err(FabricError::Interrupted.into());
    }
    Ok(Outcome::new(deployed, settings.vtepd, reach, leaves, balance, failover))
}

/// Waits until the kernels of all leaves know all other leaves and hosts.
fn wait(deployed: &Deployed, settings: &Settings, report: OnProgress) -> Result<Overlay, VerifyError> {
    let start = Instant::now();
    loop {
        let overlay = deployed.overlay()?;
        let (floods, addresses) = deployed.entries(&overlay)?;
        let leaves = leaves(deployed, &overlay)?;
        let without: Vec<&str> = leaves
            .iter()
            .filter(|leaf| settings.vtepd && !leaf.forwards)
            .map(|leaf| leaf.node.as_str())
            .collect();
        let missing = match without.as_slice() {
            [] => String::new(),
            nodes => format!(
                ", no vtepd that forwards yet on {} (none is expected with --kernel)",
                nodes.join(", ")
            ),
        };
        report(&format!(
            "flood entries {}/{}, remote MACs {}/{}{missing}",
            floods.found, floods.expected, addresses.found, addresses.expected
        ))?;
        let complete = floods.expected > 0 && floods.complete() && addresses.complete();
        let ready = without.is_empty();
        // What is missing is said at the end, with everything else.
        if (complete && ready && start.elapsed() >= POLL) || start.elapsed() >= settings.limit {
            return Ok(overlay);
        }
        deployed.announce(&overlay.hosts)?;
        std::thread::sleep(POLL);
    }
}

/// Every host asks every other of its VNI.
fn reach(deployed: &Deployed, overlay: &Overlay) -> Result<Vec<Reach>, VerifyError> {
    let mut found = Vec::new();
    for from in &overlay.hosts {
        for to in overlay.hosts.iter().filter(|to| to.vni == from.vni && to.end != from.end) {
            let address = to.address.to_string();
            let ping = ["ping", "-q", "-c", "3", "-i", "0.2", "-W", "1", &address];
            let output = deployed.namespace(&from.end.node)?.output(&ping)?;
            found.push(Reach {
                from: from.end.node.clone(),
                to: to.end.node.clone(),
                vni: from.vni,
                reached: output.status.success(),
            });
        }
    }
    Ok(found)
}

/// What the vtepd of each leaf says.
fn leaves(deployed: &Deployed, overlay: &Overlay) -> Result<Vec<Leaf>, VerifyError> {
    let names: BTreeSet<&str> = overlay.tunnels.iter().map(|tunnel| tunnel.node.as_str()).collect();
    names
        .into_iter()
        .map(|node| Ok(Leaf::of(node, daemon::metrics(&deployed.namespace(node)?).as_deref())))
        .collect()
}

/// The first host, and the last of its VNI that is at another leaf.
fn ends(overlay: &Overlay) -> Result<(&Host, &Host), VerifyError> {
    let from = overlay.hosts.first();
    from.and_then(|from| {
        let to = overlay.hosts.iter().rev().find(|to| to.vni == from.vni && to.vtep != from.vtep)?;
        Some((from, to))
    })
    .ok_or_else(|| VerifyError::Nothing("no two hosts of one VNI at different leaves were found".into()))
}

/// The leaf's links to nodes that are no hosts.
fn uplinks(deployed: &Deployed, overlay: &Overlay, leaf: &str) -> Vec<(Endpoint, Endpoint)> {
    let is_host = |end: &Endpoint| overlay.hosts.iter().any(|host| host.end == *end);
    let both = deployed.topology().links.iter().flat_map(|link| {
        let [a, b] = &link.ends;
        [(a.clone(), b.clone()), (b.clone(), a.clone())]
    });
    both.filter(|(near, far)| near.node == leaf && !is_host(far)).collect()
}

fn sent_frames(
    deployed: &Deployed,
    uplinks: &[(Endpoint, Endpoint)],
) -> Result<BTreeMap<Endpoint, u64>, VerifyError> {
    let mut frames = BTreeMap::new();
    for (near, _) in uplinks {
        let counters = counters::read(&deployed.namespace(&near.node)?)?;
        let sent = counters.get(&near.interface).map_or(0, |counters| counters.tx_packets);
        frames.insert(near.clone(), sent);
    }
    Ok(frames)
}

/// What each uplink carried of all that was sent in between, 0 to 1.
fn shares(before: &BTreeMap<Endpoint, u64>, after: &BTreeMap<Endpoint, u64>) -> BTreeMap<Endpoint, f64> {
    let sent = |end: &Endpoint| {
        let count = |frames: &BTreeMap<Endpoint, u64>| frames.get(end).copied().unwrap_or_default();
        count(after).saturating_sub(count(before)) as f64
    };
    let all = after.keys().map(sent).sum::<f64>().max(1.0);
    after.keys().map(|end| (end.clone(), sent(end) / all)).collect()
}

/// Takes the uplink's far end down under traffic, and brings it up again.
fn failover(
    deployed: &Deployed,
    uplink: &Endpoint,
    share: f64,
    rate: u32,
    sending: &impl Fn(Limit) -> Result<Stream, VerifyError>,
    interrupted: &AtomicBool,
) -> Result<Failover, VerifyError> {
    let far = deployed.topology().peer(uplink).cloned().unwrap_or_else(|| uplink.clone());
    let namespace = deployed.namespace(&far.node)?;
    let set = |state: &str| namespace.run(&["ip", "link", "set", &far.interface, state]);
    let on_affected = f64::from(rate) * share;
    let outage = |sent: Sent, arrived: &Report| Outage {
        frames: sent.frames,
        lost: arrived.lost(),
        reordered: arrived.reordered(),
        milliseconds: if on_affected > 0.0 { arrived.lost() as f64 / on_affected * 1e3 } else { 0.0 },
    };

    let start = Instant::now();
    let mut is_down = false;
    let lost = sending(Limit::Time(DOWN))?.run(interrupted, |_| {
        if !is_down && start.elapsed() >= DOWN / 3 {
            is_down = true;
            set("down")?;
        }
        Ok::<_, VerifyError>(())
    });
    // Whatever happened meanwhile, it does not stay down.
    let lost = lost.inspect_err(|_| drop(set("up")))?;

    let before = sent_frames(deployed, &[(uplink.clone(), far.clone())])?;
    let begin = before.values().sum::<u64>();
    let (start, stop) = (Instant::now(), AtomicBool::new(false));
    let (mut is_up, mut back, mut ended) = (false, None, None);
    let stream = sending(Limit::Time(RETURN))?;
    let returned = stream.run(&stop, |_| {
        if !is_up && start.elapsed() >= DOWN / 3 {
            is_up = true;
            set("up")?;
        }
        let now: u64 = sent_frames(deployed, &[(uplink.clone(), far.clone())])?.values().sum();
        let enough = (f64::from(rate) * USED) as u64;
        if is_up && back.is_none() && now.saturating_sub(begin) > enough.max(20) {
            back = Some(start.elapsed().saturating_sub(DOWN / 3));
            ended = Some(Instant::now());
        }
        // A while longer: returning must not cost anything either.
        let done = ended.is_some_and(|at| at.elapsed() >= DOWN / 3);
        stop.fetch_or(done || interrupted.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok::<_, VerifyError>(())
    });
    let returned = returned.inspect_err(|_| drop(set("up")))?;
    Ok(Failover {
        uplink: uplink.to_string(),
        share,
        lost: outage(lost.0, &lost.1),
        returned: outage(returned.0, &returned.1),
        returned_after_seconds: back.map(|time: Duration| time.as_secs_f64()),
    })
}
