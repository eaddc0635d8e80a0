//! Charts of `lab plan` as SVG: parts of iterations, timelines, heat maps.

use maud::{Markup, html};
use planner::iteration::Span;
use planner::order::Kind;
use planner::plan::Boundary;

use super::{Outcome, Point, report};

/// The style of the page and its charts. Colours are classes.
pub(super) const STYLE: &str = include_str!("style.css");

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 60.0;
const ROW: f64 = 22.0;
/// More operations than this are not drawn: a browser would be slow.
const MOST: usize = 20_000;
/// So many operations of a stage are still wide enough to be told apart.
const WIDE: usize = 60;

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn legend(names: &[&str], y: f64) -> Markup {
    let classes: Vec<String> = (0..names.len()).map(|at| format!("s{at}")).collect();
    let both = classes.iter().zip(names).map(|(class, name)| (class.as_str(), (*name).to_owned()));
    colours(&both.collect::<Vec<_>>(), y)
}

/// A legend: the classes of colours, and what they mean.
fn colours(meanings: &[(&str, String)], y: f64) -> Markup {
    html! {
        @for (at, (class, meaning)) in meanings.iter().enumerate() {
            @let x = LEFT + 120.0 * at as f64;
            rect class=(class) x=(x) y=(y - 10.0) width="12" height="12" {}
            text x=(x + 16.0) y=(y) { (meaning) }
        }
    }
}

fn frame(title: &str, height: f64, content: &Markup) -> Markup {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {height}"))
            role="img" aria-label=(title) {
            title { (title) }
            (content)
        }
    }
}

/// The parts of each plan's iteration, one behind the other.
pub(super) fn parts(outcome: &Outcome) -> Markup {
    let plans = &outcome.found.plans;
    let longest = plans.iter().map(|plan| plan.iteration.seconds).fold(0.0, f64::max);
    let scale = (WIDTH - LEFT - 10.0) / longest.max(f64::MIN_POSITIVE);
    let names = plans.first().map(|first| report::parts(&first.iteration).map(|part| part.0));
    let height = ROW * (plans.len() as f64 + 1.5);
    let content = html! {
        @for (at, ranked) in plans.iter().enumerate() {
            @let y = ROW * at as f64;
            text x="4" y=(y + 15.0) { (format!("{:.2} s", ranked.iteration.seconds)) }
            @let before = report::parts(&ranked.iteration).into_iter().scan(0.0, |sum, (_, part)| {
                *sum += part.max(0.0);
                Some((*sum - part.max(0.0), part.max(0.0)))
            });
            @for (class, (start, part)) in before.enumerate() {
                rect class=(format!("s{class}")) x=(round(LEFT + scale * start)) y=(y + 2.0)
                    width=(round(scale * part)) height=(ROW - 4.0) {}
            }
        }
        @if let Some(names) = names { (legend(&names, height - 6.0)) }
    };
    frame("Parts of an iteration", height, &content)
}

/// The operations of each stage over time: all, and if they are narrow, the first and the last ones
/// again.
pub(super) fn timeline(spans: &[Span]) -> Markup {
    if spans.len() > MOST {
        return html! { p { (spans.len()) " operations are too many to draw." } };
    }
    let stages = spans.iter().map(|span| span.stage + 1).max().unwrap_or_default();
    let end = spans.iter().map(|span| span.end).fold(f64::MIN_POSITIVE, f64::max);
    let part = end * (WIDE * stages) as f64 / spans.len().max(1) as f64;
    html! {
        (window("Timeline of the stages", spans, 0.0, end))
        @if part < end / 2.0 {
            (window("The beginning", spans, 0.0, part))
            (window("The end", spans, end - part, end))
        }
    }
}

/// What of the operations is between two times.
fn window(title: &str, spans: &[Span], from: f64, to: f64) -> Markup {
    let stages = spans.iter().map(|span| span.stage + 1).max().unwrap_or_default();
    let scale = (WIDTH - LEFT - 10.0) / (to - from);
    let height = ROW * (stages as f64 + 2.5);
    let class = |kind| match kind {
        Kind::Forward => "s0",
        Kind::Backward => "s1",
        Kind::Weight => "s2",
    };
    let content = html! {
        @for stage in 0..stages {
            text x="4" y=(ROW * stage as f64 + 15.0) { "stage " (stage) }
        }
        @for span in spans.iter().filter(|span| span.end > from && span.start < to) {
            @let (start, end) = (span.start.max(from), span.end.min(to));
            rect class=(class(span.operation.kind)) x=(round(LEFT + scale * (start - from)))
                y=(ROW * span.stage as f64 + 2.0)
                width=(round((scale * (end - start) - 0.3).max(0.2))) height=(ROW - 4.0) {
                title { "micro-batch " (span.operation.micro_batch) ", chunk "
                    (span.operation.chunk) }
            }
        }
        text x=(LEFT) y=(ROW * stages as f64 + 16.0) { (seconds(from)) }
        text x=(WIDTH - 10.0) y=(ROW * stages as f64 + 16.0) text-anchor="end" { (seconds(to)) }
        (legend(&["forward", "backward", "weights"], height - 6.0))
    };
    frame(title, height, &content)
}

fn seconds(time: f64) -> String {
    if time > 0.0 { format!("{time:.3} s") } else { "0 s".into() }
}

/// The class of a placement. The colours of those that are compared most are far apart.
fn placement(boundary: Boundary) -> &'static str {
    match boundary {
        Boundary::Data => "cell s0",
        Boundary::Pipeline => "cell s2",
        Boundary::Context => "cell s3",
        Boundary::Expert => "cell s5",
        Boundary::Tensor => "cell s4",
    }
}

/// The placements that win somewhere, with their colours.
fn winners(points: &[Point]) -> Vec<(&'static str, String)> {
    let mut found: Vec<Boundary> =
        points.iter().filter_map(|point| Some(point.best.as_ref()?.plan.boundary)).collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().map(|boundary| (placement(boundary), format!("{boundary}-out"))).collect()
}

/// The fastest placement at each point of a sweep, and its time.
pub(super) fn heat_map(names: &[&str], points: &[Point]) -> Markup {
    let unique = |value: fn(&Point) -> &String| {
        let mut found: Vec<&String> = Vec::new();
        for point in points {
            if !found.contains(&value(point)) {
                found.push(value(point));
            }
        }
        found
    };
    let (columns, rows) = (unique(|point| &point.x), unique(|point| &point.y));
    let (wide, tall) = ((WIDTH - 2.0 * LEFT) / columns.len().max(1) as f64, 2.0 * ROW);
    let height = tall * rows.len() as f64 + 3.0 * ROW;
    let place = |list: &[&String], value: &String| {
        list.iter().position(|known| *known == value).unwrap_or_default() as f64
    };
    let content = html! {
        @for point in points {
            @let (x, y) = (2.0 * LEFT + wide * place(&columns, &point.x), tall * place(&rows, &point.y));
            @if let Some(best) = &point.best {
                rect class=(placement(best.plan.boundary)) x=(round(x)) y=(y)
                    width=(round(wide - 2.0)) height=(tall - 2.0) {
                    title { (best.plan) }
                }
                text x=(round(x + 6.0)) y=(y + 18.0) { (format!("{:.2} s", best.iteration.seconds)) }
                text x=(round(x + 6.0)) y=(y + 34.0) { (best.plan.boundary) "-out, "
                    (best.plan.schedule) }
            }
        }
        @for (at, value) in rows.iter().enumerate() {
            text x="4" y=(tall * at as f64 + 24.0) { (value) }
        }
        @for (at, value) in columns.iter().enumerate() {
            text x=(round(2.0 * LEFT + wide * at as f64 + 6.0)) y=(tall * rows.len() as f64 + 14.0) {
                (value)
            }
        }
        text x="4" y=(height - ROW - 4.0) { (names.join(" (across), ")) " (down)" }
        (colours(&winners(points), height - 6.0))
    };
    frame("The fastest placement", height, &content)
}
