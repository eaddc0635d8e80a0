//! Watches the interfaces of access ports. A port whose interface is gone forwards nothing. If an
//! interface of the same name appears later, the port is opened again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use configuration::Standalone;
use control::{Event, Journal};
use netlink::Requests;

use crate::handle::Handle;
use crate::link_watch::LinkWatch;

/// How often interfaces are checked if the kernel's notifications cannot be used, and how often a port
/// is opened again that could not be: `ip tuntap add` holds a new TAP for a moment.
const INTERVAL: Duration = Duration::from_secs(1);

/// The state of one port.
struct Known {
    /// Index of the interface on which the port is open.
    ifindex: Option<u32>,
    /// Index of an interface that could not be opened, and when that was tried last.
    refused: Option<(u32, Instant)>,
}

/// Watches the interfaces and never returns.
pub(crate) async fn watch(handle: Arc<Handle>, standalone: Standalone, journal: Journal) {
    if standalone.is_empty() {
        return std::future::pending().await;
    }
    let mut links = LinkWatch::new("access ports", INTERVAL);
    let names: Vec<String> =
        standalone.port_summaries().into_iter().map(|port| port.name).collect();
    let known = |name: &String| Known { ifindex: find(name).unwrap_or(Some(0)), refused: None };
    let mut ports: Vec<Known> = names.iter().map(known).collect();
    // The interface has disappeared since the port was opened: 0 equals no interface index.
    ports.iter_mut().filter(|port| port.ifindex.is_none()).for_each(|port| port.ifindex = Some(0));
    loop {
        for ((name, known), number) in names.iter().zip(&mut ports).zip(0u16..) {
            look(&handle, &standalone, &journal, (number, name), known);
        }
        match ports.iter().any(|port| port.refused.is_some()) {
            // Whether it was that or a change does not matter.
            true => drop(tokio::time::timeout(2 * INTERVAL, links.changed()).await),
            false => drop(links.changed().await),
        }
    }
}

/// The interface index of this name; an error if the kernel does not answer.
fn find(name: &str) -> Result<Option<u32>, netlink::Error> {
    Ok(Requests::open()?.link(name)?.map(|link| link.ifindex))
}

/// Checks whether a port's interface is gone or has appeared, and opens the port in the latter
/// case.
fn look(
    handle: &Handle,
    standalone: &Standalone,
    journal: &Journal,
    (number, name): (u16, &str),
    known: &mut Known,
) {
    let Ok(now) = find(name) else { return };
    if now.is_none() {
        known.refused = None;
    }
    let is_refused = known.refused.filter(|(ifindex, _)| Some(*ifindex) == now);
    let was_just_tried = is_refused.is_some_and(|(_, tried)| tried.elapsed() < INTERVAL);
    if now == known.ifindex || was_just_tried {
        return;
    }
    let warn = |text: String| {
        tracing::warn!("{text}");
        journal.write(Event::Warning(text));
    };
    if known.ifindex.take().is_some() {
        handle.set_port_gone(number, true);
        if now.is_none() {
            warn(format!(
                "the access port {name} is gone: its interface was deleted, renamed or moved"
            ));
        }
    }
    let Some(ifindex) = now else { return };
    match standalone.reopen(number).map_err(|error| error.to_string()).and_then(|port| {
        handle
            .replace_port(number, port)
            .map_err(|error| format!("the access port {name}: {error}"))
    }) {
        Ok(()) => {
            (known.ifindex, known.refused) = (Some(ifindex), None);
            handle.set_port_gone(number, false);
            warn(format!("the access port {name} is back: there is an interface of its name"));
        }
        Err(problem) => {
            known.refused = Some((ifindex, Instant::now()));
            if is_refused.is_none() {
                warn(format!("{problem}; the port forwards nothing until it can be opened"));
            }
        }
    }
}
