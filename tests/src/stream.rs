//! Numbered frames at a steady rate from one host to another, and counts of what arrived.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use ::fabric::netns::NetnsError;
use traffic::roce::{self, Connection, Limit, Report, RoceError, Sent, Sink, Source, SourcePort};

use crate::lab::{ETH, Host};

/// Parameters of a stream.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    /// Frames per second.
    pub frames: u32,
    /// Queue pairs of the frames, used in turn.
    pub queue_pairs: usize,
    /// Payload bytes: a multiple of 4, at least 16.
    pub payload: usize,
}

/// A running stream.
#[derive(Debug)]
pub struct Stream {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    sender: JoinHandle<Result<Result<Sent, RoceError>, NetnsError>>,
    reports: mpsc::Sender<mpsc::Sender<Report>>,
    sink: JoinHandle<Sink>,
    connections: Vec<Connection>,
}

impl Stream {
    /// Starts to send. Every stream of a test needs its own mark.
    #[must_use]
    pub fn start(from: &Host, to: &Host, rate: Rate, mark: u64) -> Self {
        let connections = roce::connections(mark, rate.queue_pairs);
        Self::of((from, to), rate, mark, (connections, SourcePort::Constant(0xc000)))
    }

    /// Starts to send with these connections, whatever the number in `rate`, and inner source ports.
    #[must_use]
    pub fn of(
        (from, to): (&Host, &Host),
        rate: Rate,
        mark: u64,
        (connections, inner_port): (Vec<Connection>, SourcePort),
    ) -> Self {
        let source = Source {
            interface: ETH.to_owned(),
            destination: to.ip(),
            connections: connections.clone(),
            inner_port,
            payload: rate.payload,
            rate: rate.frames,
            mark,
            cpu: Some(0),
        };
        let mut sink = to.ns.enter(|| Sink::open(ETH, mark)).unwrap().expect("a sink");
        let (reports, asked) = mpsc::channel::<mpsc::Sender<Report>>();
        let received = Arc::new(AtomicU64::new(0));
        let arrived = Arc::clone(&received);
        let sink = std::thread::spawn(move || {
            loop {
                match asked.try_recv() {
                    Ok(answer) => drop(answer.send(sink.report())),
                    Err(mpsc::TryRecvError::Disconnected) => return sink,
                    Err(mpsc::TryRecvError::Empty) => {
                        let _frames = sink.receive().expect("the sink receives");
                        arrived.store(sink.received(), Ordering::Relaxed);
                    }
                }
            }
        });
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ending, progress) = (Arc::clone(&stop), Arc::clone(&sent));
        let forever = Limit::Time(Duration::from_secs(3600));
        let count = move |frames| {
            progress.fetch_add(frames, Ordering::Relaxed);
        };
        let sender = from.ns.thread(move || source.run(forever, &ending, count)).unwrap();
        Self { stop, sent, received, sender, reports, sink, connections }
    }

    /// Number of frames sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Number of undamaged frames that have arrived so far, without duplicates.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// What has arrived so far. It looks at every frame: to wait, ask [`Self::received`].
    #[must_use]
    pub fn report(&self) -> Report {
        let (answer, report) = mpsc::channel();
        self.reports.send(answer).unwrap();
        report.recv().expect("the sink lives")
    }

    /// Waits until `frames` more frames have arrived.
    pub fn pass(&self, frames: u64) {
        let until = self.received() + frames;
        crate::wait_for("the stream to go on", || self.received() >= until);
    }

    /// Like [`Self::finish`]. Checks that every frame arrived once and unchanged.
    pub fn finish_whole(self) {
        let (sent, report) = self.finish();
        let fate = (report.lost(), report.duplicated(), report.corrupted());
        assert_eq!(fate, (0, 0, 0), "lost, doubled and damaged of {}", sent.frames);
    }

    /// Stops sending, waits for frames in flight, and returns counts of what was sent and what
    /// arrived.
    #[must_use]
    pub fn finish(self) -> (Sent, Report) {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().unwrap().unwrap().expect("the source sends");
        drop(self.reports);
        let mut sink = self.sink.join().unwrap();
        sink.drain(&sent, Duration::from_millis(500)).expect("the sink receives");
        // Duplicates may follow the last frame.
        let quiet = std::time::Instant::now() + crate::QUIET;
        while std::time::Instant::now() < quiet {
            sink.receive().expect("the sink receives");
        }
        let report = sink.report_of(&sent, &self.connections);
        (sent, report)
    }
}
