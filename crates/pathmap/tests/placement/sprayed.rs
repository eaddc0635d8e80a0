//! Queue pairs whose packets take all paths.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pathmap::placer::Options;

use super::{Leaf, TICK, mesh};

#[test]
fn a_sprayed_queue_pair_loads_no_path_and_does_not_move() {
    const PATHS: u32 = 4;
    let paths = mesh(1, PATHS, 1);
    let mut leaf = Leaf::new(1, 3, Options::default());
    leaf.know(&paths, &BTreeSet::new());
    leaf.placer.set_sprayed([(leaf.target, [10].into())].into());
    let mut now = Duration::from_secs(1);
    let mut places = BTreeMap::<_, Vec<u32>>::new();
    for number in 1..=2 * PATHS {
        places.entry(leaf.send(number, 1000, now)).or_default().push(number);
    }
    // Packets that are not sprayed are dealt to the paths as always.
    assert!(places.values().all(|there| there.len() == 2) && places.len() == 4, "{places:?}");
    // One path has two that send more than all others.
    let heavy = places.into_values().next().unwrap();
    heavy.into_iter().for_each(|number| _ = leaf.rates.insert(number, 20_000));
    let mut pass = |leaf: &mut Leaf| {
        for _ in 0..100 {
            now += TICK;
            leaf.tick(now);
        }
        let links = paths.iter().flat_map(|path| &path.links);
        links.map(|link| leaf.placer.load(*link).0).max().unwrap()
    };
    assert_eq!((pass(&mut leaf), leaf.moved), (0, 0));
    assert!(leaf.placer.paths(leaf.target).iter().all(|path| path.kilobytes == 0));
    // When the VTEP no longer agrees, they load their paths, and move as others.
    leaf.placer.set_sprayed(BTreeMap::new());
    assert!(pass(&mut leaf) > 0);
    assert!(leaf.moved > 0);
}
