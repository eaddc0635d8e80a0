//! The picture as SVG. Colours are classes with light and dark values, as in the charts of reports.

use maud::{Markup, PreEscaped, html};

use super::layout::{Half, Layout, NODE_HEIGHT};
use super::{Graph, GraphLink, Load, short_rate};

/// The space around the picture, the height of the title, and the least width.
const MARGIN: f64 = 24.0;
const TITLE: f64 = 54.0;
const LEAST_WIDTH: f64 = 680.0;
/// The width of an entry of the legend, and the height of a row.
const ENTRY: f64 = 210.0;
const ROW: f64 = 24.0;
/// The width of a line with the least and with the highest load.
const LEAST: f64 = 1.5;
const MOST: f64 = 8.0;
/// The length of a tip, and the radius of the mark in the middle of a circuit.
const TIP: f64 = 10.0;
pub(super) const CIRCUIT: f64 = 4.5;
/// The number of classes of the load, beside idle.
const CLASSES: u32 = 4;
/// The share of the scale below which a link is idle.
const IDLE: f64 = 0.01;
/// The least end of the scale, in bits per second, so that routing packets alone are no load.
const LEAST_SCALE: f64 = 1e6;
/// Ends of the scale in each power of ten. A quarter of each has two digits.
const SCALES: [f64; 10] = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0];

/// The end of the scale: the first round rate that is not below the highest load.
fn scale(highest: f64) -> f64 {
    let power = 10_f64.powf(highest.log10().floor());
    let steps = SCALES.map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= highest * 0.999_999).unwrap_or(highest)
}

/// The class of a share of the scale: 0 if idle, otherwise the quarter.
fn class(share: f64) -> u32 {
    let quarter = (share * f64::from(CLASSES) - 1e-9).ceil().clamp(1.0, f64::from(CLASSES));
    if share < IDLE { 0 } else { quarter as u32 }
}

/// The width of a line with a load of this share of the scale.
fn width(share: f64) -> f64 {
    round(LEAST + (MOST - LEAST) * share.clamp(0.0, 1.0))
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// The picture as a file.
pub(super) fn svg(graph: &Graph) -> String {
    let layout = Layout::new(graph);
    let loads = graph.links.iter().flat_map(|link| [&link.a_to_b, &link.b_to_a]);
    let scale = scale(loads.map(|load| load.sent_bits_per_second).fold(LEAST_SCALE, f64::max));
    let width = (layout.width + 2.0 * MARGIN).max(LEAST_WIDTH);
    let (left, top) = ((width - layout.width) / 2.0, TITLE + MARGIN);
    let entries = legend(graph, scale);
    let columns = ((width - 2.0 * MARGIN) / ENTRY).floor().max(1.0) as usize;
    let below = top + layout.height + 1.5 * MARGIN;
    let height = below + entries.len().div_ceil(columns) as f64 * ROW + MARGIN / 2.0;
    let title = format!("Fabric {}: load of the links over {} s", graph.fabric, graph.seconds);
    let links = || graph.links.iter().zip(&layout.links);
    let markup = html! {
        svg class="fabric" xmlns="http://www.w3.org/2000/svg"
            viewBox=(format!("0 0 {} {}", round(width), round(height))) role="img" aria-label=(title) {
            title { (title) }
            style { (PreEscaped(include_str!("style.css"))) }
            defs { @for class in 0..=CLASSES { (tip(class)) } }
            rect class="paper" width=(round(width)) height=(round(height)) {}
            text class="title frame" x=(MARGIN) y=(MARGIN + 8.0) { (title) }
            text class="frame" x=(MARGIN) y=(MARGIN + 30.0) { "each half: what its end sends" }
            g transform=(format!("translate({} {})", round(left), round(top))) {
                @for (link, [a, b]) in links() {
                    (direction(link, [&link.a, &link.b], &link.a_to_b, a, scale))
                    (direction(link, [&link.b, &link.a], &link.b_to_a, b, scale))
                }
                @for (link, [Half { middle: (x, y), .. }, _]) in links() {
                    @if let Some(circuit) = &link.circuit {
                        g data-circuit=(link.a) {
                            title { "circuit " (circuit) }
                            circle class="circuit" cx=(round(*x)) cy=(round(*y)) r=(CIRCUIT) {}
                        }
                    }
                }
                @for (name, at) in &layout.nodes {
                    g data-node=(name) {
                        title { (name) }
                        rect class="node" x=(round(at.x - at.width / 2.0)) y=(round(at.top))
                            width=(round(at.width)) height=(NODE_HEIGHT) rx="6" {}
                        text x=(round(at.x)) y=(round(at.top + 19.5)) text-anchor="middle" {
                            (name)
                        }
                    }
                }
            }
            g class="frame" transform=(format!("translate({MARGIN} {})", round(below))) {
                @for (at, (sample, text)) in entries.iter().enumerate() {
                    @let (x, y) = ((at % columns) as f64 * ENTRY, (at / columns) as f64 * ROW);
                    g transform=(format!("translate({x} {y})")) {
                        (sample)
                        text x="38" y="4.5" { (text) }
                    }
                }
            }
        }
    };
    markup.into_string() + "\n"
}

/// The tip of the lines of a class.
fn tip(class: u32) -> Markup {
    let half = 2.0 + 0.75 * width(f64::from(class) / f64::from(CLASSES));
    html! {
        marker id=(format!("tip{class}")) class=(format!("l{class}")) orient="auto"
            markerUnits="userSpaceOnUse" markerWidth=(TIP) markerHeight="16" refX="0.5" refY="8" {
            path class="tip" d=(format!("M0 {}L{TIP} 8L0 {}z", 8.0 - half, 8.0 + half)) {}
        }
    }
}

/// A line with the class, tip, and width of a load of this share of the scale.
fn line(share: f64, path: &str) -> Markup {
    html! {
        path class="load" stroke-width=(width(share)) d=(path)
            marker-end=(format!("url(#tip{})", class(share))) {}
    }
}

/// One direction of a link: a line from its end to the middle, and the rate.
fn direction(
    link: &GraphLink,
    [from, to]: [&str; 2],
    load: &Load,
    half: &Half<'_>,
    scale: f64,
) -> Markup {
    let share = load.sent_bits_per_second / scale;
    let gap = TIP + if link.circuit.is_some() { CIRCUIT + 2.0 } else { 0.5 };
    let rate = short_rate(load.sent_bits_per_second);
    html! {
        g class=[link.up.then(|| format!("l{}", class(share)))] data-from=(from) data-to=(to) {
            title { (described(link, [from, to], load)) }
            @if link.up {
                (line(share, &half.path(gap)))
            } @else {
                path class="down" d=(half.path(0.0)) {}
            }
            path class="hit" d=(half.path(0.0)) {}
        }
        g data-rate-from=(from) data-rate-to=(to) {
            rect class="paper" x=(round(half.x - 15.0)) y=(round(half.rate - 7.5))
                width="30" height="15" {}
            text class="rate" x=(round(half.x)) y=(round(half.rate + 4.3)) text-anchor="middle" {
                @if link.up { (rate) } @else { "down" }
            }
        }
    }
}

/// What a direction shows when it is pointed at.
fn described(link: &GraphLink, [from, to]: [&str; 2], load: &Load) -> String {
    if !link.up {
        return format!("{from} to {to}: down");
    }
    let mut text = format!(
        "{from} to {to}: {}bit/s sent, {}bit/s received, {} packets/s",
        spaced(load.sent_bits_per_second),
        spaced(load.received_bits_per_second),
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

/// The entries of the legend: a sample, and what it means.
fn legend(graph: &Graph, scale: f64) -> Vec<(Markup, String)> {
    let entry = |class: u32| {
        let share = f64::from(class) / f64::from(CLASSES);
        let text = if class == 0 { ("idle: below", IDLE) } else { ("up to", share) };
        let sample = html! { g class=(format!("l{class}")) { (line(share, "M0 0h20")) } };
        (sample, format!("{} {}bit/s", text.0, spaced(text.1 * scale)))
    };
    let mut entries: Vec<(Markup, String)> = (0..=CLASSES).map(entry).collect();
    if graph.links.iter().any(|link| link.circuit.is_some()) {
        let sample = html! { circle class="circuit" cx="15" r=(CIRCUIT) {} };
        entries.push((sample, "circuit of lab wan".to_owned()));
    }
    if graph.links.iter().any(|link| !link.up) {
        entries.push((html! { path class="down" d="M0 0h30" {} }, "down".to_owned()));
    }
    entries
}

/// A rate with a space before its unit.
fn spaced(rate: f64) -> String {
    let short = short_rate(rate);
    let digits = short.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    format!("{digits} {}", short.trim_start_matches(digits))
}
