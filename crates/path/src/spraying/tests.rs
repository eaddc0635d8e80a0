use std::collections::BTreeSet;
use std::time::Duration;

use ::spray::Values;
use ::spray::order::Tiers;

use super::*;
use crate::group::Paths;

const LOCAL: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
const FAR: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2));

fn vni(number: u32) -> Vni {
    Vni::try_from(number).unwrap()
}

fn pool(paths: u16) -> Arc<Pool> {
    let path = |number: u16| PathId { hop: u64::from(number % 2), source_port: 50_000 + number };
    let tiers = Tiers::unknown(Values::new(paths.into()).unwrap());
    // Feedback takes 1 ms.
    Arc::new(Pool::new((0..paths).map(path).collect(), tiers, 1_000_000).unwrap())
}

fn publish(shared: &Spraying, pool: &Arc<Pool>, vnis: &[u32]) {
    let vnis = vnis.iter().map(|number| vni(*number)).collect();
    let agreed = Agreed { pool: Arc::clone(pool), vnis };
    shared.set_pools([((LOCAL, FAR, 4789), agreed)].into());
}

/// The source ports of so many packets of a VNI.
fn ports(sprays: &mut Sprays, number: u32, packets: usize) -> Vec<Option<u16>> {
    let group = Paths::default();
    let (local, address, destination_port) = (LOCAL, FAR, 4789);
    let to = Remote { vni: vni(number), local, address, destination_port, group: &group };
    let range = SourcePortRange::default();
    let mut next = || Some(sprays.next(sprays.pool(&to, range)?)?.source_port);
    (0..packets).map(|_| next()).collect()
}

fn set(ports: Vec<Option<u16>>) -> BTreeSet<u16> {
    ports.into_iter().map(Option::unwrap).collect()
}

#[test]
fn only_packets_of_agreed_vnis_are_sprayed_and_over_all_paths() {
    let shared = Arc::new(Spraying::new(SprayOptions::default(), 7));
    let mut sprays = Sprays::new(Some(Arc::clone(&shared)));
    let now = Instant::now();
    sprays.begin(now);
    assert_eq!(ports(&mut sprays, 10, 1), [None], "there are no paths yet");
    let pool = pool(4);
    publish(&shared, &pool, &[10, 12]);
    assert_eq!(ports(&mut sprays, 10, 1), [None], "the batch goes on as it began");
    sprays.begin(now);
    assert_eq!(set(ports(&mut sprays, 10, 4)), (50_000..50_004).collect());
    assert_eq!(ports(&mut sprays, 11, 1), [None]);
    assert_eq!(set(ports(&mut sprays, 12, 4)).len(), 4);
    assert_eq!(pool.sent().collect::<Vec<_>>(), [2; 4]);
    shared.set_pools(BTreeMap::new());
    sprays.begin(now);
    assert_eq!(ports(&mut sprays, 10, 1), [None]);
    assert!(ports(&mut Sprays::default(), 10, 1) == [None]);
}

#[test]
fn feedback_reaches_the_scheme_of_each_worker_once() {
    let shared = Arc::new(Spraying::new(SprayOptions::default(), 7));
    let mut workers = [(); 2].map(|()| Sprays::new(Some(Arc::clone(&shared))));
    let pool = pool(4);
    publish(&shared, &pool, &[10]);
    let start = Instant::now();
    let of = |good, marked, lost| Fate { good, marked, lost };
    // A path is avoided for the time of the feedback after a mark.
    pool.add_feedback([of(1, 0, 0), of(0, 1, 0), of(1, 0, 0), of(1, 0, 0)]);
    for (ms, without) in [(1, Some(50_001)), (5, None)] {
        for worker in &mut workers {
            worker.begin(start + Duration::from_millis(ms));
            if ms == 1 {
                // What happened before a worker knew of the pool is nothing to it.
                assert_eq!(set(ports(worker, 10, 4)).len(), 4);
            }
        }
        if ms == 1 {
            pool.add_feedback([of(1, 0, 0), of(0, 1, 0), of(1, 0, 0), of(1, 0, 0)]);
        }
        for worker in &mut workers {
            let expected = (50_000..50_004).filter(|port| Some(*port) != without).collect();
            assert_eq!(set(ports(worker, 10, 8)), expected, "at {ms} ms");
        }
    }
    assert_eq!(pool.fates().nth(1), Some(of(0, 2, 0)));
}

/// Paths 0 and 1 have queues, on which a packet takes 1 and 4 ms. Path 2 is down, path 3 has no queue.
#[test]
fn packets_go_where_they_wait_least() {
    let shared = Arc::new(Spraying::new(SprayOptions::default(), 7));
    let pool = pool(4);
    publish(&shared, &pool, &[10]);
    let mut sprays = Sprays::new(Some(Arc::clone(&shared)));
    sprays.begin(Instant::now());
    let backlog = |service| Backlog { answered: 0, service, base: 1_000_000 };
    pool.set_backlogs([1_000_000, 4_000_000, 0, 0].map(backlog));
    pool.set_down(|path| path.source_port == 50_002);
    let mut sent = [0; 4];
    for port in ports(&mut sprays, 10, 40) {
        sent[usize::from(port.unwrap() - 50_000)] += 1;
    }
    // The first packets take the delay, and others may wait for 2 ms more than on the best path.
    assert!((3..=4).contains(&sent[0]) && (1..=2).contains(&sent[1]), "{sent:?}");
    assert_eq!((sent[2], sent.iter().sum::<i32>()), (0, 40));
    // All have queues now: shares are those of the rates.
    pool.set_backlogs([1_000_000, 4_000_000, 1_000_000, 1_000_000].map(backlog));
    pool.set_down(|_| false);
    let before: Vec<u64> = pool.sent().collect();
    let _ = ports(&mut sprays, 10, 1300);
    let sent: Vec<u64> = pool.sent().zip(before).map(|(sent, before)| sent - before).collect();
    let share = |number: usize| sent[number] as f64 / 1300.0;
    assert!((0.07..0.085).contains(&share(1)), "{sent:?}");
    assert!([0, 2, 3].iter().all(|number| (0.28..0.33).contains(&share(*number))), "{sent:?}");
    // With all down, none is better than the others.
    pool.set_down(|_| true);
    assert_eq!(ports(&mut sprays, 10, 8).len(), 8);
    assert_eq!(pool.up(), 0);
}

/// Half of the paths with marks are few, more are many.
#[test]
fn marks_on_most_paths_are_left_to_hosts() {
    for (marked, avoided) in [(1, 1), (2, 2), (3, 0)] {
        let shared = Arc::new(Spraying::new(SprayOptions::default(), 7));
        let pool = pool(4);
        publish(&shared, &pool, &[10]);
        let mut sprays = Sprays::new(Some(Arc::clone(&shared)));
        sprays.begin(Instant::now());
        let fate = |number| Fate { good: 1, marked: u64::from(number < marked), lost: 0 };
        pool.add_feedback((0..4).map(fate));
        assert_eq!(set(ports(&mut sprays, 10, 8)).len(), 4 - avoided);
    }
}

#[test]
fn a_scheme_outlives_a_change_of_vnis_and_not_one_of_paths() {
    let shared = Arc::new(Spraying::new(SprayOptions::default(), 7));
    let mut sprays = Sprays::new(Some(Arc::clone(&shared)));
    let before = pool(4);
    publish(&shared, &before, &[10]);
    let now = Instant::now();
    sprays.begin(now);
    assert_eq!(set(ports(&mut sprays, 10, 4)).len(), 4);
    let lost = |lost| Fate { lost, ..Fate::default() };
    before.add_feedback([lost(0), lost(0), lost(0), lost(9)]);
    publish(&shared, &before, &[10, 11]);
    sprays.begin(now);
    assert_eq!(set(ports(&mut sprays, 11, 8)), (50_000..50_003).collect());
    publish(&shared, &pool(8), &[10]);
    sprays.begin(now);
    assert_eq!(set(ports(&mut sprays, 10, 8)), (50_000..50_008).collect());
    assert!(Pool::new(Vec::new(), Tiers::new(&[2]).unwrap(), 1).is_none());
}

#[test]
fn sends_and_writes_are_sprayed() {
    let sprayed: Vec<u8> = (0..=u8::MAX).filter(|opcode| is_sprayed(*opcode)).collect();
    assert_eq!(
        sprayed,
        (opcode::RC_SEND_FIRST..=opcode::RC_WRITE_ONLY_IMMEDIATE).collect::<Vec<_>>()
    );
    assert!(!is_sprayed(opcode::RC_READ_REQUEST) && !is_sprayed(opcode::RC_ACKNOWLEDGE));
    assert!(!is_sprayed(opcode::UD_SEND_ONLY) && !is_sprayed(opcode::CONGESTION_NOTIFICATION));
}

#[test]
fn a_path_is_passed_over_while_packets_wait_much_longer_there_or_probes_are_lost() {
    let pool = pool(4);
    assert!(pool.waits().eq([Some((0, false)); 4]));
    for number in 0..4 {
        pool.count_sent(number, 10);
    }
    let backlog = |service, answered| Backlog { answered, service, base: 1_000_000 };
    pool.set_backlogs([backlog(0, 10), backlog(250_000, 0), backlog(400_000, 0), backlog(0, 0)]);
    pool.set_down(|path| path.source_port == 50_003);
    let waits: Vec<_> = pool.waits().collect();
    // Ten packets that take 0.25 ms each, of which 1 ms is the way itself.
    assert_eq!(waits, [Some((0, false)), Some((1_500_000, false)), Some((3_000_000, true)), None]);
}
