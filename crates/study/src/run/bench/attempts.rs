//! A run, repeated until nothing under test changes meanwhile.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use experiment::Run;
use experiment::file::Dataplane;
use experiment::plan::Key;
use experiment::record::Discarded;
use nix::sys::signal::Signal;

use super::subjects::{Change, Subjects};
use super::{Attempt, Bench, CONVERGENCE_LIMIT, RunError, failure, run_before_others};
use crate::daemon::DaemonError;
use fabric::progress::OnProgress;

/// The maximum number of attempts of a run.
const ATTEMPTS: usize = 5;
/// Whatever is written here ends the validity of all cached routes of a namespace
/// (`ipv4_sysctl_rtcache_flush()` in net/ipv4/route.c).
const FLUSH: &str = "/proc/sys/net/ipv4/route/flush";

impl Bench<'_> {
    /// Measures a run with a dataplane. It is repeated if it does not count.
    pub(in crate::run) fn measure(
        &mut self,
        dataplane: &Dataplane,
        key: &Key,
        report: OnProgress,
        interrupted: &AtomicBool,
    ) -> Result<Run, RunError> {
        let mut discarded: Vec<Discarded> = Vec::new();
        // Something may have ended after the run before.
        let changes = self.changes()?;
        if !changes.is_empty() {
            discarded.push(self.repair(&changes, report)?);
        }
        while discarded.len() < ATTEMPTS {
            match self.switch(dataplane, key.seed, report).and_then(|()| self.vary(key, report)) {
                // It has ended while it was configured. It is started again.
                Err(error @ RunError::Daemon(DaemonError::Ended { .. })) => {
                    (self.current, self.subjects) = (None, None);
                    discarded.push(Discarded { reason: error.to_string(), failed: true });
                    continue;
                }
                prepared => prepared?,
            }
            let result = self.attempt(key, report, interrupted);
            if interrupted.load(Ordering::Relaxed) {
                return Err(fabric::progress::Interrupted.into());
            }
            let changes = self.changes()?;
            let attempt = match result {
                _ if !changes.is_empty() => self.repair(&changes, report)?,
                Ok(Ok(run)) => return Ok(Run { discarded, ..run }),
                Ok(Err(attempt)) => attempt,
                // On a busy machine, BFD may take sessions down again and again.
                Err(error @ RunError::NoRecovery { .. }) if discarded.len() + 1 < ATTEMPTS => {
                    Discarded { reason: error.to_string(), failed: false }
                }
                Err(error) => return Err(error),
            };
            report(&format!("{}: a run of {} is repeated", attempt.reason, key.dataplane))?;
            discarded.push(attempt);
        }
        Err(RunError::Unstable(discarded.into_iter().map(|attempt| attempt.reason).collect()))
    }

    fn attempt(
        &mut self,
        key: &Key,
        report: OnProgress,
        interrupted: &AtomicBool,
    ) -> Result<Attempt, RunError> {
        if self.subjects.is_none() {
            let subjects = Subjects::of(self)?;
            if let Some(missing) = subjects.missing().first() {
                self.current = None;
                return Ok(Err(Discarded { reason: missing.to_string(), failed: true }));
            }
            self.subjects = Some(subjects);
        }
        if !self.has_vtepd() {
            self.forget_routes()?;
        }
        match self.experiment.failures(key.point.index()).is_empty() {
            true => self.undisturbed(key, report, interrupted),
            false => failure::attempt(self, key, report, interrupted),
        }
    }

    /// Makes kernel VXLAN look up the routes to IPv4 VTEPs anew. For each CPU it keeps the next hop
    /// that the first packet got (`dst_cache`), until routes change. Otherwise, all runs would share it.
    fn forget_routes(&self) -> Result<(), RunError> {
        for leaf in &self.leaves {
            self.deployed
                .namespace(leaf)?
                .enter(|| std::fs::write(FLUSH, "1"))?
                .map_err(|source| RunError::File { path: FLUSH.into(), source })?;
        }
        Ok(())
    }

    /// What has changed under test since the switch to the dataplane.
    fn changes(&self) -> Result<Vec<Change>, RunError> {
        let Some(before) = &self.subjects else { return Ok(Vec::new()) };
        Ok(before.changes(&before.again(self)?))
    }

    /// Makes the fabric what it was, and says what had happened.
    ///
    /// # Errors
    /// [`RunError::Changed`] if a circuit has ended.
    fn repair(&mut self, changes: &[Change], report: OnProgress) -> Result<Discarded, RunError> {
        let texts: Vec<String> = changes.iter().map(ToString::to_string).collect();
        let reason = texts.join(", ");
        if self.fabric.has_containers() && !changes.iter().all(Change::is_vtepd)
            || changes.iter().any(Change::is_circuit)
        {
            return Err(RunError::Changed(reason));
        }
        let others = changes.iter().filter(|change| !change.is_vtepd());
        for name in others.map(|change| &change.node).collect::<BTreeSet<_>>() {
            let node = self.fabric.node(name)?;
            node.end_frr(Signal::SIGTERM)?;
            node.start_frr()?;
            // Its configuration is that of its file.
            self.variant = None;
        }
        if self.experiment.has_failures() {
            run_before_others(&self.fabric)?;
        }
        self.fabric.converge(CONVERGENCE_LIMIT, report)?;
        // The dataplane is set again on all leaves, where it runs or not.
        (self.current, self.subjects) = (None, None);
        Ok(Discarded { reason, failed: true })
    }
}
