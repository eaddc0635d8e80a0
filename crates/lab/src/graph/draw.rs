//! The picture as SVG. Colours are classes with light and dark values, as in the charts of reports.

use maud::{Markup, PreEscaped, html};

#[cfg(test)]
use super::labels::areas;
use super::labels::{Area, CIRCUIT, DOWN, Label, mark, place};
use super::layout::{Curve, Layout, NODE_HEIGHT, Point};
use super::{Graph, GraphLink, Load, short_rate};

/// The space around the picture, and above it for the title.
const MARGIN: f64 = 24.0;
const TITLE: f64 = 44.0;
/// The least width, for title and legend.
const LEAST_WIDTH: f64 = 680.0;
/// The height of a row of the legend, and the width of an entry.
const ROW: f64 = 24.0;
const ENTRY: f64 = 210.0;
/// The width of a line with the least and with the highest load.
const LEAST: f64 = 1.5;
const MOST: f64 = 8.0;
/// The number of classes of the load, beside idle.
const CLASSES: u32 = 4;
/// The share of the scale below which a link is idle.
const IDLE: f64 = 0.01;
/// The least end of the scale, in bits per second, so that routing packets alone are no load.
const LEAST_SCALE: f64 = 1e6;
/// Ends of the scale in each power of ten. A quarter of each has two digits.
const SCALES: [f64; 9] = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0];
/// The distances that are tried until all labels have room.
const STRETCHES: [f64; 6] = [1.0, 1.15, 1.3, 1.5, 1.8, 2.2];

/// A direction of a link: which way it is drawn, and its load.
struct Half<'a> {
    link: &'a GraphLink,
    from: &'a str,
    to: &'a str,
    load: &'a Load,
    /// The link from the sending end.
    curve: Curve,
}

/// The end of the scale: the first round rate that is not below the highest load.
fn scale(highest: f64) -> f64 {
    let least = highest.max(LEAST_SCALE);
    let power = 10_f64.powf(least.log10().floor());
    let steps = SCALES.into_iter().chain([10.0]).map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= least * 0.999_999).unwrap_or(least)
}

/// The class of a load: 0 if idle, otherwise the quarter of the scale.
fn class(bits_per_second: f64, scale: f64) -> u32 {
    let share = bits_per_second / scale;
    let quarter = (share * f64::from(CLASSES) - 1e-9).ceil().clamp(1.0, f64::from(CLASSES));
    if share < IDLE { 0 } else { quarter as u32 }
}

fn width(bits_per_second: f64, scale: f64) -> f64 {
    LEAST + (MOST - LEAST) * (bits_per_second / scale).clamp(0.0, 1.0)
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn path(curve: &Curve) -> String {
    let [a, c, b] = curve.0.map(|(x, y)| (round(x), round(y)));
    format!("M{} {}Q{} {} {} {}", a.0, a.1, c.0, c.1, b.0, b.1)
}

/// What is where in the picture.
struct Picture<'a> {
    layout: Layout,
    /// The directions of the links that are up, and the place of each rate.
    halves: Vec<Half<'a>>,
    rates: Vec<Option<Point>>,
    /// The links that are down, and the place of the word that says so.
    broken: Vec<(&'a GraphLink, Curve)>,
    words: Vec<Option<Point>>,
}

impl<'a> Picture<'a> {
    /// The picture with the least distances in which all labels have room. With the largest
    /// distances, some may have none.
    fn new(graph: &'a Graph) -> Self {
        let [first, others @ ..] = STRETCHES;
        let mut picture = Self::stretched(graph, first);
        for stretch in others {
            if picture.rates.iter().chain(&picture.words).all(Option::is_some) {
                break;
            }
            picture = Self::stretched(graph, stretch);
        }
        picture
    }

    fn stretched(graph: &'a Graph, stretch: f64) -> Self {
        let nodes: Vec<(&str, usize)> =
            graph.nodes.iter().map(|node| (node.name.as_str(), node.tier)).collect();
        let index = |end: &str| {
            let name = end.split(':').next().unwrap_or_default();
            nodes.iter().position(|(node, _)| *node == name).unwrap_or_default()
        };
        let ends: Vec<[usize; 2]> =
            graph.links.iter().map(|link| [index(&link.a), index(&link.b)]).collect();
        let layout = Layout::new(&nodes, &ends, stretch);
        let mut halves = halves(graph, &layout);
        // Where room is short, the highest loads are labelled.
        let load = |half: &Half<'_>| half.load.sent_bits_per_second;
        halves.sort_by(|a, b| load(b).total_cmp(&load(a)));
        let links = graph.links.iter().zip(&layout.links);
        let broken: Vec<(&GraphLink, Curve)> =
            links.clone().filter(|(link, _)| !link.up).map(|(link, at)| (link, *at)).collect();
        let words = broken.iter().map(|(_, at)| Label { curve: *at, text: DOWN.to_owned() });
        let rates =
            halves.iter().map(|half| Label { curve: half.curve, text: short_rate(load(half)) });
        let labels: Vec<Label> = words.chain(rates).collect();
        let circuits = links.filter(|(link, _)| link.circuit.is_some());
        let marks: Vec<Area> = circuits.map(|(_, curve)| mark(curve)).collect();
        let mut words = place(&labels, &layout, &marks);
        let rates = words.split_off(broken.len());
        Self { layout, halves, rates, broken, words }
    }
}

fn halves<'a>(graph: &'a Graph, layout: &Layout) -> Vec<Half<'a>> {
    let up = graph.links.iter().zip(&layout.links).filter(|(link, _)| link.up);
    let both = up.flat_map(|(link, curve)| {
        let (a, b) = (link.a.as_str(), link.b.as_str());
        let there = Half { link, from: a, to: b, load: &link.a_to_b, curve: *curve };
        let back = Half { link, from: b, to: a, load: &link.b_to_a, curve: curve.reversed() };
        [there, back]
    });
    both.collect()
}

/// The picture as a file.
pub(super) fn svg(graph: &Graph) -> String {
    let picture = Picture::new(graph);
    let layout = &picture.layout;
    let scale = scale(graph.highest());
    let width = (layout.width + 2.0 * MARGIN).max(LEAST_WIDTH);
    let (left, top) = ((width - layout.width) / 2.0, TITLE + MARGIN);
    let entries = legend(graph, scale);
    let columns = ((width - 2.0 * MARGIN) / ENTRY).floor().max(1.0) as usize;
    let rows = entries.len().div_ceil(columns) as f64;
    let below = top + layout.height + 1.5 * MARGIN;
    let height = below + rows * ROW + MARGIN / 2.0;
    let title = format!("Fabric {}: load of the links over {} s", graph.fabric, graph.seconds);
    let markup = html! {
        svg class="fabric" xmlns="http://www.w3.org/2000/svg"
            viewBox=(format!("0 0 {} {}", round(width), round(height))) role="img" aria-label=(title) {
            title { (title) }
            style { (PreEscaped(include_str!("style.css"))) }
            rect class="paper" width=(round(width)) height=(round(height)) {}
            text class="title frame" x=(MARGIN) y=(MARGIN + 8.0) { (title) }
            g transform=(format!("translate({} {})", round(left), round(top))) {
                @for (link, curve) in &picture.broken { (broken(link, curve)) }
                @for half in &picture.halves { (direction(half, scale)) }
                @for (link, curve) in graph.links.iter().zip(&layout.links) {
                    @if link.circuit.is_some() { (circuit(link, curve)) }
                }
                @for (node, at) in graph.nodes.iter().zip(&layout.nodes) {
                    g data-node=(node.name) {
                        title { (node.name) }
                        rect class="node" x=(round(at.x - at.width / 2.0)) y=(round(at.top))
                            width=(round(at.width)) height=(NODE_HEIGHT) rx="6" {}
                        text x=(round(at.x)) y=(round(at.top + 19.5)) text-anchor="middle" {
                            (node.name)
                        }
                    }
                }
                @for (half, at) in picture.halves.iter().zip(&picture.rates) {
                    g data-rate-from=(half.from) data-rate-to=(half.to) {
                        (label(&short_rate(half.load.sent_bits_per_second), *at))
                    }
                }
                @for at in &picture.words { (label(DOWN, *at)) }
            }
            g class="frame" transform=(format!("translate({MARGIN} {})", round(below))) {
                @for (at, entry) in entries.iter().enumerate() {
                    @let (x, y) = ((at % columns) as f64 * ENTRY, (at / columns) as f64 * ROW);
                    g transform=(format!("translate({x} {y})")) { (entry) }
                }
            }
        }
    };
    markup.into_string() + "\n"
}

/// A label on a background that covers the line, if there is room for it.
fn label(text: &str, at: Option<Point>) -> Markup {
    let Some((x, y)) = at else { return html! {} };
    let Area { half, .. } = Area::of(text, (x, y));
    html! {
        rect class="paper" fill-opacity="0.85" x=(round(x - half.0)) y=(round(y - half.1))
            width=(round(2.0 * half.0)) height=(round(2.0 * half.1)) rx="3" {}
        text class="rate" x=(round(x)) y=(round(y + 4.3)) text-anchor="middle" { (text) }
    }
}

/// One direction of a link: a line from its end to the middle, with an arrow.
fn direction(half: &Half<'_>, scale: f64) -> Markup {
    let sent = half.load.sent_bits_per_second;
    let (class, width) = (class(sent, scale), width(sent, scale));
    let length = half.curve.chord().max(1.0);
    let gap = if half.link.circuit.is_some() { CIRCUIT + 2.5 } else { 1.0 };
    let tip = 0.5 - gap / length;
    let base = tip - (4.0 + width) / length;
    let (point, foot) = (half.curve.at(tip), half.curve.at(base));
    let (dx, dy) = (point.0 - foot.0, point.1 - foot.1);
    let side = (2.0 + width * 0.75) / dx.hypot(dy).max(0.1);
    let corners =
        [point, (foot.0 - dy * side, foot.1 + dx * side), (foot.0 + dy * side, foot.1 - dx * side)];
    let corners = corners.map(|(x, y)| format!("{},{}", round(x), round(y))).join(" ");
    html! {
        g class=(format!("l{class}")) data-from=(half.from) data-to=(half.to) {
            title { (described(half)) }
            path class="load" stroke-width=(round(width)) d=(path(&half.curve.until(base))) {}
            polygon class="tip" points=(corners) {}
            path class="hit" d=(path(&half.curve.until(0.5))) {}
        }
    }
}

/// What a direction shows when it is pointed at.
fn described(half: &Half<'_>) -> String {
    let Half { link, from, to, load, .. } = half;
    let long = |rate: f64| format!("{}bit/s", spaced(rate));
    let mut text = format!(
        "{from} to {to}: {} sent, {} received, {} packets/s",
        long(load.sent_bits_per_second),
        long(load.received_bits_per_second),
        load.sent_packets_per_second
    );
    if let Some(name) = &link.circuit {
        text += &format!("; circuit {name}");
    }
    if let Some(properties) = &load.circuit {
        text += &format!(": {properties}");
    }
    text
}

/// A link that is down.
fn broken(link: &GraphLink, curve: &Curve) -> Markup {
    html! {
        g {
            title { (link.a) " to " (link.b) ": down" }
            path class="down" d=(path(curve)) {}
            path class="hit" d=(path(curve)) {}
        }
    }
}

/// The mark in the middle of a circuit.
fn circuit(link: &GraphLink, curve: &Curve) -> Markup {
    let (x, y) = curve.at(0.5);
    html! {
        g data-circuit=(link.a) {
            title { "circuit " (link.circuit.as_deref().unwrap_or_default()) }
            circle class="circuit" cx=(round(x)) cy=(round(y)) r=(CIRCUIT) {}
        }
    }
}

/// The entries of the legend.
fn legend(graph: &Graph, scale: f64) -> Vec<Markup> {
    let line = |class: u32, text: String| {
        let share = f64::from(class) / f64::from(CLASSES);
        html! {
            g class=(format!("l{class}")) {
                path class="load" stroke-width=(round(width(share * scale, scale))) d="M0 0h30" {}
            }
            text x="38" y="4.5" { (text) }
        }
    };
    let mut entries = vec![line(0, format!("idle: below {}bit/s", spaced(IDLE * scale)))];
    for class in 1..=CLASSES {
        let end = scale * f64::from(class) / f64::from(CLASSES);
        entries.push(line(class, format!("up to {}bit/s", spaced(end))));
    }
    entries.push(html! {
        text y="4.5" { "each half: what its end sends" }
    });
    if graph.links.iter().any(|link| link.circuit.is_some()) {
        entries.push(html! {
            circle class="circuit" cx="15" cy="0" r=(CIRCUIT) {}
            text x="38" y="4.5" { "circuit of lab wan" }
        });
    }
    if graph.links.iter().any(|link| !link.up) {
        entries.push(html! {
            path class="down" d="M0 0h30" {}
            text x="38" y="4.5" { "down" }
        });
    }
    entries
}

/// A rate with a space before its unit.
fn spaced(rate: f64) -> String {
    let short = short_rate(rate);
    let digits = short.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    format!("{digits} {}", short.trim_start_matches(digits))
}

/// The areas of nodes and rates of a picture that overlap, and the labels without room, for tests.
#[cfg(test)]
pub(super) fn overlaps(graph: &Graph) -> Vec<String> {
    let picture = Picture::new(graph);
    let rates = picture
        .halves
        .iter()
        .zip(&picture.rates)
        .map(|(half, at)| (half.from, short_rate(half.load.sent_bits_per_second), *at));
    let words = picture.broken.iter().zip(&picture.words);
    let words = words.map(|((link, _), at)| (link.a.as_str(), DOWN.to_owned(), *at));
    let circuits = graph.links.iter().zip(&picture.layout.links);
    let circuits = circuits.filter_map(|(link, curve)| Some((link.circuit.clone()?, mark(curve))));
    let nodes = graph.nodes.iter().map(|node| node.name.clone()).zip(areas(&picture.layout));
    let mut all: Vec<(String, Area)> = nodes.chain(circuits).collect();
    let mut found = Vec::new();
    for (end, text, at) in rates.chain(words) {
        match at {
            Some(at) => all.push((format!("{end} {text}"), Area::of(&text, at))),
            None => found.push(format!("{end} has no room")),
        }
    }
    for (at, (name, area)) in all.iter().enumerate() {
        let others = all.iter().skip(at + 1).filter(|(_, other)| area.overlaps(other));
        found.extend(others.map(|(other, _)| format!("{name} and {other}")));
    }
    found
}
