//! Congestion control of a queue pair: a rate, a window, or both.

/// What an acknowledgement tells a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledged {
    /// Bytes of payload that it newly covers.
    pub bytes: u32,
    /// Nanoseconds since the packet that caused it was sent. `None` if that packet was sent more
    /// than once.
    pub round_trip: Option<u64>,
    /// Whether that packet had the ECN mark "congestion experienced".
    pub marked: bool,
    /// Bytes of payload that are under way now.
    pub under_way: u64,
}

/// Congestion control of one queue pair. Times are nanoseconds from any origin.
pub trait Congestion: std::fmt::Debug + Send {
    /// The rate in bits per second, if one is below the line rate.
    fn rate(&self) -> Option<f64> {
        None
    }

    /// Bytes of payload that may be under way, if they are limited. One packet always may.
    fn window(&self) -> Option<u64> {
        None
    }

    /// A congestion notification packet has arrived.
    fn notified(&mut self, _now: u64) {}

    /// An acknowledgement has arrived.
    fn acknowledged(&mut self, _now: u64, _news: &Acknowledged) {}

    /// A packet with so many bytes of payload seems lost.
    fn lost(&mut self, _now: u64, _bytes: u32, _under_way: u64) {}

    /// A frame of so many bytes was sent.
    fn sent(&mut self, _bytes: u64) {}

    /// Lets the timers expire that are due.
    fn advance(&mut self, _now: u64) {}
}
