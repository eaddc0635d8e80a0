use std::collections::BTreeMap;

use super::*;

fn with(
    collective: Collective,
    (ranks, bytes): (usize, u64),
    sites: &[u32],
    extra: (f64, u64),
) -> Result<Schedule, ScheduleError> {
    collective.schedule(ranks, bytes, sites, extra, Pipeline::default())
}

/// For each rank and each aligned word of the buffer, whose contributions its value has: a
/// count for each rank.
struct Simulation {
    buffers: Vec<Vec<Vec<u32>>>,
}

const WORDS: usize = 64;
const BYTES: u64 = WORDS as u64 * 8;

impl Simulation {
    fn run(schedule: &Schedule) -> Self {
        let own = |rank: usize| {
            vec![(0..schedule.ranks).map(|other| u32::from(other == rank)).collect(); WORDS]
        };
        let mut buffers: Vec<Vec<Vec<u32>>> = (0..schedule.ranks).map(own).collect();
        for step in &schedule.steps {
            let before = buffers.clone();
            for transfer in step {
                assert_ne!(transfer.from, transfer.to);
                assert!(transfer.length() > 0 && transfer.bytes.end <= BYTES);
                assert_eq!(transfer.bytes.start % 8, 0);
                for word in transfer.bytes.start / 8..transfer.bytes.end.div_ceil(8) {
                    let word = word as usize;
                    let sent = before[transfer.from][word].clone();
                    let place = &mut buffers[transfer.to][word];
                    if transfer.reduce {
                        place.iter_mut().zip(sent).for_each(|(own, other)| *own += other);
                    } else {
                        *place = sent;
                    }
                }
            }
        }
        Self { buffers }
    }
}

fn schedule(collective: Collective, ranks: usize) -> Schedule {
    let half = (0..ranks as u32).map(|rank| rank % 2).collect::<Vec<_>>();
    with(collective, (ranks, BYTES), &half, (0.0, 1)).unwrap()
}

#[test]
fn an_all_reduce_adds_every_rank_once_everywhere() {
    for (collective, ranks) in [
        (Collective::AllReduceRing, vec![2, 3, 4, 5, 7, 8]),
        (Collective::AllReduceHalvingDoubling, vec![2, 4, 8, 16]),
        (Collective::AllReduceHierarchical, vec![2, 4, 6, 8]),
        (Collective::ParameterServer, vec![2, 5]),
    ] {
        for ranks in ranks {
            let schedule = schedule(collective, ranks);
            let found = Simulation::run(&schedule).buffers;
            assert!(
                found.iter().flatten().all(|word| *word == vec![1; ranks]),
                "{collective:?} of {ranks}: {found:?}"
            );
        }
    }
}

#[test]
fn each_rank_sends_what_the_literature_says() {
    for ranks in [2, 4, 8] {
        let n = ranks as u64;
        for collective in [
            Collective::AllReduceRing,
            Collective::AllReduceHalvingDoubling,
            Collective::AllReduceHierarchical,
        ] {
            let schedule = schedule(collective, ranks);
            assert_eq!(schedule.total_bytes(), 2 * (n - 1) * BYTES, "{collective:?}");
        }
        let ring = schedule(Collective::AllReduceRing, ranks);
        assert_eq!(ring.steps.len(), 2 * (ranks - 1));
        assert_eq!(ring.critical_bytes(), 2 * (n - 1) * BYTES / n);
        let halving = schedule(Collective::AllReduceHalvingDoubling, ranks);
        assert_eq!(halving.steps.len(), 2 * ranks.ilog2() as usize);
        assert_eq!(halving.critical_bytes(), 2 * (n - 1) * BYTES / n);
        let server = schedule(Collective::ParameterServer, ranks);
        assert_eq!(server.critical_bytes(), 2 * (n - 1) * BYTES);
    }
}

#[test]
fn reduce_scatter_and_all_gather_leave_each_part_at_its_place() {
    for ranks in [2, 3, 4, 7] {
        let found = Simulation::run(&schedule(Collective::ReduceScatter, ranks)).buffers;
        for (rank, buffer) in found.iter().enumerate() {
            let own = part(&(0..BYTES), rank, ranks);
            for word in own.start / 8..own.end / 8 {
                assert_eq!(buffer[word as usize], vec![1; ranks], "{ranks} {rank}");
            }
        }
        let found = Simulation::run(&schedule(Collective::AllGather, ranks)).buffers;
        for buffer in &found {
            for owner in 0..ranks {
                let range = part(&(0..BYTES), owner, ranks);
                for word in range.start / 8..range.end / 8 {
                    let value = &buffer[word as usize];
                    assert!(
                        value
                            .iter()
                            .enumerate()
                            .all(|(rank, count)| { *count == u32::from(rank == owner) })
                    );
                }
            }
        }
    }
}

#[test]
fn an_all_to_all_divides_each_buffer_by_weight() {
    for (skew, first) in [(0.0, 0.25), (1.0, 0.48)] {
        let schedule = with(Collective::AllToAll, (4, 1 << 20), &[], (skew, 5)).unwrap();
        let mut shares = BTreeMap::<usize, u64>::new();
        for transfer in &schedule.steps[0] {
            let share = shares.entry(transfer.to).or_default();
            assert!(*share == 0 || share.abs_diff(transfer.length()) < 16);
            *share = transfer.length();
        }
        assert_eq!(schedule.steps[0].len(), 12);
        let total: u64 = shares.values().sum();
        assert!((1 << 20) - total <= 16, "{total}");
        let most = *shares.values().max().unwrap() as f64 / f64::from(1 << 20);
        assert!((most - first).abs() < 0.001, "{most}");
    }
}

#[test]
fn a_permutation_gives_each_rank_one_sender() {
    let schedule = |seed| with(Collective::Permutation, (9, 8), &[], (0.0, seed)).unwrap();
    for seed in 0..20 {
        let step = &schedule(seed).steps[0];
        let mut receivers: Vec<_> = step.iter().map(|transfer| transfer.to).collect();
        receivers.sort_unstable();
        assert_eq!(receivers, (0..9).collect::<Vec<_>>());
        assert!(step.iter().all(|transfer| transfer.from != transfer.to));
        assert_eq!(schedule(seed), schedule(seed));
    }
    assert_ne!(schedule(1), schedule(2));
}

#[test]
fn parts_cover_everything_also_of_small_buffers() {
    for bytes in [0, 1, 7, 8, 100, 1000] {
        for count in 1..10 {
            let mut next = 0;
            for index in 0..count {
                let part = part(&(0..bytes), index, count);
                assert_eq!(part.start, next);
                next = part.end;
            }
            assert_eq!(next, bytes);
        }
    }
    let small = with(Collective::AllReduceRing, (4, 3), &[], (0.0, 0)).unwrap();
    assert_eq!(small.total_bytes(), 18);
}

#[test]
fn ranks_that_do_not_fit_are_refused() {
    let refused = |collective: Collective, ranks, sites: &[u32]| {
        with(collective, (ranks, 8), sites, (0.0, 0)).unwrap_err().to_string()
    };
    assert!(refused(Collective::AllGather, 1, &[]).contains("at least 2 hosts"));
    let odd = refused(Collective::AllReduceHalvingDoubling, 6, &[]);
    assert!(odd.contains("a power of two, not 6"));
    for sites in [&[][..], &[1, 1, 1, 1], &[1, 2, 2, 2], &[1, 2]] {
        assert!(refused(Collective::AllReduceHierarchical, 4, sites).contains("site"));
    }
}
