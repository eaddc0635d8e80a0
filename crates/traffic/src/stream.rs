//! A stream of RoCE frames between two hosts of a fabric.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::roce::{
    Connection, Limit, Report, RoceError, Sent, Sink, Source, SourcePort, connections,
};
use crate::timeline::{Bins, Timeline};
use experiment::random::SEED;
use fabric::arp::announce;
use fabric::deployed::{Deployed, Host};
use fabric::netns::{Namespace, NetnsError};

/// The receiver stops after this time without a frame.
const QUIET: Duration = Duration::from_secs(1);
/// The payload of a frame in bytes: a path MTU of 1024.
pub const PAYLOAD: usize = 1024;
/// A frame in bytes, with headers and ICRC, without the Ethernet FCS.
pub const FRAME: u64 = 58 + PAYLOAD as u64;
/// The UDP payload of a frame between leaves in bytes: the VXLAN header and the inner frame.
pub const CARRIED: u64 = 8 + FRAME;
/// One inner UDP source port for all queue pairs, as older NICs and many traffic generators use.
pub const INNER_PORT: u16 = 49152;

/// A host of the stream: its namespace and its interface.
#[derive(Debug)]
struct End {
    namespace: Namespace,
    interface: String,
}

/// How far a stream is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Frames that were sent.
    pub sent: u64,
    /// Frames that arrived.
    pub received: u64,
}

/// A stream that has ended.
#[derive(Debug)]
pub struct Streamed {
    /// What was sent.
    pub sent: Sent,
    /// How it arrived. The queue pairs have the order of the turns in which they send.
    pub arrived: Report,
    /// Both over time.
    pub timeline: Timeline,
}

/// Frames of many queue pairs from one host to another, by default with the same inner source port.
#[derive(Debug)]
pub struct Stream {
    from: End,
    to: End,
    address: Ipv4Addr,
    connections: Vec<Connection>,
    inner_port: SourcePort,
    /// Frames per second.
    rate: u32,
    limit: Limit,
}

impl Stream {
    /// From one host to another.
    pub fn between(
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
        Ok(Self {
            from: end(from)?,
            to: end(to)?,
            address: to.address,
            connections: connections(SEED, queue_pairs),
            inner_port: SourcePort::Constant(INNER_PORT),
            rate,
            limit,
        })
    }

    /// The same stream with other queue pairs and this choice of inner source ports.
    pub fn with(mut self, seed: u64, inner_port: SourcePort) -> Self {
        self.connections = connections(seed, self.connections.len());
        self.inner_port = inner_port;
        self
    }

    /// Sends until the limit is reached or `stop` is set, and receives. `meanwhile` is called at
    /// least every 20 ms.
    pub fn run<E: From<RoceError> + From<NetnsError>>(
        &self,
        stop: &AtomicBool,
        mut meanwhile: impl FnMut(Progress) -> Result<(), E>,
    ) -> Result<Streamed, E> {
        // The receiver sends nothing else, so its leaf's bridge entry would age out.
        self.to.namespace.enter(|| announce(&self.to.interface))?.map_err(RoceError::from)?;
        let source = Source {
            interface: self.from.interface.clone(),
            destination: self.address,
            connections: self.connections.clone(),
            inner_port: self.inner_port,
            payload: PAYLOAD,
            rate: self.rate,
            mark: SEED,
            cpu: Some(0),
        };
        let mut sink = self.to.namespace.enter(|| Sink::open(&self.to.interface, SEED))??;
        let (progress, origin) = (AtomicU64::new(0), sink.opened());
        let mut sending = Bins::since(origin);
        // Also set when `meanwhile` fails, so that the sender stops.
        let ended = AtomicBool::new(false);
        let sent = std::thread::scope(|scope| {
            let count = |frames| {
                progress.fetch_add(frames, Ordering::Relaxed);
                sending.add(Instant::now(), frames);
            };
            let sender =
                scope.spawn(|| self.from.namespace.enter(|| source.run(self.limit, &ended, count)));
            let mut result = Ok(());
            while !sender.is_finished() {
                result = result.and_then(|()| {
                    sink.receive()?;
                    let sent = progress.load(Ordering::Relaxed);
                    meanwhile(Progress { sent, received: sink.received() })
                });
                ended.fetch_or(result.is_err() || stop.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            let sent = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))??;
            result.map(|()| sent)
        })?;
        sink.drain(&sent, QUIET)?;
        let arrived = sink.report_of(&sent, &source.connections);
        let timeline = Timeline::new(origin, sending, sink.into_arrivals());
        Ok(Streamed { sent, arrived, timeline })
    }
}
