//! What one frame costs inside the worker, in memory: no sockets. `benches/run micro` prints the results as a table.
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::error::Error;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use entropy::{Entropy, Policy, Settings};
use pipeline::{Batch, Counters, Pipeline};
use tables::{Fdb, Snapshot, VtepIndex};
use vtepd_benches::leaf::{self, BATCH, LENGTHS};
use vtepd_benches::state::fabric;

const LEAF_1: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const LEAF_2: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Batches that are walked in turn so that no frame is in the cache when its turn comes.
const COLD_BATCHES: usize = 128;

fn pipeline() -> Pipeline {
    Pipeline::new(Arc::new(Counters::new()))
}

fn dissect(criterion: &mut Criterion) -> Result<(), Box<dyn Error>> {
    let mut group = criterion.benchmark_group("dissect");
    group.throughput(Throughput::Elements(BATCH as u64));
    let batch = leaf::batch(64)?;
    group.bench_function("RoCE", |bencher| {
        bencher.iter(|| {
            for frame in batch.frames() {
                black_box(wire::dissect(black_box(frame.data)));
            }
        });
    });
    Ok(())
}

fn policies(criterion: &mut Criterion) -> Result<(), Box<dyn Error>> {
    let mut group = criterion.benchmark_group("decide");
    group.throughput(Throughput::Elements(BATCH as u64));
    let batch = leaf::batch(64)?;
    let frames: Vec<_> = batch.frames().filter_map(|frame| wire::dissect(frame.data)).collect();
    for policy in Policy::ALL {
        let entropy = Entropy::new(Settings { policy, ..Settings::default() })?;
        group.bench_function(policy.name(), |bencher| {
            bencher.iter(|| {
                for frame in &frames {
                    black_box(entropy.decide(black_box(frame)));
                }
            });
        });
    }
    Ok(())
}

/// Encapsulates the batches in turn.
fn measure_encapsulate(bencher: &mut criterion::Bencher<'_>, batches: &[Batch], snapshot: &Snapshot) {
    let (mut pipeline, mut out, now) = (pipeline(), Vec::new(), Instant::now());
    let mut turn = batches.iter().cycle();
    bencher.iter(|| {
        out.clear();
        if let Some(batch) = turn.next() {
            pipeline.encapsulate(black_box(batch), snapshot, now, &mut out);
        }
        black_box(&out);
    });
}

fn encapsulate(criterion: &mut Criterion) -> Result<(), Box<dyn Error>> {
    let snapshot = leaf::snapshot(Policy::QpHash, LEAF_1, LEAF_2)?;
    let mut group = criterion.benchmark_group("encapsulate");
    group.throughput(Throughput::Elements(BATCH as u64));
    for length in LENGTHS {
        let batch = [leaf::batch(length)?];
        group.bench_function(BenchmarkId::from_parameter(format!("{length} B")), |bencher| {
            measure_encapsulate(bencher, &batch, &snapshot);
        });
    }
    let batches: Result<Vec<_>, _> = (0..COLD_BATCHES).map(|_| leaf::batch(64)).collect();
    let batches = batches?;
    group.bench_function("64 B cold", |bencher| measure_encapsulate(bencher, &batches, &snapshot));
    Ok(())
}

/// One MAC address of so many, in no order: 64 in turn, as a batch has them.
fn lookup(criterion: &mut Criterion) -> Result<(), Box<dyn Error>> {
    let mut group = criterion.benchmark_group("lookup");
    group.throughput(Throughput::Elements(BATCH as u64));
    for count in [8, 1000, 100_000] {
        let fdb: Fdb = (0..count).map(|number| (fabric::mac(number), VtepIndex(number))).collect();
        let keys: Vec<_> =
            (0..1 << 16).map(|turn: u32| fabric::mac(turn.wrapping_mul(2_654_435_761) % count)).collect();
        let mut turns = keys.chunks_exact(BATCH).cycle();
        group.bench_function(format!("{count} MACs"), |bencher| {
            bencher.iter(|| {
                for mac in turns.next().unwrap_or_default() {
                    black_box(fdb.get(black_box(mac)));
                }
            });
        });
    }
    Ok(())
}

fn decapsulate(criterion: &mut Criterion) -> Result<(), Box<dyn Error>> {
    let here = leaf::snapshot(Policy::QpHash, LEAF_1, LEAF_2)?;
    let there = leaf::snapshot(Policy::QpHash, LEAF_2, LEAF_1)?;
    let mut group = criterion.benchmark_group("decapsulate");
    group.throughput(Throughput::Elements(BATCH as u64));
    for length in LENGTHS {
        let (batch, mut out) = (leaf::batch(length)?, Vec::new());
        pipeline().encapsulate(&batch, &here, Instant::now(), &mut out);
        let frames: Vec<_> = out.iter().map(|transmit| transmit.to_vec(&batch)).collect();
        let batch = leaf::received(&frames);
        let mut pipeline = pipeline();
        group.bench_function(BenchmarkId::from_parameter(format!("{length} B")), |bencher| {
            bencher.iter(|| {
                out.clear();
                pipeline.decapsulate(black_box(&batch), &there, Instant::now(), &mut out);
                black_box(&out);
            });
        });
    }
    Ok(())
}

fn all(criterion: &mut Criterion) {
    for bench in [dissect, policies, lookup, encapsulate, decapsulate] {
        if let Err(error) = bench(criterion) {
            eprintln!("micro: {error}");
            std::process::exit(1);
        }
    }
}

criterion_group!(micro, all);
criterion_main!(micro);
