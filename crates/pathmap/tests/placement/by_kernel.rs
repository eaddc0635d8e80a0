//! Queue pairs that kernel VXLAN sends: no worker asks for them, and programs move them.

use super::*;
use path::{CounterId, PathId};

/// The path of the first frames.
const HASHED: PathId = PathId { hop: 0, source_port: 1 };

#[test]
fn queue_pairs_begin_on_the_hashed_path_and_are_even_once_they_have_moved() {
    let paths = mesh(1, 4, 4);
    let mut leaf = Leaf::new(1, 3, Options { moves: Moves::Never, ..Options::default() });
    leaf.target.by_kernel = true;
    leaf.know(&paths, &BTreeSet::new());
    let now = Duration::from_secs(1);
    assert!((1..=32).all(|number| leaf.send(number, 1000, now) == HASHED));
    // They count where they are to be. The hashed path is not probed for the short time.
    let used = leaf.placer.used(leaf.target);
    assert!(!used.contains(&HASHED) && used.len() == 16, "{used:?}");
    for number in 1..=32 {
        let id = id(leaf.target, number);
        let course = leaf.placer.course(&id).unwrap();
        let (next, pause) = course.next.unwrap();
        assert_eq!(course.path, HASHED);
        // The delay of the hashed path is not known.
        assert!(pause > Duration::from_millis(1), "{pause:?}");
        leaf.placer.moved(&id, next);
        assert_eq!(leaf.placer.course(&id).map(|now| (now.path, now.next)), Some((next, None)));
    }
    for loads in tiers(&paths, &leaf.loads()) {
        assert_eq!(balance::mmr(&loads), 1.0, "{loads:?}");
    }
    let moves: u32 = leaf.placer.flows().map(|(_, flow)| flow.moves).sum();
    assert_eq!((moves, leaf.placer.counts.moved_balance), (0, 0), "the first path is no move");
    // Workers and other programs have nothing to do with them.
    assert_eq!(leaf.settled(now), 0);

    // A path that dies is left at once.
    let dead = paths[5].path;
    let on = |leaf: &Leaf, path: PathId| {
        leaf.placer.flows().filter(|(_, flow)| flow.path == path).map(|(id, _)| *id).collect()
    };
    let moved: Vec<FlowId> = on(&leaf, dead);
    leaf.know(&paths, &BTreeSet::from([dead]));
    assert_eq!((moved.len(), leaf.placer.counts.moved_dead), (2, 2));
    assert!(moved.iter().all(|id| leaf.placer.course(id).unwrap().path != dead));

    leaf.placer.drop_flow(&moved[0]);
    assert_eq!((leaf.placer.course(&moved[0]), leaf.placer.counts.forgotten), (None, 1));
}

#[test]
fn a_queue_pair_that_was_idle_is_placed_anew_without_being_asked_for() {
    let paths = mesh(1, 2, 1);
    let mut leaf = Leaf::new(1, 3, Options::default());
    leaf.target.by_kernel = true;
    leaf.know(&paths, &BTreeSet::new());
    let mut now = Duration::from_secs(1);
    let target = leaf.target;
    let settle = |leaf: &mut Leaf, number: u32, now| {
        leaf.send(number, 1000, now);
        if let Some((next, _)) = leaf.placer.course(&id(target, number)).unwrap().next {
            leaf.placer.moved(&id(target, number), next);
        }
        leaf.placer.course(&id(target, number)).unwrap().path
    };
    let first = settle(&mut leaf, 1, now);
    // Others have come while it was idle, and both paths have one of them, and its own a third one.
    let silent =
        |_: CounterId| Reading { last: Some(Duration::from_secs(1)), ..Reading::default() };
    for _ in 0..40 {
        now += TICK;
        leaf.placer.tick(silent, now);
    }
    let counter = leaf.placer.peek(&id(target, 1)).unwrap().counter;
    let others: Vec<PathId> = (2..=4).map(|number| settle(&mut leaf, number, now)).collect();
    let crowded = others.iter().filter(|path| **path == first).count();
    // It sends again.
    now += TICK;
    let last = |of: CounterId| if of == counter || crowded > 0 { Some(now) } else { None };
    leaf.placer.tick(|of| Reading { last: last(of), ..Reading::default() }, now);
    let goal = leaf.placer.flows().find(|(of, _)| **of == id(target, 1)).unwrap().1.goal();
    let on_goal = others.iter().filter(|path| **path == goal).count();
    assert!(on_goal <= 1, "with the fewer: {first:?} {others:?} {goal:?}");
}
