//! What places queue pairs on two uplinks, and sprays packets over four paths, as the probing thread
//! does.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use path::record::Record;
use path::{
    Agreed, Answer, Arrivals, Before, CounterId, Flow, PathId, Pin, Pinning, Pins, Policy, Pool,
    Remote, SprayOptions, Spraying, Usage, Version,
};
use spray::order::Tiers;
use tables::Snapshot;

/// The most queue pairs that are counted.
const QUEUE_PAIRS: u32 = 64;
/// A source port of each path.
const FIRST_PORT: u16 = 50_000;
const PATHS: u16 = 4;
/// The time until feedback, in nanoseconds.
const FEEDBACK: u64 = 1_000_000_000;

#[derive(Debug)]
struct Placed {
    usage: Usage,
    spraying: Arc<Spraying>,
}

/// A path by the uplinks in turns.
const fn path(number: u16) -> PathId {
    PathId { hop: 1 + (number % 2) as u64, source_port: FIRST_PORT + number % PATHS }
}

impl Pinning for Placed {
    fn pin(&self, flow: &Flow, _: &Remote<'_>, _: PathId, _: Before) -> Answer {
        let number = flow.hash as u32 % QUEUE_PAIRS;
        let Some(counter) = CounterId::new(1 + number) else { return Answer::Hashed };
        let changes = self.usage.changes(counter);
        Answer::Pinned(Pin { path: path(number as u16), counter, changes })
    }

    fn version(&self) -> Version<Policy> {
        Version::NONE
    }

    fn usage(&self) -> &Usage {
        &self.usage
    }

    fn spraying(&self) -> Option<Arc<Spraying>> {
        Some(Arc::clone(&self.spraying))
    }
}

/// Pins of a leaf with these tables. It sprays to all its VTEPs, and all spray to it.
pub(crate) fn pins(snapshot: &Snapshot, now: Instant) -> Option<Pins> {
    let usage = Usage::new(QUEUE_PAIRS, now);
    usage.record_in(Arc::new(Vec::from_iter((0..=QUEUE_PAIRS).map(|_| Record::default()))));
    let spraying = Arc::new(Spraying::new(SprayOptions::default(), 1));
    let tiers = Tiers::new(&[2, 2]).ok()?;
    let pool = Arc::new(Pool::new((0..PATHS).map(path).collect(), tiers, FEEDBACK)?);
    let tunnel = &snapshot.vnis().next()?.tunnel;
    let ends = |far: IpAddr| (tunnel.local, far, tunnel.destination_port);
    let vnis = snapshot.vnis().map(|table| table.tunnel.vni).collect();
    let agreed = Agreed { pool, vnis };
    let vteps = || snapshot.vteps().map(|vtep| ends(vtep.address));
    spraying.set_pools(vteps().map(|ends| (ends, agreed.clone())).collect());
    // No packet waits for others.
    let arrivals = Arc::new(Arrivals::new(0));
    spraying.set_arrivals(vteps().map(|ends| (ends, Arc::clone(&arrivals))).collect());
    Some(Pins::new(Some(Arc::new(Placed { usage, spraying }))))
}
