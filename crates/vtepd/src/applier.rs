//! Applies the updates of the control task, and reports how that went.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use control::{Diff, Event, Journal, LeftToKernel, Update};
use sd_notify::NotifyState;
use tables::SteeringPlan;
use tokio::sync::mpsc;

use crate::daemon::{foreign, notify_service_manager};
use crate::handle::Handle;
use crate::takeover::TakeoverError;

/// Applies updates one after the other.
pub(crate) struct Applier {
    handle: Arc<Handle>,
    journal: Journal,
    metrics: SocketAddr,
    /// Ends the daemon with the error of an update that nothing was taken over by.
    refused: mpsc::Sender<TakeoverError>,
    /// Programs of other software that were warned of.
    known_foreign: BTreeSet<String>,
    /// What stays with the kernel, as of the last update that was applied without error.
    applied_left: Option<Arc<[LeftToKernel]>>,
    /// The numbers of VNIs that were logged last: taken over, and with the kernel.
    logged: Option<(usize, usize)>,
    /// Whether the kill switch was ever filled. The guard may have emptied it since.
    was_engaged: bool,
}

impl Applier {
    /// Nothing is applied yet.
    pub(crate) const fn new(
        handle: Arc<Handle>,
        journal: Journal,
        metrics: SocketAddr,
        refused: mpsc::Sender<TakeoverError>,
    ) -> Self {
        Self {
            handle,
            journal,
            metrics,
            refused,
            known_foreign: BTreeSet::new(),
            applied_left: None,
            logged: None,
            was_engaged: false,
        }
    }

    /// Applies what has changed, and logs it if more than tables changed.
    pub(crate) fn apply(&mut self, update: &Update, diff: &Diff) {
        let same = |left: &Arc<[LeftToKernel]>| Arc::ptr_eq(left, &update.left);
        if diff.steering.has_only_mac_locations() && self.applied_left.as_ref().is_some_and(same) {
            // Only tables changed. This happens up to a thousand times a second.
            if let Err(error) = self.handle.apply(update, &diff.steering) {
                tracing::error!("{error}; what is not steered stays with the kernel");
            }
            return;
        }
        warn_of_foreign(&mut self.known_foreign, &update.plan);
        let applied = self.handle.apply(update, &diff.steering);
        self.was_engaged |= self.handle.is_engaged();
        self.applied_left = applied.is_ok().then(|| Arc::clone(&update.left));
        let counts = (update.plan.vnis.len(), update.left.len());
        tell_systemd(applied.is_ok(), counts);
        match applied {
            Ok(()) => self.log(counts),
            Err(error) => self.report(error),
        }
    }

    fn log(&mut self, (taken, left): (usize, usize)) {
        if self.logged.replace((taken, left)) == Some((taken, left)) {
            return;
        }
        tracing::info!(taken, left, metrics = %self.metrics, "VNIs taken over, and VNIs that stay with the kernel");
        if (taken, left) == (0, 0) {
            tracing::warn!(
                "there is no vxlan netdev in this network namespace yet; if it is the wrong one, start vtepd in the \
                 leaf's: ip netns exec LEAF vtepd"
            );
        }
    }

    /// An error of a later update concerns single interfaces, which stay with the kernel. An error
    /// before the kill switch was ever filled concerns everything and ends the daemon.
    fn report(&self, error: TakeoverError) {
        let text = format!("{error}; what is not steered stays with the kernel");
        tracing::error!("{text}");
        self.journal.write(Event::Warning(text));
        if !self.was_engaged {
            let _ = self.refused.try_send(error);
        }
    }
}

/// Reports the status to systemd. vtepd is ready after the first update that was applied, even if
/// no VNI is taken over.
fn tell_systemd(applied: bool, (taken, left): (usize, usize)) {
    let status = format!("{taken} VNIs taken over, {left} with the kernel");
    let states = [NotifyState::Status(&status), NotifyState::Ready];
    notify_service_manager(if applied { &states } else { &states[..1] });
}

fn warn_of_foreign(known: &mut BTreeSet<String>, plan: &SteeringPlan) {
    for program in foreign(plan) {
        let text = program.to_string();
        if known.insert(text.clone()) {
            tracing::warn!("a BPF program of another tool: {text}");
        }
    }
}
