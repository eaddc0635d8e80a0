//! Where the nodes and links of a picture are, in pixels.
//!
//! Hosts are at the bottom. A node is above the middle of its neighbours in the tier below. A link
//! between two tiers is a straight line; a link within a tier is an arc above it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// The height of a node.
pub(super) const NODE_HEIGHT: f64 = 30.0;
/// The distance between nodes of tier 0, 1, and the tiers above.
const GAPS: [f64; 3] = [24.0, 56.0, 90.0];
/// The distance between the lowest two tiers, and between others.
const HOST_DISTANCE: f64 = 96.0;
const TIER_DISTANCE: f64 = 170.0;
/// The height of an arc as a share of the distance between its nodes, and what each further arc
/// between the same nodes adds.
const ARC: f64 = 0.25;
const PARALLEL: f64 = 22.0;
/// The space above an arc.
const ABOVE: f64 = 18.0;
/// The distance between two links at a node.
const PORT: f64 = 15.0;

/// A point, to the right and down.
pub(super) type Point = (f64, f64);

/// A quadratic Bézier curve. A straight line has its control point in the middle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Curve(pub(super) [Point; 3]);

impl Curve {
    /// The point at this share of the way, 0 to 1.
    pub(super) fn at(&self, t: f64) -> Point {
        let Self([a, c, b]) = *self;
        let mix = |from: f64, control: f64, to: f64| {
            (1.0 - t) * (1.0 - t) * from + 2.0 * t * (1.0 - t) * control + t * t * to
        };
        (mix(a.0, c.0, b.0), mix(a.1, c.1, b.1))
    }

    /// The curve from its begin to this share of the way.
    pub(super) fn until(&self, t: f64) -> Self {
        let Self([a, c, _]) = *self;
        let between =
            |from: Point, to: Point| (from.0 + (to.0 - from.0) * t, from.1 + (to.1 - from.1) * t);
        Self([a, between(a, c), self.at(t)])
    }

    pub(super) const fn reversed(&self) -> Self {
        let Self([a, c, b]) = *self;
        Self([b, c, a])
    }

    /// The length of the straight line between the ends.
    pub(super) fn chord(&self) -> f64 {
        let Self([a, _, b]) = self;
        (b.0 - a.0).hypot(b.1 - a.1)
    }
}

/// A node in the picture.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Place {
    /// The middle.
    pub(super) x: f64,
    /// The upper edge.
    pub(super) top: f64,
    pub(super) width: f64,
    tier: usize,
}

/// The places of all nodes and links. The upper left corner is (0, 0).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layout {
    pub(super) nodes: Vec<Place>,
    pub(super) links: Vec<Curve>,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Layout {
    /// Places nodes, given by name and tier, and links between them by index. `stretch` of 1 or more
    /// scales the distances between tiers and between nodes.
    pub(super) fn new(nodes: &[(&str, usize)], links: &[[usize; 2]], stretch: f64) -> Self {
        let place = |(name, tier): &(&str, usize)| {
            let width = (8.2 * name.chars().count() as f64 + 22.0).max(72.0);
            Place { x: 0.0, top: 0.0, width, tier: *tier }
        };
        let mut places: Vec<Place> = nodes.iter().map(place).collect();
        let tiers = nodes.iter().map(|(_, tier)| tier + 1).max().unwrap_or_default();
        place_columns(nodes, links, &mut places, (tiers, stretch));
        let arcs = arcs(links, &places);
        let height = place_rows(links, &arcs, &mut places, (tiers, stretch));
        let curves = curves(links, &arcs, &places);
        let right = places.iter().map(|place| place.x + place.width / 2.0).fold(0.0, f64::max);
        Self { nodes: places, links: curves, width: right, height }
    }
}

/// Compares names so that `leaf2` is before `leaf10`.
pub(super) fn natural(a: &str, b: &str) -> Ordering {
    let split = |name: &str| {
        let text = name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
        let number = name.get(text.len()..).and_then(|digits| digits.parse::<u64>().ok());
        (text, number, name.to_owned())
    };
    split(a).cmp(&split(b))
}

/// Sets the horizontal places of the nodes.
fn place_columns(
    nodes: &[(&str, usize)],
    links: &[[usize; 2]],
    places: &mut [Place],
    (tiers, stretch): (usize, f64),
) {
    let mut names: Vec<(usize, &str, usize)> =
        nodes.iter().enumerate().map(|(at, (name, tier))| (*tier, *name, at)).collect();
    names.sort_by(|a, b| natural(a.1, b.1));
    let mut place_tier = |tier: usize, next: Option<usize>| {
        let own = names.iter().filter(|(own, ..)| *own == tier);
        let middle = |node| mean_of_neighbours(node, next?, links, places);
        let mut wanted: Vec<(f64, usize)> =
            own.map(|(.., node)| (middle(*node).unwrap_or(0.0), *node)).collect();
        // The sort is stable: nodes with equal places stay in the order of their names.
        wanted.sort_by(|a, b| a.0.total_cmp(&b.0));
        spread(&wanted, GAPS.get(tier).or(GAPS.last()).unwrap_or(&0.0) * stretch, places);
    };
    // The leaves get the order of their names, and the hosts that of their leaves. Each tier is then
    // placed above the one below, and at last the hosts below their leaves.
    if tiers > 1 {
        place_tier(1, None);
        place_tier(0, Some(1));
        (1..tiers).for_each(|tier| place_tier(tier, Some(tier - 1)));
    }
    place_tier(0, Some(1));
    let left = places.iter().map(|place| place.x - place.width / 2.0).fold(f64::MAX, f64::min);
    places.iter_mut().for_each(|place| place.x -= left);
}

/// The mean place of a node's neighbours in a tier.
fn mean_of_neighbours(
    node: usize,
    tier: usize,
    links: &[[usize; 2]],
    places: &[Place],
) -> Option<f64> {
    let far = links.iter().filter_map(|[a, b]| match node {
        node if node == *a => Some(*b),
        node if node == *b => Some(*a),
        _ => None,
    });
    let there = far.filter_map(|far| places.get(far)).filter(|place| place.tier == tier);
    let (sum, count) = there.fold((0.0, 0_u32), |(sum, count), place| (sum + place.x, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// Places the nodes of a tier in this order, `gap` apart: each in the middle between where it is if
/// all make room to the right, and where it is if all make room to the left.
fn spread(wanted: &[(f64, usize)], gap: f64, places: &mut [Place]) {
    let mut end = f64::NEG_INFINITY;
    for (x, node) in wanted {
        let Some(place) = places.get_mut(*node) else { continue };
        place.x = x.max(end + place.width / 2.0);
        end = place.x + place.width / 2.0 + gap;
    }
    let mut end = f64::INFINITY;
    for (x, node) in wanted.iter().rev() {
        let Some(place) = places.get_mut(*node) else { continue };
        let left = x.min(end - place.width / 2.0);
        end = left - place.width / 2.0 - gap;
        place.x = f64::midpoint(place.x, left);
    }
}

/// The height of each link within a tier; `None` for a link between two tiers.
fn arcs(links: &[[usize; 2]], places: &[Place]) -> Vec<Option<f64>> {
    let arc = |(at, &[a, b]): (usize, &[usize; 2])| {
        let (from, to) = (places.get(a)?, places.get(b)?);
        let same = |other: &&[usize; 2]| [[a, b], [b, a]].contains(other);
        let earlier = links.iter().take(at).filter(same).count();
        let height = ARC * (from.x - to.x).abs() + PARALLEL * earlier as f64;
        (from.tier == to.tier).then_some(height)
    };
    links.iter().enumerate().map(arc).collect()
}

/// Sets the vertical places. Returns the height of the picture.
fn place_rows(
    links: &[[usize; 2]],
    arcs: &[Option<f64>],
    places: &mut [Place],
    (tiers, stretch): (usize, f64),
) -> f64 {
    let mut y = 0.0;
    for tier in (0..tiers).rev() {
        let is_own = |node: usize| places.get(node).is_some_and(|place| place.tier == tier);
        let own = links.iter().zip(arcs).filter(|(link, _)| is_own(link[0]));
        y += own.filter_map(|(_, arc)| Some((*arc)? + ABOVE)).fold(0.0, f64::max);
        places.iter_mut().filter(|place| place.tier == tier).for_each(|place| place.top = y);
        y += NODE_HEIGHT;
        if tier > 0 {
            y += if tier == 1 { HOST_DISTANCE } else { TIER_DISTANCE } * stretch;
        }
    }
    y
}

/// The curve of each link. Links leave a node beside each other, in the order of their far ends, so
/// that they do not cross there.
fn curves(links: &[[usize; 2]], arcs: &[Option<f64>], places: &[Place]) -> Vec<Curve> {
    let ports = ports(links, arcs, places);
    let point = |link: usize, end: usize| ports.get(&(link, end)).copied().unwrap_or_default();
    let curve = |(at, arc): (usize, &Option<f64>)| {
        let (from, to) = (point(at, 0), point(at, 1));
        // The curve reaches half the height of its control point.
        let height = 2.0 * arc.unwrap_or_default();
        Curve([from, ((from.0 + to.0) / 2.0, (from.1 + to.1) / 2.0 - height), to])
    };
    arcs.iter().enumerate().map(curve).collect()
}

/// A link at a node: what it is sorted by, its index, and its end.
type Port = ([f64; 2], usize, usize);

/// Where each link meets its nodes, by the index of the link and its end.
fn ports(
    links: &[[usize; 2]],
    arcs: &[Option<f64>],
    places: &[Place],
) -> BTreeMap<(usize, usize), Point> {
    // For each node and side (up or not).
    let mut sides: BTreeMap<(usize, bool), Vec<Port>> = BTreeMap::new();
    for (at, (&[a, b], arc)) in links.iter().zip(arcs).enumerate() {
        for (end, (near, far)) in [(a, b), (b, a)].into_iter().enumerate() {
            let (Some(here), Some(there)) = (places.get(near), places.get(far)) else { continue };
            // Arcs to the left, straight lines, arcs to the right. The highest arc is outside.
            let side = (there.x - here.x).signum();
            let key = arc.map_or([0.0, there.x], |height| [side, side / height]);
            sides.entry((near, there.tier >= here.tier)).or_default().push((key, at, end));
        }
    }
    let mut ports = BTreeMap::new();
    for ((node, up), mut own) in sides {
        own.sort_by(|(a, ..), (b, ..)| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
        let Some(place) = places.get(node) else { continue };
        let last = own.len().saturating_sub(1) as f64;
        let step = if last > 0.0 { PORT.min((place.width - 16.0) / last) } else { 0.0 };
        for (index, (_, link, end)) in own.into_iter().enumerate() {
            let x = place.x + (index as f64 - last / 2.0) * step;
            ports.insert((link, end), (x, place.top + if up { 0.0 } else { NODE_HEIGHT }));
        }
    }
    ports
}
