//! Where the rates are written, so that no two overlap and none covers a node.

use super::layout::{Curve, Layout, NODE_HEIGHT, Point};

/// The height of a label, and the width of a character.
const HEIGHT: f64 = 15.0;
const CHARACTER: f64 = 7.2;
/// The places that are tried for a rate, as shares of the way from the sending end.
const SHARES: [f64; 7] = [0.28, 0.22, 0.34, 0.17, 0.39, 0.13, 0.43];
/// The places that are tried for the word that a link is down.
const DOWN_SHARES: [f64; 7] = [0.5, 0.4, 0.6, 0.33, 0.67, 0.25, 0.75];
/// The word.
pub(super) const DOWN: &str = "down";
/// The radius of the mark in the middle of a circuit.
pub(super) const CIRCUIT: f64 = 4.5;

/// A label on one half of a link, or on a link that is down.
#[derive(Debug, Clone)]
pub(super) struct Label {
    /// The link, from the end that the label belongs to.
    pub(super) curve: Curve,
    pub(super) text: String,
}

/// A rectangle: its middle, and half its size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area {
    pub(super) middle: Point,
    pub(super) half: (f64, f64),
}

impl Area {
    /// The area of a label at this point.
    pub(super) fn of(text: &str, middle: Point) -> Self {
        let width = CHARACTER * text.chars().count() as f64 + 4.0;
        Self { middle, half: (width / 2.0, HEIGHT / 2.0) }
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        (self.middle.0 - other.middle.0).abs() < self.half.0 + other.half.0
            && (self.middle.1 - other.middle.1).abs() < self.half.1 + other.half.1
    }
}

/// The areas of all nodes.
pub(super) fn areas(layout: &Layout) -> Vec<Area> {
    let area = |place: &super::layout::Place| Area {
        middle: (place.x, place.top + NODE_HEIGHT / 2.0),
        half: (place.width / 2.0, NODE_HEIGHT / 2.0),
    };
    layout.nodes.iter().map(area).collect()
}

/// The area of the mark in the middle of a circuit.
pub(super) fn mark(curve: &Curve) -> Area {
    Area { middle: curve.at(0.5), half: (CIRCUIT, CIRCUIT) }
}

/// The place of each label; earlier ones are placed first. `None` where there is no room. `marks`
/// are areas that stay free, beside those of nodes.
pub(super) fn place(labels: &[Label], layout: &Layout, marks: &[Area]) -> Vec<Option<Point>> {
    let mut taken = areas(layout);
    taken.extend(marks);
    let place = |label: &Label| {
        let shares = if label.text == DOWN { &DOWN_SHARES } else { &SHARES };
        let areas = shares.iter().map(|share| Area::of(&label.text, label.curve.at(*share)));
        let free =
            areas.into_iter().find(|area| !taken.iter().any(|other| area.overlaps(other)))?;
        taken.push(free);
        Some(free.middle)
    };
    labels.iter().map(place).collect()
}
