//! Answers of vtepd for the tests.

use std::time::Instant;

use api::v1;

use super::sample::Sample;

/// Bytes of each frame, with outer headers.
pub(super) const LENGTH: u64 = 1000;

/// A VNI that a worker forwards.
pub(super) fn vni(number: u32, policy: &str) -> v1::Vni {
    let policy = v1::Policy { name: policy.to_owned(), ..v1::Policy::default() };
    v1::Vni {
        vni: number,
        netdev: format!("vx{number}"),
        datapath: "userspace".to_owned(),
        taken: Some(v1::Taken {
            local: "10.0.0.1".to_owned(),
            policy: Some(policy),
            ..v1::Taken::default()
        }),
        ..v1::Vni::default()
    }
}

/// A VNI that was detached.
pub(super) fn detached(number: u32) -> v1::Vni {
    v1::Vni {
        vni: number,
        netdev: format!("vx{number}"),
        datapath: "kernel".to_owned(),
        left: Some("it was detached".to_owned()),
        reason_slug: Some("detached".to_owned()),
        ..v1::Vni::default()
    }
}

/// A queue pair on an uplink.
pub(super) fn queue_pair(number: u32, uplink: &str, kilobytes_per_second: u64) -> v1::QueuePair {
    v1::QueuePair {
        vni: 10,
        source: "192.168.10.1".to_owned(),
        destination: "192.168.10.3".to_owned(),
        queue_pair: number,
        vtep: "10.0.0.2".to_owned(),
        uplink: uplink.to_owned(),
        source_port: 50_000 + number,
        state: "pinned".to_owned(),
        routers: vec!["10.2.1.1".to_owned()],
        kilobytes_per_second,
        psn_gaps: 411,
        naks: 422,
        ecn_marks: 433,
        ..v1::QueuePair::default()
    }
}

/// One VNI whose `frames` have left by `up1`; three times as many have left by `up2`.
pub(super) fn sample(at: Instant, frames: u64) -> Sample {
    let path = |uplink: &str, gateway: &str, frames: u64| v1::PathCounters {
        uplink: uplink.to_owned(),
        gateway: gateway.to_owned(),
        frames,
        bytes: frames * LENGTH,
    };
    let counters = v1::Counters {
        dropped: frames / 100,
        paths: vec![path("up2", "10.1.2.0", frames * 3), path("up1", "10.1.1.0", frames)],
        vnis: vec![v1::VniCounters {
            vni: 10,
            netdev: "vx10".to_owned(),
            encapsulated_frames: frames * 4,
            encapsulated_bytes: frames * 4 * (LENGTH - 50),
            ..v1::VniCounters::default()
        }],
        ..v1::Counters::default()
    };
    let status = v1::Status {
        version: "0.1.0".to_owned(),
        pid: 4711,
        uptime_seconds: 192,
        ready: true,
        taken: vec![vni(10, "qp-pin")],
        ..v1::Status::default()
    };
    Sample { at, status, counters, paths: None, queue_pairs: None }
}
