//! Notifications about the interfaces of the leaf's namespace. If they cannot be received, the
//! caller checks its interfaces periodically, until they can.

use std::time::Duration;

use netlink::{LinkChanges, LinkMonitor};
use tokio::time::sleep;

/// Reports changes of interfaces.
#[derive(Debug)]
pub(crate) struct LinkWatch {
    /// `None` if it could not be opened or failed.
    monitor: Option<LinkMonitor>,
    /// Which interfaces are watched, for the log.
    subject: &'static str,
    /// How often every interface counts as changed while there is no monitor.
    interval: Duration,
}

impl LinkWatch {
    /// Starts to watch the calling thread's network namespace.
    pub(crate) fn new(subject: &'static str, interval: Duration) -> Self {
        let monitor = LinkMonitor::open();
        let mut watch = Self { monitor: None, subject, interval };
        match monitor {
            Ok(monitor) => watch.monitor = Some(monitor),
            Err(error) => watch.warn(&error),
        }
        watch
    }

    /// Waits for changes. Cancellation-safe.
    pub(crate) async fn changed(&mut self) -> LinkChanges {
        if let Some(monitor) = &mut self.monitor {
            match monitor.changed().await {
                Ok(changes) => return changes,
                Err(error) => self.warn(&error),
            }
            self.monitor = None;
        }
        sleep(self.interval).await;
        self.monitor = LinkMonitor::open().ok();
        if self.monitor.is_some() {
            tracing::info!("the kernel's notifications about {} are received again", self.subject);
        }
        // Changes before the monitor was opened are not known.
        LinkChanges { any: true, ..LinkChanges::default() }
    }

    fn warn(&self, error: &netlink::Error) {
        let Self { subject, interval, .. } = self;
        tracing::warn!("{subject} are checked every {} ms only: {error}", interval.as_millis());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_monitor_that_failed_is_opened_again() {
        let interval = Duration::from_millis(1);
        let mut watch = LinkWatch { monitor: None, subject: "the interfaces", interval };
        assert!(watch.changed().await.any);
        assert!(watch.monitor.is_some());
    }
}
