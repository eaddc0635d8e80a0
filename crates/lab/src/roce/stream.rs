//! A source and a sink at the two ends of a fabric, run together.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::{InnerPort, Limit, Report, RoceError, Sent, Sink, Source, announce, connections};
use crate::deployed::{Deployed, Host};
use crate::netns::{Namespace, NetnsError};
use crate::random::SEED;

/// How long nothing may come before no more is waited for.
const QUIET: Duration = Duration::from_secs(1);
/// Payload bytes of a frame: a path MTU of 1024.
pub(crate) const PAYLOAD: usize = 1024;
/// Bytes of UDP payload that one frame is between leaves: the VXLAN header, and the frame with its
/// headers and ICRC.
pub const CARRIED: u64 = 8 + 58 + PAYLOAD as u64;
/// One inner source port for all queue pairs: what older NICs and many traffic generators send.
const INNER_PORT: u16 = 49152;

/// A host that takes part: its namespace, and its interface there.
#[derive(Debug)]
struct End {
    namespace: Namespace,
    interface: String,
}

/// Frames of many queue pairs from one host to another, all with one inner source port.
#[derive(Debug)]
pub(crate) struct Stream {
    from: End,
    to: End,
    address: Ipv4Addr,
    queue_pairs: usize,
    /// Frames per second.
    rate: u32,
    limit: Limit,
}

impl Stream {
    /// From one host to another.
    pub(crate) fn between(
        deployed: &Deployed,
        from: &Host,
        to: &Host,
        queue_pairs: usize,
        rate: u32,
        limit: Limit,
    ) -> Result<Self, NetnsError> {
        let end = |host: &Host| {
            let namespace = deployed.namespace(&host.end.node)?;
            Ok::<_, NetnsError>(End { namespace, interface: host.end.interface.clone() })
        };
        Ok(Self { from: end(from)?, to: end(to)?, address: to.address, queue_pairs, rate, limit })
    }

    /// Sends to the limit, or until `stop` is set, and receives. `meanwhile` is called about every
    /// 20 ms with the frames sent.
    pub(crate) fn run<E: From<RoceError> + From<NetnsError>>(
        &self,
        stop: &AtomicBool,
        mut meanwhile: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(Sent, Report), E> {
        // The receiver does not speak otherwise, and its leaf would forget it.
        self.to.namespace.enter(|| announce(&self.to.interface))??;
        let source = Source {
            interface: self.from.interface.clone(),
            destination: self.address,
            connections: connections(SEED, self.queue_pairs),
            inner_port: InnerPort::Constant(INNER_PORT),
            payload: PAYLOAD,
            rate: self.rate,
            mark: SEED,
            cpu: Some(0),
        };
        let mut sink = self.to.namespace.enter(|| Sink::open(&self.to.interface, SEED))??;
        let progress = AtomicU64::new(0);
        // Set also when `meanwhile` fails, or the source would go on.
        let ended = AtomicBool::new(false);
        let sent = std::thread::scope(|scope| {
            let sending = scope
                .spawn(|| self.from.namespace.enter(|| source.run(self.limit, &ended, &progress)));
            let mut result = Ok(());
            while !sending.is_finished() {
                result = result.and_then(|()| {
                    sink.receive()?;
                    meanwhile(progress.load(Ordering::Relaxed))
                });
                ended.fetch_or(result.is_err() || stop.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            let sent =
                sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))??;
            result.map(|()| sent)
        })?;
        sink.drain(&sent, QUIET)?;
        Ok((sent, sink.report_of(&sent, &source.connections)))
    }
}
