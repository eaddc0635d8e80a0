//! Where the nodes and links of a picture are, in pixels. Hosts are at the bottom.
//!
//! A link leaves its nodes straight up or down. Its rates stand there, and the links of a node are
//! so far apart that no two overlap. Between two tiers, it then turns to the other end; within a
//! tier, it is an arch.

use std::collections::BTreeMap;

use super::{Graph, GraphNode};

/// The height of a node, and the least distance between nodes.
pub(super) const NODE_HEIGHT: f64 = 30.0;
const GAP: f64 = 36.0;
/// The distance between tiers, and what it grows by the width of a link.
const DISTANCE: f64 = 150.0;
const SLOPE: f64 = 0.22;
/// The space around an arch, and its height by its width.
const SPACE: f64 = 66.0;
const ARCH: f64 = 0.2;
/// The share of its height over which a link between tiers turns, and an arch.
const TURN: f64 = 0.35;
const ARCH_TURN: f64 = 0.7;

/// A node: its middle, its upper edge, its width, and its share of the width of its tier.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    pub(super) x: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    share: f64,
    tier: usize,
}

/// Half of a link: straight from its node at `port` to `foot`, then a curve around `corner` to the
/// middle.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Half<'a> {
    node: &'a str,
    pub(super) x: f64,
    pub(super) port: f64,
    pub(super) rate: f64,
    pub(super) foot: f64,
    corner: f64,
    pub(super) middle: (f64, f64),
}

impl Half<'_> {
    /// The line as an SVG path that ends so far before the middle.
    pub(super) fn path(&self, gap: f64) -> String {
        let Self { x, port, foot, corner, middle, .. } = *self;
        let (dx, dy) = (middle.0 - x, middle.1 - corner);
        let share = 1.0 - gap / dx.hypot(dy).max(gap + 1.0);
        let end = format!("{:.1} {:.1}", x + dx * share, corner + dy * share);
        format!("M{x:.1} {port:.1}V{foot:.1}Q{x:.1} {corner:.1} {end}")
    }
}

/// The places of the nodes by name, and of the links. The upper left corner is (0, 0).
#[derive(Debug, Clone, Default)]
pub(super) struct Layout<'a> {
    pub(super) nodes: BTreeMap<&'a str, Place>,
    pub(super) links: Vec<[Half<'a>; 2]>,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl<'a> Layout<'a> {
    pub(super) fn new(graph: &'a Graph) -> Self {
        let node =
            |node: &'a GraphNode| (&*node.name, Place { tier: node.tier, ..Place::default() });
        let half = |end: &'a String| {
            let node = end.split(':').next().unwrap_or_default();
            Half { node, ..Half::default() }
        };
        let mut layout = Self {
            nodes: graph.nodes.iter().map(node).collect(),
            links: graph.links.iter().map(|link| [&link.a, &link.b].map(half)).collect(),
            ..Self::default()
        };
        layout.set_order();
        layout.set_ports();
        layout.set_rows();
        layout
    }

    fn node(&self, name: &str) -> Place {
        self.nodes.get(name).copied().unwrap_or_default()
    }

    /// Sets the order of the nodes of each tier, from 0 to 1: leaves by name, others by what they
    /// are connected to. A node has a share of its tier by the number of links below it.
    fn set_order(&mut self) {
        let top = self.nodes.values().map(|node| node.tier).max().unwrap_or_default();
        for tier in [1, 0].into_iter().chain(2..=top) {
            let order = |name: &&'a str| {
                let ends = self.links.iter().flat_map(|[a, b]| [(a, b), (b, a)]);
                let far = ends.filter(|(near, _)| near.node == *name).map(|(_, far)| far.node);
                let far: Vec<Place> = far.map(|far| self.node(far)).collect();
                let below = far.iter().filter(|far| far.tier < tier).count().max(1) as f64;
                let placed = || far.iter().filter(|far| far.share > 0.0).map(|far| far.x);
                let mean = placed().sum::<f64>() / placed().count().max(1) as f64;
                ((mean * 1e6).round() as u64, *name, below)
            };
            let own = self.nodes.iter().filter(|(_, node)| node.tier == tier);
            let mut own: Vec<(u64, &str, f64)> = own.map(|(name, _)| order(name)).collect();
            own.sort_by_key(|&(mean, name, _)| (mean, natural(name)));
            let all: f64 = own.iter().map(|(.., below)| below).sum();
            let mut x = 0.0;
            for (_, name, below) in own {
                let Some(node) = self.nodes.get_mut(name) else { continue };
                node.share = below / all;
                node.x = x + node.share / 2.0;
                x += node.share;
            }
        }
    }

    /// Sets all that is horizontal, and heights of links below the upper edges of their nodes.
    fn set_ports(&mut self) {
        // By node and side (up or down): what a link is sorted by, its index, and its end.
        let mut sides = BTreeMap::<(&str, bool), Vec<_>>::new();
        for (at, [a, b]) in self.links.iter().enumerate() {
            for (end, (near, far)) in [(a, b), (b, a)].into_iter().enumerate() {
                let (here, there) = (self.node(near.node), self.node(far.node));
                let dx = there.x - here.x;
                // Arches to the left, other links, arches to the right: the widest is inside.
                let arch = dx.signum() * (1.0 + 1.0 / (dx.abs() + 1e-6 * at as f64));
                let key = if here.tier == there.tier { arch } else { dx / 2.0 };
                let side = (near.node, there.tier >= here.tier);
                sides.entry(side).or_default().push((key, at, end));
            }
        }
        for (name, node) in &mut self.nodes {
            let sides = [true, false].map(|side| sides.get(&(*name, side)).map_or(0, Vec::len));
            let sides = sides.map(|links| links as f64 * ports(links).1 + 10.0);
            let text = 8.2 * name.chars().count() as f64 + 22.0;
            node.width = sides.into_iter().fold(text.max(72.0), f64::max);
        }
        // All tiers have the same width.
        let widths = self.nodes.values().map(|node| (node.width + GAP) / node.share);
        self.width = widths.fold(0.0, f64::max);
        self.nodes.values_mut().for_each(|node| node.x *= self.width);
        for ((name, is_up), mut own) in sides {
            own.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (rows, distance) = ports(own.len());
            let (port, way) = if is_up { (0.0, -1.0) } else { (NODE_HEIGHT, 1.0) };
            let y = |row: usize, rest: f64| port + way * (17.0 * row as f64 + rest);
            let left = self.node(name).x - distance * (own.len() - 1) as f64 / 2.0;
            for (index, (_, at, end)) in own.into_iter().enumerate() {
                let half = self.links.get_mut(at).and_then(|link| link.get_mut(end));
                let Some(half) = half else { continue };
                half.x = left + distance * index as f64;
                (half.port, half.rate, half.foot) = (port, y(index % rows, 22.0), y(rows, 13.0));
            }
        }
    }

    /// Sets all that is vertical.
    fn set_rows(&mut self) {
        let tiers = |link: &[Half<'_>; 2]| link.map(|half| self.node(half.node).tier);
        let spans: Vec<([usize; 2], f64)> =
            self.links.iter().map(|link| (tiers(link), (link[0].x - link[1].x).abs())).collect();
        let top = self.nodes.values().map(|node| node.tier).max().unwrap_or_default();
        for tier in (0..=top).rev() {
            let own = spans.iter().filter(|([a, b], _)| *a.max(b) == tier);
            let room = |is_arch, least, slope| {
                let own = own.clone().filter(|([a, b], _)| (a == b) == is_arch);
                own.map(|(_, width)| least + slope * width).fold(0.0, f64::max)
            };
            let y = self.height + room(true, SPACE, ARCH);
            let own = self.nodes.values_mut().filter(|node| node.tier == tier);
            own.for_each(|node| node.top = y);
            self.height = y + NODE_HEIGHT + room(false, DISTANCE, SLOPE);
        }
        for (link, ([from, to], width)) in self.links.iter_mut().zip(spans) {
            for half in link.iter_mut() {
                let top = self.nodes.get(half.node).map_or(0.0, |node| node.top);
                for y in [&mut half.port, &mut half.rate, &mut half.foot] {
                    *y += top;
                }
            }
            let [a, b] = *link;
            let arch = (a.foot.min(b.foot) - ARCH * width, ARCH_TURN);
            let straight = (f64::midpoint(a.foot, b.foot), TURN);
            let (y, turn) = if from == to { arch } else { straight };
            for half in link {
                half.corner = half.foot + turn * (y - half.foot);
                half.middle = (f64::midpoint(a.x, b.x), y);
            }
        }
    }
}

/// The rows of rates at a side of a node with so many links, and the distance between links.
const fn ports(links: usize) -> (usize, f64) {
    if links > 4 { (2, 24.0) } else { (1, 46.0) }
}

/// What names are sorted by, so that `leaf2` is before `leaf10`.
pub(super) fn natural(name: &str) -> (&str, Option<u64>, &str) {
    let text = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (text, name.get(text.len()..).and_then(|digits| digits.parse().ok()), name)
}
