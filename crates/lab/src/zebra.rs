//! Whether vtepd hears zebra by FPM.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::v1;
use fabric::process::wait_until;
use fabric::progress::{Interrupted, OnProgress};
use fabric::{Fabric, Namespace, at_once};
use study::ask::ask;

use crate::doctor;

/// zebra connects again every three seconds (`dplane_fpm_nl.c`); on a busy machine later.
const LIMIT: Duration = Duration::from_secs(15);

/// Waits until every zebra that has the module for FPM has connected to the vtepd beside it. Returns
/// the leaves of those that have not after 15 s.
///
/// # Errors
/// [`Interrupted`].
pub fn await_all(fabric: &Fabric, report: OnProgress) -> Result<Vec<String>, Interrupted> {
    let topology = fabric.topology();
    let beside = topology.nodes.iter().filter(|(_, node)| node.vtepd.is_some());
    let leaves: Vec<String> = beside.map(|(name, _)| topology.owner(name).to_owned()).collect();
    let (most, heard) = (leaves.len(), AtomicUsize::new(0));
    let silent = at_once(&leaves, |leaf| {
        let Ok(namespace) = fabric.deployed().namespace(leaf) else { return Ok(None) };
        if !matches!(doctor::fpm(&namespace), Ok(Some(true))) {
            heard.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        let mut interrupted = Ok(());
        let hears = wait_until(LIMIT, || {
            let ready = heard.load(Ordering::Relaxed);
            interrupted = report(&format!("vtepd hears zebra on {ready} of {most} leaves"));
            interrupted.is_err() || hears(&namespace)
        });
        interrupted?;
        heard.fetch_add(usize::from(hears), Ordering::Relaxed);
        Ok((!hears).then(|| leaf.clone()))
    })?;
    Ok(silent.into_iter().flatten().collect())
}

/// Whether zebra has connected to the vtepd of a namespace, which may still hear its routes.
fn hears(namespace: &Namespace) -> bool {
    let status = ask(namespace, async |mut vtepd| {
        Ok(vtepd.get_status(v1::GetStatusRequest {}).await?.into_inner())
    });
    status.is_ok_and(|status| is_heard(&status.sources))
}

fn is_heard(sources: &[v1::Source]) -> bool {
    let fpm = sources.iter().find(|source| source.name == "fpm");
    fpm.is_none_or(|fpm| fpm.state != "disconnected")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_disconnected_is_not_heard() {
        let source = |name: &str, state: &str| v1::Source {
            name: name.to_owned(),
            state: state.to_owned(),
            ..v1::Source::default()
        };
        let kernel = source("kernel", "live");
        assert!(!is_heard(&[kernel.clone(), source("fpm", "disconnected")]));
        for state in ["off", "syncing", "live", "stale"] {
            assert!(is_heard(&[kernel.clone(), source("fpm", state)]), "{state}");
        }
        assert!(is_heard(&[kernel]));
    }
}
