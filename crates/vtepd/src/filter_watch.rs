//! Who else looks at hosts' frames and at VXLAN packets: packet filters and programs of others that
//! come and go while vtepd runs.
//!
//! The kernel tells of nftables' rules and of filters of traffic control, and they take the bypass
//! away at once. It does not tell of legacy tables, of `bridge-nf-call-iptables` and of programs on
//! tcx: those are looked for once a second.

use std::collections::BTreeSet;
use std::future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{Filters, NoBypass, PortDecision, Request};
use netlink::{FilterChanges, FilterMonitor};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::handle::Handle;
use crate::packet_rules::PacketRules;

/// How often is looked for what the kernel does not tell of.
const INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two looks for what it tells of.
const PACE: Duration = Duration::from_millis(2);

/// Watches for as long as it is polled. `rules` are the packet filters that are known already.
pub async fn watch(shown: Arc<Handle>, requests: mpsc::Sender<Request>, mut rules: PacketRules) {
    let mut monitor = FilterMonitor::open()
        .inspect_err(|error| {
            tracing::warn!("filters of others are looked for once a second only: {error}")
        })
        .ok();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut status, mut known) = (shown.status.clone(), None);
    // What came before the monitor was there.
    let mut read_all = true;
    loop {
        let changes = tokio::select! {
            changes = changed(&mut monitor) => Some(changes),
            _ = ticks.tick() => None,
        };
        // It is off for all ports or for none.
        let on = |port: &PortDecision| port.reason != Some(NoBypass::Off);
        let used = status.borrow_and_update().ports.first().is_some_and(on);
        let said = changes.as_ref().is_some_and(|changes| changes.rules);
        let start = Instant::now();
        if said || (used && changes.is_none()) {
            // The kernel answers under a lock that others may hold for long. It fails only where
            // the runtime ends.
            let Ok(filters) = spawn_blocking(Filters::read).await else { continue };
            if known.replace(filters) != Some(filters) {
                // If nobody takes it, all is about to end.
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
        // Reading takes at most half of the time.
        let pace = start.elapsed().clamp(PACE, INTERVAL);
        let Some(FilterChanges { interfaces, anywhere, .. }) = changes else {
            if used {
                review(&shown, None).await;
            }
            continue;
        };
        let anywhere = anywhere.then(|| {
            let status = shown.status.borrow();
            let ports = status.ports.iter().map(|port| port.ifindex);
            let uplinks = status.plan.uplinks.iter().map(|uplink| uplink.ifindex);
            ports.chain(uplinks).chain(status.plan.vnis.keys().copied()).collect()
        });
        // One by one, so that the first does not wait for the last.
        for interface in anywhere.unwrap_or(interfaces) {
            let interface = BTreeSet::from([interface]);
            if let Err(error) = shown.place_behind(&interface).await {
                tracing::error!("{error}; filters of others may not see what vtepd takes");
            }
            review(&shown, Some(interface)).await;
        }
        sleep(pace).await;
    }
}

/// The next changes; never, where nothing can be watched.
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

async fn review(shown: &Handle, interfaces: Option<BTreeSet<u32>>) {
    if let Err(error) = shown.review(interfaces).await {
        tracing::error!("{error}; its frames go by the bridge");
    }
}
