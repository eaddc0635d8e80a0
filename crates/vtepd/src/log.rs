//! The log: lines go through a bounded queue to a thread that writes them to standard error.
//!
//! Writing to a terminal or pipe blocks while its reader does not read. Only the log's own thread
//! may block there. Lines that find the queue full are dropped and counted. Once writing works
//! again, the log reports how many were dropped.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

/// Capacity of the queue, in lines.
const QUEUE: usize = 4096;
/// How long the end of the process waits for the remaining lines.
const LAST_LINES: Duration = Duration::from_millis(500);
/// How often the end of the process checks whether the queue has room again.
const FULL: Duration = Duration::from_millis(5);

/// Lines lost so far.
static LOST: AtomicU64 = AtomicU64::new(0);

/// How many log lines were lost because they were not read in time.
pub(crate) fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// An entry of the queue.
#[derive(Debug)]
enum Entry {
    /// One or more lines.
    Text(Vec<u8>),
    /// Notifies this channel when everything before it is written.
    Flush(Sender<()>),
}

/// The sending end of the queue. Writing never blocks.
#[derive(Debug, Clone)]
pub(crate) struct Log(SyncSender<Entry>);

impl Log {
    /// Starts the thread that writes to standard error.
    ///
    /// # Errors
    /// When the thread cannot be created.
    pub(crate) fn start() -> io::Result<Self> {
        let (entries, queue) = sync_channel(QUEUE);
        std::thread::Builder::new().name("log".to_owned()).spawn(move || {
            // The thread needs no capabilities, and is started before main drops them.
            let _ = bpf::confine::capabilities();
            write_all(&queue);
        })?;
        Ok(Self(entries))
    }

    /// Queues a text, or counts it as lost.
    fn put(&self, text: &[u8]) {
        if self.0.try_send(Entry::Text(text.to_vec())).is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until everything is written, but at most half a second: the reader may never read.
    pub(crate) fn finish(&self) {
        let until = Instant::now() + LAST_LINES;
        let (done, written) = channel();
        while self.0.try_send(Entry::Flush(done.clone())).is_err() {
            if Instant::now() >= until {
                return;
            }
            std::thread::sleep(FULL);
        }
        // Both outcomes end the wait.
        let _ = written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.put(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// The thread. Write errors are ignored: vtepd does not end because the reader of its log has gone.
fn write_all(queue: &Receiver<Entry>) {
    let mut reported = 0;
    while let Ok(entry) = queue.recv() {
        match entry {
            Entry::Text(text) => {
                let _ = io::stderr().write_all(&text);
            }
            Entry::Flush(done) => drop(done.send(())),
        }
        let lost = lost();
        if lost > reported {
            let lines = lost - reported;
            let text =
                format!("vtepd: {lines} log line(s) were lost: the log was not read in time\n");
            let _ = io::stderr().write_all(text.as_bytes());
            reported = lost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_find_the_queue_full_are_counted() {
        // Nobody reads.
        let (entries, _queue) = sync_channel(QUEUE);
        let mut log = Log(entries);
        for _ in 0..QUEUE {
            assert_eq!(log.write(b"line\n").unwrap(), 5);
        }
        assert_eq!(lost(), 0);
        for _ in 0..3 {
            assert_eq!(log.write(b"line\n").unwrap(), 5);
        }
        assert_eq!(lost(), 3);
    }
}
