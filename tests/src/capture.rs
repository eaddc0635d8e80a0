//! Captures of what an interface receives, tags included, with an AF_PACKET socket.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use ::fabric::Namespace;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pipeline::gso::Segmenter;
use pipeline::{Checksum, Frame, GsoKind};
use ports::{PacketSocket, Port as _, RingSize};

use crate::{Outer, wait_for};

/// Size of the capture's ring. A kernel without preemption runs no other thread on the CPU while it
/// clears the ring. If that takes too long, a worker seems to hang.
const ROOM: RingSize = RingSize { frames: 3584, ..RingSize::LITTLE };

/// A received frame with its outermost tag at its place in the frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// The bytes. Partial checksums are completed, except in TCP super-frames.
    pub bytes: Vec<u8>,
}

impl Captured {
    /// The frame, or the segments of a UDP super-frame.
    pub(crate) fn of(frame: &Frame<'_>) -> Vec<Self> {
        let mut cut = match frame.offload.gso {
            Some(gso) if gso.kind == GsoKind::Udp => {
                let dissection = wire::dissect(frame.data).expect("headers");
                let segmenter =
                    Segmenter::new(frame.data, &dissection, gso, frame.offload.checksum)
                        .expect("a super-frame that can be cut");
                (0..segmenter.count())
                    .map(|index| segmenter.frame(index).expect("a segment"))
                    .collect()
            }
            _ => vec![frame.data.to_vec()],
        };
        for bytes in &mut cut {
            if let (Checksum::Partial { start, offset }, None) =
                (frame.offload.checksum, frame.offload.gso)
            {
                wire::checksum::complete(bytes, start.into(), offset.into())
                    .expect("a partial checksum inside the frame");
            }
            if let Some(tag) = frame.vlan {
                let [a, b] = tag.tpid.to_be_bytes();
                let [c, d] = tag.tci.to_be_bytes();
                bytes.splice(12..12, [a, b, c, d]);
            }
        }
        cut.into_iter().map(|bytes| Self { bytes }).collect()
    }

    /// The outer headers, if the frame is VXLAN to this UDP port.
    #[must_use]
    pub fn outer(&self, port: u16) -> Option<Outer> {
        Outer::parse(&self.bytes, port)
    }
}

/// A running capture that collects what it sees in a `T`.
#[derive(Debug)]
pub struct Capture<T> {
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<T>>,
    thread: Option<JoinHandle<u64>>,
}

impl Capture<Vec<Captured>> {
    /// Keeps the frames that `wanted` accepts. No frame that arrives after the return is missed.
    #[must_use]
    pub fn start(
        namespace: &Namespace,
        interface: &str,
        wanted: impl Fn(&[u8]) -> bool + Send + 'static,
    ) -> Self {
        Self::fold(namespace, interface, Vec::new(), move |kept, frame| {
            if wanted(frame.data) {
                kept.extend(Captured::of(frame));
            }
        })
    }

    /// Keeps VXLAN frames to this UDP port.
    #[must_use]
    pub fn vxlan(namespace: &Namespace, interface: &str, port: u16) -> Self {
        Self::start(namespace, interface, move |frame| Outer::is_vxlan(frame, port))
    }

    /// Waits until at least `count` frames have arrived.
    pub fn wait(&self, count: usize) {
        let so_far = || self.seen.lock().unwrap().len();
        if !::fabric::process::wait_until(crate::TIMEOUT, || so_far() >= count) {
            panic!("only {} of {count} frames arrived", so_far());
        }
    }

    /// The number of frames so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

impl<T: Send + 'static> Capture<T> {
    /// Calls `add` with each frame.
    #[must_use]
    pub fn fold(
        namespace: &Namespace,
        interface: &str,
        start: T,
        mut add: impl FnMut(&mut T, &Frame<'_>) + Send + 'static,
    ) -> Self {
        let index = crate::lab::ifindex(namespace, interface);
        let mut socket =
            namespace.enter(|| PacketSocket::open(index, ROOM)).unwrap().expect("a packet socket");
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(start));
        let (ending, shared) = (Arc::clone(&stop), Arc::clone(&seen));
        let thread = std::thread::spawn(move || {
            loop {
                let last = ending.load(Ordering::Relaxed);
                let batch = socket.receive();
                if !batch.is_empty() {
                    let mut seen = shared.lock().unwrap();
                    batch.frames().for_each(|frame| {
                        assert!(
                            !frame.data.is_empty(),
                            "a frame that the packet socket cannot describe"
                        );
                        add(&mut seen, frame);
                    });
                } else if last {
                    return socket.overruns().expect("statistics");
                } else {
                    let _ = poll(
                        &mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)],
                        PollTimeout::from(5_u8),
                    );
                }
            }
        });
        Self { stop, seen, thread: Some(thread) }
    }

    /// Waits until `wanted` holds for what was captured.
    pub fn wait_until(&self, what: &str, wanted: impl Fn(&T) -> bool) {
        wait_for(what, || wanted(&self.seen.lock().unwrap()));
    }

    /// Calls `read` with what was captured so far.
    pub fn look<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        read(&self.seen.lock().unwrap())
    }

    /// Ends the capture and returns the result, which includes all frames that have arrived by now.
    #[must_use]
    pub fn stop(mut self) -> T
    where
        T: Default,
    {
        self.stop.store(true, Ordering::Relaxed);
        let overruns = self.thread.take().unwrap().join().expect("the capture goes well");
        assert_eq!(overruns, 0, "frames that the capture was too slow for");
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

impl<T> Drop for Capture<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
