//! Path discovery between VTEPs, and placement of queue pairs on known paths. Without I/O: time,
//! packets and randomness are arguments. Times are durations since an arbitrary start.
//!
//! - [`message`]: probes and answers as bytes
//! - [`key`]: their authentication
//! - [`packet`]: the outer packet of a message
//! - [`limit`], [`replay`]: rate limits, and ids that were seen before
//! - [`prober`]: which paths to a remote VTEP are probed when, and what is known
//! - [`responder`]: answers the probes of others
//! - [`placer`]: the queue pairs and their paths
//! - [`cm`], [`pairing`]: which two queue pairs are the directions of a connection
//! - [`way`]: whether two opposite paths use the same links
//! - [`load`]: the load of links; [`routes`]: which path is next
//! - [`spraying`]: packets that are sprayed over all known paths
//! - [`trace`]: paths to a VTEP that answers no probes, by expired TTLs
//! - [`balance`]: maximum over mean, Jain's index, and the integer floor

pub mod balance;
pub mod cm;
pub mod key;
pub mod limit;
pub mod load;
pub mod message;
pub mod packet;
pub mod pairing;
pub mod placer;
pub mod prober;
pub mod replay;
pub mod responder;
pub mod routes;
pub mod spraying;
pub mod trace;
pub mod way;

pub use key::Key;
pub use message::{Answer, Message, MessageError, Probe, Report};
pub use placer::{Placement, Placer};
pub use prober::{Prober, Settings};
pub use responder::Responder;
pub use spray::Random;
pub use trace::Tracer;
pub use way::{Common, Way};

use std::time::Duration;

/// The first multiple of `period`, which is not 0, after `now`. What is due at multiples of the same
/// period wakes the process once.
#[must_use]
pub const fn next_multiple(now: Duration, period: Duration) -> Duration {
    let rest = now.as_nanos() % period.as_nanos();
    // The rest is below the period, and that is far below 500 years.
    now.saturating_add(period).saturating_sub(Duration::from_nanos(rest as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiples_are_after_now() {
        let ms = Duration::from_millis;
        let after = [0, 1, 49, 50, 99].map(|now| next_multiple(ms(now), ms(50)));
        assert_eq!(after, [50, 50, 50, 100, 100].map(ms));
        let late = Duration::from_secs(1 << 40) + Duration::from_nanos(1);
        assert_eq!(next_multiple(late, ms(10)), Duration::from_secs(1 << 40) + ms(10));
    }
}
