//! Watches packet filters and programs of other software that see hosts' frames or VXLAN packets,
//! and that come and go while vtepd runs.
//!
//! The kernel notifies about nftables rules and traffic control filters. Those take the bypass away
//! immediately. It does not notify about legacy iptables, `bridge-nf-call-iptables` and tcx
//! programs: vtepd checks those once a second.
//!
//! Others may delete vtepd's own clsact filters, most often with their qdisc. vtepd attaches them
//! again, but not immediately: scripts delete a qdisc in order to add one, which fails if there is
//! one already.

use std::collections::{BTreeMap, BTreeSet};
use std::future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{Filters, Request};
use netlink::{FilterChanges, FilterMonitor};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use crate::handle::Handle;
use crate::packet_rules::PacketRules;

/// How often state is checked that the kernel does not notify about.
const INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between two reactions to notifications.
const PACE: Duration = Duration::from_millis(2);
/// How long after a change it is looked whether vtepd's own filters are still there.
const OWN_AFTER: Duration = Duration::from_millis(100);

/// Watches filters and never returns. `rules` are the packet filters that are known already.
pub(crate) async fn watch(
    handle: Arc<Handle>,
    requests: mpsc::Sender<Request>,
    mut rules: PacketRules,
) {
    let mut monitor = FilterMonitor::open()
        .inspect_err(|error| {
            tracing::warn!("filters of others are looked for once a second only: {error}")
        })
        .ok();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = None;
    // Rules may have changed before the monitor was opened.
    let mut read_all = true;
    let mut touched = Touched::default();
    loop {
        let changes = tokio::select! {
            changes = changed(&mut monitor) => Some(changes),
            _ = ticks.tick() => None,
            interfaces = touched.next() => {
                if let Err(error) = handle.attach_again(&interfaces).await {
                    tracing::error!("{error}; the kernel forwards, and vtepd tries again");
                    touched.add(interfaces, INTERVAL);
                }
                continue;
            }
        };
        let said = changes.as_ref().is_some_and(|changes| changes.rules);
        let start = Instant::now();
        if said || changes.is_none() {
            // The kernel answers under a lock that others may hold for long. An error is possible
            // only when the runtime shuts down.
            let Ok(filters) = spawn_blocking(Filters::read).await else { continue };
            if known.replace(filters) != Some(filters) {
                // An error means that the control task has ended, so the daemon ends as well.
                let _ = requests.send(Request::Filters(filters)).await;
            }
        }
        if said || changes.is_none() {
            let nftables = said
                || read_all
                || rules.is_unread()
                || !monitor.as_ref().is_some_and(FilterMonitor::hears_rules);
            let before = rules.clone();
            let Ok(now) = spawn_blocking(move || before.read_again(nftables)).await else {
                continue;
            };
            read_all = false;
            if now != rules {
                let _ = requests.send(Request::PacketFilters(now.filters())).await;
                rules = now;
            }
        }
        // The pause is as long as reading took, so reading uses at most half of the time.
        let pace = start.elapsed().clamp(PACE, INTERVAL);
        let Some(FilterChanges { interfaces, anywhere, .. }) = changes else {
            review(&handle, None).await;
            continue;
        };
        let anywhere = anywhere.then(|| attached(&handle));
        // Interfaces are handled one by one, so that the first does not wait for the last.
        for interface in anywhere.unwrap_or(interfaces) {
            let interface = BTreeSet::from([interface]);
            if let Err(error) = handle.place_behind(&interface).await {
                tracing::error!(
                    "{error}; the kernel forwards there, unless the filters of others are gone"
                );
            }
            review(&handle, Some(interface.clone())).await;
            touched.add(interface, OWN_AFTER);
        }
        sleep(pace).await;
    }
}

/// Every interface at which vtepd has programs.
fn attached(handle: &Handle) -> BTreeSet<u32> {
    let status = handle.status.borrow();
    let ports = status.ports.iter().map(|port| port.ifindex);
    let uplinks = status.plan.uplinks.iter().map(|uplink| uplink.ifindex);
    ports.chain(uplinks).chain(status.plan.hooked()).collect()
}

/// Interfaces at which filters or qdiscs have changed, and when to look for vtepd's own.
#[derive(Debug, Default)]
struct Touched(BTreeMap<u32, Instant>);

impl Touched {
    fn add(&mut self, interfaces: BTreeSet<u32>, after: Duration) {
        let due = Instant::now() + after;
        self.0.extend(interfaces.into_iter().map(|interface| (interface, due)));
    }

    /// The interfaces that are due. Waits forever if there are none. Cancellation-safe.
    async fn next(&mut self) -> BTreeSet<u32> {
        let Some(due) = self.0.values().min().copied() else { return future::pending().await };
        sleep_until(due.into()).await;
        let all = std::mem::take(&mut self.0);
        let (now, later): (BTreeMap<_, _>, _) = all.into_iter().partition(|(_, at)| *at <= due);
        self.0 = later;
        now.into_keys().collect()
    }
}

/// The next changes. Waits forever if there is no monitor.
async fn changed(monitor: &mut Option<FilterMonitor>) -> FilterChanges {
    let Some(open) = monitor else { return future::pending().await };
    match open.changed().await {
        Ok(changes) => changes,
        Err(error) => {
            tracing::warn!("filters of others are looked for once a second only: {error}");
            *monitor = None;
            FilterChanges { rules: true, anywhere: true, ..FilterChanges::default() }
        }
    }
}

async fn review(handle: &Handle, interfaces: Option<BTreeSet<u32>>) {
    if let Err(error) = handle.review(interfaces).await {
        tracing::error!("{error}; its frames go by the bridge");
    }
}
