//! Numbered frames from host to host at a steady rate, and counts of what arrived.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use experiment::random::SEED;
use fabric::Namespace;
use fabric::netns::NetnsError;
use fabric::process::wait_until;
use traffic::roce::{
    Connection, Limit, Report, RoceError, Sent, Sink, Source, SourcePort, connections,
};

use super::fixture::TIMEOUT;

const INTERFACE: &str = "eth1";
const QUEUE_PAIRS: usize = 32;
const QUIET: Duration = Duration::from_secs(1);

/// A running stream.
pub(super) struct Stream {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    source: JoinHandle<Result<Result<Sent, RoceError>, NetnsError>>,
    sink: JoinHandle<(Sink, Sent)>,
    connections: Vec<Connection>,
}

impl Stream {
    /// Starts to send `rate` frames a second over 32 queue pairs, to the host that has `address` in
    /// `to`.
    pub(super) fn start(
        from: &Namespace,
        (to, address): (&Namespace, Ipv4Addr),
        rate: u32,
    ) -> Self {
        // The mark distinguishes streams to the same host.
        static MARK: AtomicU64 = AtomicU64::new(SEED);
        let mark = MARK.fetch_add(1, Ordering::Relaxed);
        let connections = connections(SEED, QUEUE_PAIRS);
        // The receiver sends nothing else, and its leaf's entry would age out.
        to.enter(|| fabric::arp::announce(INTERFACE)).unwrap().unwrap();
        let mut sink = to.enter(|| Sink::open(INTERFACE, mark)).unwrap().unwrap();
        let source = Source {
            interface: INTERFACE.to_owned(),
            destination: address,
            connections: connections.clone(),
            inner_port: SourcePort::PerQueuePair,
            payload: 1024,
            rate,
            mark,
            cpu: None,
        };
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let stopped = Arc::clone(&stop);
        let (tell, told) = std::sync::mpsc::channel();
        let source = from
            .thread(move || {
                let limit = Limit::Time(Duration::from_secs(3600));
                let sent = source.run(limit, &stopped, |_| {});
                if let Ok(sent) = &sent {
                    tell.send(*sent).unwrap();
                }
                sent
            })
            .unwrap();
        let counter = Arc::clone(&received);
        let sink = std::thread::spawn(move || {
            loop {
                sink.receive().unwrap();
                counter.store(sink.received(), Ordering::Relaxed);
                match told.try_recv() {
                    Ok(sent) => {
                        sink.drain(&sent, QUIET).unwrap();
                        return (sink, sent);
                    }
                    Err(std::sync::mpsc::TryRecvError::Empty) => {}
                    Err(error) => panic!("the source ended early: {error}"),
                }
            }
        });
        let stream = Self { stop, received, source, sink, connections };
        stream.goes_on(1);
        stream
    }

    /// Number of frames that have arrived.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Waits until `frames` more frames have arrived.
    pub(super) fn goes_on(&self, frames: u64) {
        let wanted = self.received() + frames;
        let came = wait_until(TIMEOUT, || self.received() >= wanted || self.source.is_finished());
        assert!(
            came && !self.source.is_finished(),
            "the stream stands still at {} of {wanted}",
            self.received()
        );
    }

    /// Ends the stream. Returns the number of frames sent, and counts of what arrived.
    pub(super) fn finish(self) -> (u64, Report) {
        self.stop.store(true, Ordering::Relaxed);
        self.source.join().unwrap().unwrap().unwrap();
        let (sink, sent) = self.sink.join().unwrap();
        let report = sink.report_of(&sent, &self.connections);
        assert_eq!(report.corrupted(), 0, "damaged frames");
        assert_eq!(report.duplicated(), 0, "frames that arrived twice");
        (sent.frames, report)
    }

    /// Ends the stream and checks that no frame was lost.
    pub(super) fn finish_whole(self, story: &str) {
        let (sent, report) = self.finish();
        println!(
            "{story}: {sent} frames sent, {} lost, {} reordered",
            report.lost(),
            report.reordered()
        );
        assert_eq!(report.lost(), 0, "frames lost of {sent}");
    }
}
