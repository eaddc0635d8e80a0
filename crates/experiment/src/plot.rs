//! Line charts as SVG.
//!
//! Colours are classes, so that a page or a viewer with a dark background gets other ones. Series
//! also differ by marker.

use maud::{Markup, html};

/// The size of a chart without its legend.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 320.0;
/// The place of the axes.
const LEFT: f64 = 76.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 48.0;
/// The height of a line of the legend, and the width of one of its entries.
const LEGEND: f64 = 22.0;
const ENTRY: f64 = 170.0;
/// The number of colours and of markers.
const STYLES: usize = 6;

/// The classes of a chart: colours on light and dark backgrounds.
pub const STYLE: &str = include_str!("plot/style.css");

/// A chart of measured values over the values of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// What the chart shows, for readers who cannot see it.
    pub title: String,
    /// The title of the horizontal axis.
    pub x_title: String,
    /// The title of the vertical axis.
    pub y_title: String,
    /// The values of the horizontal axis, at equal distances.
    pub x: Vec<String>,
    /// The value at the bottom of the vertical axis.
    pub bottom: f64,
    /// Whether the vertical axis is logarithmic. Its bottom must be above 0.
    pub logarithmic: bool,
    /// Whether the values of the horizontal axis have an order, so that lines join them.
    pub joined: bool,
    /// The series.
    pub series: Vec<Series>,
}

/// A line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// A value and half the width of its interval for each value of the horizontal axis.
    pub points: Vec<Option<(f64, f64)>>,
    /// Whether it is an expected value: dashed, without markers.
    pub reference: bool,
}

/// The scale of a chart.
struct Scale {
    steps: usize,
    bottom: f64,
    top: f64,
    logarithmic: bool,
}

impl Scale {
    fn x(&self, at: usize) -> f64 {
        let width = WIDTH - LEFT - RIGHT;
        LEFT + width * (at as f64 + 0.5) / self.steps.max(1) as f64
    }

    fn y(&self, value: f64) -> f64 {
        let height = HEIGHT - TOP - BOTTOM;
        let place = |value: f64| if self.logarithmic { value.max(1e-9).ln() } else { value };
        let share = (place(value) - place(self.bottom)) / (place(self.top) - place(self.bottom));
        TOP + height * (1.0 - share.clamp(0.0, 1.0))
    }
}

impl Chart {
    /// The chart as an element of an HTML page that has [`STYLE`].
    #[must_use]
    pub fn element(&self) -> Markup {
        self.draw(false)
    }

    /// The chart as a file of its own.
    #[must_use]
    pub fn file(&self) -> String {
        self.draw(true).into_string()
    }

    fn scale(&self) -> (Scale, Vec<f64>) {
        let values = self.series.iter().flat_map(|series| series.points.iter().flatten());
        let ends = values.map(|(value, half)| value + if half.is_finite() { *half } else { 0.0 });
        let most = ends.fold(self.bottom, f64::max);
        if self.logarithmic {
            let powers = (0..12).map(|power| self.bottom * 10_f64.powi(power));
            let below = powers.clone().take_while(|power| *power < most).count().max(1);
            let ticks: Vec<f64> = powers.take(below + 1).collect();
            return (self.scaled(&ticks), ticks);
        }
        let step = step((most - self.bottom).max(1e-9) / 5.0);
        let count = ((most - self.bottom) / step - 1e-9).ceil().max(1.0) as usize;
        let ticks: Vec<f64> = (0..=count).map(|at| self.bottom + step * at as f64).collect();
        (self.scaled(&ticks), ticks)
    }

    fn scaled(&self, ticks: &[f64]) -> Scale {
        let top = ticks.last().copied().unwrap_or(1.0);
        let Self { bottom, logarithmic, .. } = *self;
        Scale { steps: self.x.len(), bottom, top, logarithmic }
    }

    fn draw(&self, own_file: bool) -> Markup {
        let (scale, ticks) = self.scale();
        let columns = ((WIDTH - LEFT) / ENTRY).floor().max(1.0) as usize;
        let legend = self.series.len().div_ceil(columns) as f64 * LEGEND;
        let view = format!("0 0 {WIDTH} {}", HEIGHT + legend);
        let turned = format!("translate(16 {}) rotate(-90)", (TOP + HEIGHT - BOTTOM) / 2.0);
        html! {
            svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox=(view) role="img"
                aria-label=(self.title) {
                title { (self.title) }
                @if own_file { style { (maud::PreEscaped(STYLE)) } }
                @for tick in &ticks {
                    @let y = round(scale.y(*tick));
                    line class="grid" x1=(LEFT) x2=(WIDTH - RIGHT) y1=(y) y2=(y) {}
                    text x=(LEFT - 8.0) y=(y + 4.0) text-anchor="end" { (label(*tick)) }
                }
                @for (at, text) in self.x.iter().enumerate() {
                    @let (x, y) = (round(scale.x(at)), HEIGHT - BOTTOM + 20.0);
                    text x=(x) y=(y) text-anchor="middle" { (text) }
                }
                @let (x, y) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0);
                text x=(x) y=(y) text-anchor="middle" { (self.x_title) }
                text transform=(turned) text-anchor="middle" { (self.y_title) }
                @for (at, series) in self.series.iter().enumerate() {
                    (line(series, at, &scale, (self.series.len(), self.joined)))
                    (entry(series, at, columns))
                }
            }
        }
    }
}

/// A round step that is not smaller.
fn step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= least * 0.999).unwrap_or(10.0 * power)
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn label(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn class(series: &Series, at: usize) -> String {
    if series.reference { "reference".to_owned() } else { format!("s{}", at % STYLES) }
}

/// The line of a series with its markers and intervals. Series are moved sideways a little, so that
/// equal values stay visible.
fn line(series: &Series, at: usize, scale: &Scale, (all, joined): (usize, bool)) -> Markup {
    let distance = if joined { 5.0 } else { 14.0 };
    let shift =
        if series.reference { 0.0 } else { (at as f64 - (all as f64 - 1.0) / 2.0) * distance };
    let place = |(x, point): (usize, &Option<(f64, f64)>)| {
        point.map(|(value, half)| (round(scale.x(x) + shift), value, half))
    };
    let points: Vec<(f64, f64, f64)> = series.points.iter().enumerate().filter_map(place).collect();
    let path: Vec<String> =
        points.iter().map(|(x, value, _)| format!("{x},{}", round(scale.y(*value)))).collect();
    let dashed = if series.reference { "line dashed" } else { "line" };
    html! {
        g class=(class(series, at)) {
            @if joined { polyline class=(dashed) points=(path.join(" ")) {} }
            @if !series.reference {
                @for (x, value, half) in &points {
                    @if half.is_finite() && *half > 0.0 {
                        @let ends = [value - half, value + half].map(|end| round(scale.y(end)));
                        line class="line" x1=(x) x2=(x) y1=(ends[0]) y2=(ends[1]) {}
                    }
                    (marker(at, *x, round(scale.y(*value))))
                }
            }
        }
    }
}

fn entry(series: &Series, at: usize, columns: usize) -> Markup {
    let (column, row) = (at % columns, at / columns);
    let (x, y) = (LEFT + column as f64 * ENTRY, HEIGHT + row as f64 * LEGEND + 8.0);
    let dashed = if series.reference { "line dashed" } else { "line" };
    html! {
        g class=(class(series, at)) {
            line class=(dashed) x1=(x) x2=(x + 24.0) y1=(y) y2=(y) {}
            @if !series.reference { (marker(at, x + 12.0, y)) }
            text x=(x + 30.0) y=(y + 4.0) { (series.name) }
        }
    }
}

/// The corners of markers, from their middle.
const TRIANGLE: [(f64, f64); 3] = [(0.0, -5.5), (5.0, 4.0), (-5.0, 4.0)];
const DIAMOND: [(f64, f64); 4] = [(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)];

fn marker(at: usize, x: f64, y: f64) -> Markup {
    let polygon = |points: &[(f64, f64)]| {
        let points = points.iter().map(|(dx, dy)| format!("{},{}", round(x + dx), round(y + dy)));
        points.collect::<Vec<_>>().join(" ")
    };
    html! {
        @match at % 4 {
            0 => circle class="mark" cx=(x) cy=(y) r="4.5" {},
            1 => rect class="mark" x=(round(x - 4.0)) y=(round(y - 4.0)) width="8" height="8" {},
            2 => polygon class="mark" points=(polygon(&TRIANGLE)) {},
            _ => polygon class="mark" points=(polygon(&DIAMOND)) {},
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(value: f64) -> Chart {
        let series = |name: &str, reference| Series {
            name: name.into(),
            points: vec![Some((1.5, 0.25)), None, Some((value, f64::INFINITY))],
            reference,
        };
        Chart {
            title: "a < b".into(),
            x_title: "queue pairs".into(),
            y_title: "MMR".into(),
            x: ["4", "8", "16"].map(str::to_owned).into(),
            bottom: 1.0,
            logarithmic: false,
            joined: true,
            series: vec![series("kernel", false), series("expected", true)],
        }
    }

    #[test]
    fn the_axis_has_round_steps_and_holds_all_values() {
        for (value, ticks) in [
            (4.0, vec![1.0, 2.0, 3.0, 4.0]),
            (1.74, vec![1.0, 1.2, 1.4, 1.6, 1.8]),
            (1.1, vec![1.0, 1.2, 1.4, 1.6, 1.8]),
            (23.0, vec![1.0, 6.0, 11.0, 16.0, 21.0, 26.0]),
        ] {
            let (_, found) = chart(value).scale();
            let near = found.iter().zip(&ticks).all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(near && found.len() == ticks.len(), "{value}: {found:?}");
        }
        let powers = Chart { logarithmic: true, ..chart(150.0) };
        let (scale, found) = powers.scale();
        assert_eq!(found, [1.0, 10.0, 100.0, 1000.0]);
        assert!((scale.y(10.0) - scale.y(100.0) - (scale.y(1.0) - scale.y(10.0))).abs() < 1e-9);
        let mut flat = chart(1.0);
        flat.series.clear();
        assert_eq!(flat.scale().1.len(), 2, "a chart without values has an axis, too");
    }

    #[test]
    fn a_file_has_its_colours_and_an_element_does_not() {
        let (file, element) = (chart(4.0).file(), chart(4.0).element().into_string());
        assert!(file.contains("--c0") && !element.contains("--c0"));
        assert!(file.contains("a &lt; b") && file.contains("class=\"line dashed\""));
        // Two markers with one interval, and one in the legend.
        assert_eq!(element.matches("<circle").count(), 3);
        assert!(!file.contains("NaN") && !file.contains("inf"), "{file}");
    }
}
