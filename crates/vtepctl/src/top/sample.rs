//! Answers of vtepd at one time, and the figures of two such samples.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use api::v1;
use serde::Serialize;

use crate::tables::policy_of;

/// Answers of vtepd at one time.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    /// When the counters were read.
    pub at: Instant,
    /// The answer to `GetStatus`.
    pub status: v1::Status,
    /// The answer to `GetCounters`.
    pub counters: v1::Counters,
    /// The answer to `ListPaths`; absent if paths are not probed.
    pub paths: Option<Vec<v1::VtepPaths>>,
    /// The answer to `ListQueuePairs`; absent if paths are not probed.
    pub queue_pairs: Option<Vec<v1::QueuePair>>,
}

/// Growth of two counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Rate {
    /// Frames per second.
    pub frames_per_second: f64,
    /// Bits per second.
    pub bits_per_second: f64,
}

/// A next hop, with the packets sent to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct NextHop {
    /// Name of the uplink.
    pub uplink: String,
    /// Address of the gateway.
    pub gateway: String,
    /// With outer headers; absent until two samples know the next hop.
    pub rate: Option<Rate>,
}

/// A path that probes found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Path {
    /// Address of the remote VTEP.
    pub vtep: String,
    /// Name of the uplink.
    pub uplink: String,
    /// Addresses of the routers; empty if not all are known.
    pub routers: Vec<String>,
    /// Number of queue pairs on it.
    pub queue_pairs: u32,
    /// Of these queue pairs.
    pub bits_per_second: u64,
}

/// A queue pair that qp-pin has placed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct QueuePair {
    /// What vtepd says of it.
    #[serde(flatten)]
    pub of: v1::QueuePair,
    /// Of inner frames, in the last half second.
    pub bits_per_second: u64,
}

/// A VNI.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct VniRow {
    /// VNI; 0 if the netdev serves many.
    pub vni: u32,
    /// Name of the vxlan netdev.
    pub netdev: String,
    /// Whether the netdev serves many VNIs.
    pub external: bool,
    /// Whether it is a standalone VNI.
    pub standalone: bool,
    /// userspace, offload or kernel.
    pub datapath: String,
    /// Name of the policy; absent if the kernel's own hash decides.
    pub policy: Option<String>,
    /// Number of source ports of qp-bins.
    pub bins: Option<u32>,
    /// Why it stays with the kernel; absent if it is taken over.
    pub reason_slug: Option<String>,
    /// Inner frames; absent until two samples know the VNI, and in the kernel datapath.
    pub encapsulated: Option<Rate>,
    /// As `encapsulated`.
    pub decapsulated: Option<Rate>,
}

/// All figures of the screen.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    /// Addresses of this leaf's VTEP in the VNIs that are taken over.
    pub leaf: Vec<String>,
    /// vtepd's version.
    pub version: String,
    /// vtepd's process.
    pub pid: u32,
    /// Since vtepd started, in seconds.
    pub uptime_seconds: u64,
    /// Whether frames are redirected.
    pub ready: bool,
    /// Sentences.
    pub warnings: Vec<String>,
    /// Number of VNIs by datapath.
    pub datapaths: BTreeMap<String, usize>,
    /// Time between the two samples, in seconds; absent if there is only one.
    pub seconds: Option<f64>,
    /// Inner frames of all VNIs that are taken over.
    pub encapsulated: Option<Rate>,
    /// As `encapsulated`.
    pub decapsulated: Option<Rate>,
    /// Packets encapsulated by kernel VXLAN; a super-frame is one.
    pub kernel_packets_per_second: Option<f64>,
    /// Dropped frames per second, of all reasons.
    pub dropped_per_second: Option<f64>,
    /// By uplink and gateway.
    pub next_hops: Vec<NextHop>,
    /// By VTEP; absent if paths are not probed.
    pub paths: Option<Vec<Path>>,
    /// The busiest first; absent if paths are not probed.
    pub queue_pairs: Option<Vec<QueuePair>>,
    /// By VNI and netdev.
    pub vnis: Vec<VniRow>,
}

/// Growth of a counter per second. Absent without an earlier value, and if the counter was reset in
/// between.
fn per_second(before: Option<u64>, now: u64, elapsed: Duration) -> Option<f64> {
    let grown = now.checked_sub(before?)?;
    let seconds = elapsed.as_secs_f64();
    (seconds > 0.0).then(|| grown as f64 / seconds)
}

/// The rate of `[frames, bytes]`.
fn rate(before: Option<[u64; 2]>, now: [u64; 2], elapsed: Duration) -> Option<Rate> {
    let [frames, bytes] = before.map_or([None; 2], |before| before.map(Some));
    let [frames_now, bytes_now] = now;
    Some(Rate {
        frames_per_second: per_second(frames, frames_now, elapsed)?,
        bits_per_second: per_second(bytes, bytes_now, elapsed)? * 8.0,
    })
}

/// The sum of the rates that are known; absent if none is.
fn sum(rates: impl Iterator<Item = Option<Rate>>) -> Option<Rate> {
    rates.flatten().reduce(|sum, rate| Rate {
        frames_per_second: sum.frames_per_second + rate.frames_per_second,
        bits_per_second: sum.bits_per_second + rate.bits_per_second,
    })
}

impl Figures {
    /// The figures of a sample. Rates are those since the sample `before`, if the same process gave
    /// both.
    #[must_use]
    pub(super) fn of(before: Option<&Sample>, now: &Sample) -> Self {
        let before = before.filter(|before| before.status.pid == now.status.pid);
        let elapsed = before.map(|before| now.at.saturating_duration_since(before.at));
        let since =
            Since { before: before.map(|b| &b.counters), elapsed: elapsed.unwrap_or_default() };
        let v1::Status { taken, left, .. } = &now.status;
        let mut vnis: Vec<VniRow> =
            taken.iter().chain(left).map(|row| since.vni(row, &now.counters)).collect();
        vnis.sort_by(|a, b| (a.vni, &a.netdev).cmp(&(b.vni, &b.netdev)));
        let mut leaf: Vec<String> =
            taken.iter().filter_map(|row| Some(row.taken.as_ref()?.local.clone())).collect();
        leaf.sort();
        leaf.dedup();
        let mut datapaths = BTreeMap::new();
        for row in &vnis {
            *datapaths.entry(row.datapath.clone()).or_default() += 1;
        }
        Self {
            leaf,
            version: now.status.version.clone(),
            pid: now.status.pid,
            uptime_seconds: now.status.uptime_seconds,
            ready: now.status.ready,
            warnings: now.status.warnings.clone(),
            datapaths,
            seconds: elapsed.map(|elapsed| elapsed.as_secs_f64()),
            encapsulated: sum(vnis.iter().map(|row| row.encapsulated)),
            decapsulated: sum(vnis.iter().map(|row| row.decapsulated)),
            kernel_packets_per_second: since.counter(&now.counters, by_kernel),
            dropped_per_second: since.counter(&now.counters, |counters| counters.dropped),
            next_hops: since.next_hops(&now.counters),
            paths: now.paths.as_deref().map(paths),
            queue_pairs: now.queue_pairs.as_deref().map(queue_pairs),
            vnis,
        }
    }
}

/// Packets that kernel VXLAN encapsulated.
fn by_kernel(counters: &v1::Counters) -> u64 {
    let steering = counters.steering.unwrap_or_default();
    steering.port_chosen + steering.port_kept
}

/// Earlier counters, and the time since then.
struct Since<'a> {
    before: Option<&'a v1::Counters>,
    elapsed: Duration,
}

impl Since<'_> {
    fn counter(&self, now: &v1::Counters, read: fn(&v1::Counters) -> u64) -> Option<f64> {
        per_second(self.before.map(read), read(now), self.elapsed)
    }

    fn next_hops(&self, now: &v1::Counters) -> Vec<NextHop> {
        let is = |a: &v1::PathCounters, b: &v1::PathCounters| {
            (&a.uplink, &a.gateway) == (&b.uplink, &b.gateway)
        };
        let hop = |hop: &v1::PathCounters| {
            let before = self.before.and_then(|before| before.paths.iter().find(|b| is(b, hop)));
            NextHop {
                uplink: hop.uplink.clone(),
                gateway: hop.gateway.clone(),
                rate: rate(
                    before.map(|before| [before.frames, before.bytes]),
                    [hop.frames, hop.bytes],
                    self.elapsed,
                ),
            }
        };
        let mut hops: Vec<NextHop> = now.paths.iter().map(hop).collect();
        hops.sort_by(|a, b| (&a.uplink, &a.gateway).cmp(&(&b.uplink, &b.gateway)));
        hops
    }

    fn vni(&self, row: &v1::Vni, now: &v1::Counters) -> VniRow {
        let counted = |counters: &v1::Counters| {
            let is = |c: &&v1::VniCounters| c.vni == row.vni && c.netdev == row.netdev;
            counters.vnis.iter().find(is).filter(|_| row.taken.is_some()).cloned()
        };
        let (before, now) = (self.before.and_then(counted), counted(now));
        let of = |read: fn(&v1::VniCounters) -> [u64; 2]| {
            rate(before.as_ref().map(read), read(now.as_ref()?), self.elapsed)
        };
        let policy = policy_of(row);
        VniRow {
            vni: row.vni,
            netdev: row.netdev.clone(),
            external: row.external,
            standalone: row.standalone,
            datapath: row.datapath.clone(),
            policy: (!policy.name.is_empty()).then_some(policy.name),
            bins: policy.bins,
            // An older vtepd sends no slug.
            reason_slug: row.left.as_ref().map(|_| row.reason_slug.clone().unwrap_or_default()),
            encapsulated: of(|c| [c.encapsulated_frames, c.encapsulated_bytes]),
            decapsulated: of(|c| [c.decapsulated_frames, c.decapsulated_bytes]),
        }
    }
}

/// Bits per second of the API's 1000 bytes a second.
const fn bits(kilobytes: u64) -> u64 {
    kilobytes.saturating_mul(8000)
}

fn paths(rows: &[v1::VtepPaths]) -> Vec<Path> {
    let of_vtep = |row: &v1::VtepPaths| {
        let vtep = row.vtep.clone();
        let path = move |path: &v1::Path| Path {
            vtep: vtep.clone(),
            uplink: path.uplink.clone(),
            routers: path.routers.clone(),
            queue_pairs: path.queue_pairs,
            bits_per_second: bits(path.kilobytes_per_second),
        };
        row.paths.iter().map(path).collect::<Vec<_>>()
    };
    rows.iter().flat_map(of_vtep).collect()
}

/// The busiest first, and then in the order of the API.
fn queue_pairs(rows: &[v1::QueuePair]) -> Vec<QueuePair> {
    let queue_pair = |of: &v1::QueuePair| QueuePair {
        bits_per_second: bits(of.kilobytes_per_second),
        of: of.clone(),
    };
    let mut rows: Vec<QueuePair> = rows.iter().map(queue_pair).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bits_per_second));
    rows
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{LENGTH, detached, queue_pair, sample, vni};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn two(seconds: u32, frames: [u64; 2]) -> Figures {
        let start = Instant::now();
        let [before, now] = frames;
        Figures::of(Some(&sample(start, before)), &sample(start + seconds * SECOND, now))
    }

    #[test]
    fn rates_are_what_was_counted_between_two_samples() {
        let figures = two(2, [1000, 9000]);
        let rates = figures.next_hops.iter().map(|hop| (hop.uplink.as_str(), hop.rate.unwrap()));
        let rate = |frames_per_second: f64, bytes: u64| Rate {
            frames_per_second,
            bits_per_second: frames_per_second * (bytes * 8) as f64,
        };
        let expected = [("up1", rate(4000.0, LENGTH)), ("up2", rate(12_000.0, LENGTH))];
        assert_eq!(rates.collect::<Vec<_>>(), expected);
        assert_eq!(figures.encapsulated, Some(rate(16_000.0, LENGTH - 50)));
        assert_eq!(figures.decapsulated, Some(Rate::default()));
        assert_eq!((figures.dropped_per_second, figures.seconds), (Some(40.0), Some(2.0)));
        assert_eq!(figures.vnis[0].encapsulated, figures.encapsulated);
    }

    #[test]
    fn one_sample_has_no_rates() {
        let figures = Figures::of(None, &sample(Instant::now(), 5));
        assert_eq!((figures.seconds, figures.dropped_per_second), (None, None));
        assert!(figures.next_hops.iter().all(|hop| hop.rate.is_none()));
        assert_eq!((figures.encapsulated, figures.leaf), (None, vec!["10.0.0.1".to_owned()]));
    }

    #[test]
    fn a_counter_that_was_reset_has_no_rate() {
        let figures = two(1, [9000, 100]);
        assert!(figures.next_hops.iter().all(|hop| hop.rate.is_none()));
        assert_eq!((figures.encapsulated, figures.dropped_per_second), (None, None));
        // Another process has other counters, also if they are greater.
        let start = Instant::now();
        let mut restarted = sample(start + SECOND, 20_000);
        restarted.status.pid += 1;
        let figures = Figures::of(Some(&sample(start, 100)), &restarted);
        assert_eq!((figures.encapsulated, figures.seconds), (None, None));
        // Two samples at one time.
        assert_eq!(per_second(Some(1), 2, Duration::ZERO), None);
    }

    #[test]
    fn a_vni_that_comes_or_goes_does_not_change_the_rate_of_others() {
        let start = Instant::now();
        let (before, mut now) = (sample(start, 1000), sample(start + SECOND, 2000));
        now.status.taken.push(vni(20, "qp-hash"));
        now.status.left.push(detached(5));
        now.counters.vnis.push(v1::VniCounters {
            vni: 20,
            netdev: "vx20".to_owned(),
            encapsulated_frames: 1_000_000,
            ..v1::VniCounters::default()
        });
        let figures = Figures::of(Some(&before), &now);
        assert_eq!(figures.encapsulated.unwrap().frames_per_second, 4000.0);
        let rows = figures.vnis.iter().map(|row| (row.vni, row.encapsulated.is_some()));
        assert_eq!(rows.collect::<Vec<_>>(), [(5, false), (10, true), (20, false)]);
        assert_eq!(figures.vnis[0].reason_slug.as_deref(), Some("detached"));
        assert_eq!(figures.vnis[0].policy, None);
        let datapaths = [("kernel".to_owned(), 1), ("userspace".to_owned(), 2)];
        assert_eq!(figures.datapaths, BTreeMap::from(datapaths));
    }

    #[test]
    fn queue_pairs_are_sorted_by_rate() {
        let mut now = sample(Instant::now(), 0);
        now.queue_pairs =
            Some(vec![queue_pair(1, "up1", 5), queue_pair(2, "up2", 700), queue_pair(3, "up1", 5)]);
        let rows = Figures::of(None, &now).queue_pairs.unwrap();
        let order: Vec<_> =
            rows.iter().map(|row| (row.of.queue_pair, row.bits_per_second)).collect();
        assert_eq!(order, [(2, 5_600_000), (1, 40_000), (3, 40_000)]);
    }
}
