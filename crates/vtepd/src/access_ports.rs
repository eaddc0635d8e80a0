//! Access ports whose interfaces go and come: a port without its interface forwards nothing, and
//! one of its name that comes later is the port again.

use std::sync::Arc;
use std::time::Duration;

use control::{Event, Journal};
use netlink::{LinkMonitor, Requests};
use tokio::time::sleep;

use crate::handle::Handle;
use crate::standalone::Standalone;

/// How often interfaces are looked for where the kernel does not tell.
const INTERVAL: Duration = Duration::from_secs(1);

/// What is known of one port.
struct Known {
    /// The interface that it has been opened on.
    ifindex: Option<u32>,
    /// The interface that could not be opened: it is not tried again before something changes
    /// there.
    refused: Option<u32>,
}

/// Watches for as long as it is polled. Without access ports there is nothing to do.
pub async fn watch(shown: Arc<Handle>, standalone: Standalone, journal: Journal) {
    if standalone.is_empty() {
        return std::future::pending().await;
    }
    let mut monitor = LinkMonitor::open()
        .inspect_err(|error| tracing::warn!("access ports are looked at once a second: {error}"))
        .ok();
    let names: Vec<String> = standalone.shown().into_iter().map(|port| port.name).collect();
    let known = |name: &String| Known { ifindex: find(name).unwrap_or(Some(0)), refused: None };
    let mut ports: Vec<Known> = names.iter().map(known).collect();
    // One that has gone since it was opened.
    ports.iter_mut().filter(|port| port.ifindex.is_none()).for_each(|port| port.ifindex = Some(0));
    loop {
        for ((name, known), number) in names.iter().zip(&mut ports).zip(0u16..) {
            look(&shown, &standalone, &journal, (number, name), known);
        }
        let changed = match &mut monitor {
            Some(monitor) => monitor.changed().await.map(drop),
            None => {
                sleep(INTERVAL).await;
                Ok(())
            }
        };
        if let Err(error) = changed {
            tracing::warn!("access ports are looked at once a second: {error}");
            monitor = None;
        }
    }
}

/// The interface of this name; an error where the kernel does not say.
fn find(name: &str) -> Result<Option<u32>, netlink::Error> {
    Ok(Requests::open()?.link(name)?.map(|link| link.ifindex))
}

/// Looks whether a port's interface has gone or come.
fn look(
    shown: &Handle,
    standalone: &Standalone,
    journal: &Journal,
    (number, name): (u16, &str),
    known: &mut Known,
) {
    let Ok(now) = find(name) else { return };
    if now.is_none() {
        known.refused = None;
    }
    if now == known.ifindex || now.is_some() && now == known.refused {
        return;
    }
    let tell = |text: String| {
        tracing::warn!("{text}");
        journal.write(Event::Warning(text));
    };
    if known.ifindex.take().is_some() {
        shown.set_port_gone(number, true);
        if now.is_none() {
            tell(format!(
                "the access port {name} is gone: its interface was deleted, renamed or moved"
            ));
        }
    }
    if now.is_none() {
        return;
    }
    match standalone.reopen(number).map_err(|error| error.to_string()).and_then(|port| {
        shown.replace_port(number, port).map_err(|error| format!("the access port {name}: {error}"))
    }) {
        Ok(()) => {
            (known.ifindex, known.refused) = (now, None);
            shown.set_port_gone(number, false);
            tell(format!("the access port {name} is back: there is an interface of its name"));
        }
        Err(problem) => {
            known.refused = now;
            tell(format!("{problem}; the port forwards nothing"));
        }
    }
}
