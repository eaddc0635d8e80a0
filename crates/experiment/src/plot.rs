//! Charts as SVG.
//!
//! Colours and lines are presentation attributes, which every converter understands. Their classes
//! let a page with a dark background choose other colours ([`STYLE`]). In print without colours,
//! series still differ: by marker and dashes, bars by how dark they are.

mod scale;

use maud::{Markup, html};

use scale::{LETTER, Scale};

/// The height of a line of the legend, and the width of one of its entries without the name.
const LEGEND: f64 = 22.0;
const ENTRY: f64 = 46.0;
/// The size of the text.
const FONT: f64 = 13.0;
/// The colours of series, and those of text and grid.
const COLOURS: [&str; 6] = ["#6b7280", "#b45309", "#1d4ed8", "#047857", "#a21caf", "#be123c"];
const INK: &str = "#1c2430";
const GRID: &str = "#d5dae1";
/// The dashes of lines, and the opacity of bars.
const DASHES: [&str; 6] = ["none", "8 3", "3 3", "10 3 3 3", "1.5 3", "6 2 1.5 2"];
const OPACITIES: [f64; 6] = [1.0, 0.3, 0.75, 0.15, 0.55, 0.0];
/// The share of its place on the axis that a group of bars takes.
const GROUP: f64 = 0.8;

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
    /// The horizontal axis.
    pub x: Axis,
    /// The value at the bottom of the vertical axis.
    pub bottom: f64,
    /// Whether the vertical axis is logarithmic. Its bottom must be above 0.
    pub logarithmic: bool,
    /// How the values are drawn.
    pub kind: Kind,
    /// The series.
    pub series: Vec<Series>,
}

/// The horizontal axis.
#[derive(Debug, Clone, PartialEq)]
pub enum Axis {
    /// Values at equal distances. [`Mark::x`] is the index.
    Names(Vec<String>),
    /// Numbers, to scale.
    Numbers,
    /// Numbers above 0 on a logarithmic scale.
    Logarithmic,
}

/// How values are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Markers with lines between them.
    Lines,
    /// Bars beside each other.
    Bars,
    /// Lines without markers: of many values.
    Curves,
}

/// A line of a chart, or its bars of one colour.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The values, in the order of the horizontal axis.
    pub points: Vec<Mark>,
    /// Whether it is an expected value: dashed, without markers.
    pub reference: bool,
}

/// A value of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark {
    /// The place on the horizontal axis.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// Half the width of its interval.
    pub half: f64,
}

impl Mark {
    /// The values at the names of an axis, with half the width of their intervals.
    pub fn at_names(values: impl IntoIterator<Item = Option<(f64, f64)>>) -> Vec<Self> {
        let mark = |(at, value): (usize, Option<(f64, f64)>)| {
            value.map(|(y, half)| Self { x: at as f64, y, half })
        };
        values.into_iter().enumerate().filter_map(mark).collect()
    }

    /// The ends of its interval, if it has one.
    fn ends(&self) -> Option<[f64; 2]> {
        let drawn = self.half.is_finite() && self.half > 0.0;
        drawn.then_some([self.y - self.half, self.y + self.half])
    }
}

/// The size of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// As wide as the text of a page.
    Page,
    /// As wide as a column of a paper with two: 241 pt, with text of 8 pt.
    Column,
}

impl Size {
    /// The size without the legend.
    const fn area(self) -> (f64, f64) {
        match self {
            Self::Page => (720.0, 320.0),
            Self::Column => (390.0, 260.0),
        }
    }
}

impl Chart {
    /// The chart as an element of an HTML page that has [`STYLE`].
    #[must_use]
    pub fn element(&self) -> Markup {
        self.draw(Size::Page, None)
    }

    /// The chart as a file of its own.
    #[must_use]
    pub fn file(&self, size: Size) -> String {
        let width = match size {
            Size::Page => "720",
            Size::Column => "241pt",
        };
        self.draw(size, Some(width)).into_string()
    }

    fn draw(&self, size: Size, width: Option<&str>) -> Markup {
        let scale = Scale::new(self, size.area());
        let (whole, height) = size.area();
        let names = self.series.iter().map(|series| series.name.chars().count());
        let entry = ENTRY + names.max().unwrap_or_default() as f64 * FONT * LETTER;
        let columns = ((whole - scale.left()) / entry).floor().max(1.0) as usize;
        let legend = self.series.len().div_ceil(columns) as f64 * LEGEND;
        let view = format!("0 0 {whole} {}", height + legend);
        let middle = (scale.left() + scale.right()) / 2.0;
        let turned = format!("translate(16 {}) rotate(-90)", (scale.top() + scale.bottom()) / 2.0);
        html! {
            svg class="chart" xmlns="http://www.w3.org/2000/svg" width=[width] viewBox=(view)
                role="img" aria-label=(self.title) font-size=(FONT) fill=(INK)
                font-family="Helvetica, Arial, sans-serif" {
                title { (self.title) }
                @for (tick, text) in scale.y_ticks() {
                    @let y = round(scale.y(*tick));
                    line class="grid" stroke=(GRID) x1=(scale.left()) x2=(scale.right()) y1=(y)
                        y2=(y) {}
                    text x=(scale.left() - 8.0) y=(y + 4.0) text-anchor="end" { (text) }
                }
                @for (tick, text) in scale.x_ticks() {
                    @let (x, y) = (round(scale.x(*tick)), scale.bottom() + 20.0);
                    text x=(x) y=(y) text-anchor="middle" style=[scale.smaller(text)] { (text) }
                }
                text x=(round(middle)) y=(height - 8.0) text-anchor="middle" { (self.x_title) }
                text transform=(turned) text-anchor="middle" { (self.y_title) }
                @for (at, series) in self.series.iter().enumerate() {
                    (self.series(series, at, &scale))
                    @let (column, row) = (at % columns, at / columns);
                    @let x = round(scale.left() + column as f64 * entry);
                    (self.entry(series, at, (x, height + row as f64 * LEGEND + 8.0)))
                }
            }
        }
    }

    /// A series with its intervals.
    fn series(&self, series: &Series, at: usize, scale: &Scale) -> Markup {
        match (self.kind, series.reference) {
            (Kind::Bars, false) => self.bars(series, at, scale),
            (Kind::Bars, true) => ticks(series, scale),
            _ => self.line(series, at, scale),
        }
    }

    /// The line of a series with its markers. Over names, series are moved sideways a little, so that
    /// equal values stay visible.
    fn line(&self, series: &Series, at: usize, scale: &Scale) -> Markup {
        let moved = matches!(self.x, Axis::Names(_)) && !series.reference;
        let shift =
            if moved { (at as f64 - (self.series.len() as f64 - 1.0) / 2.0) * 5.0 } else { 0.0 };
        let place = |mark: &Mark| (round(scale.x(mark.x) + shift), round(scale.y(mark.y)));
        let path: Vec<String> = series
            .points
            .iter()
            .map(|mark| {
                let (x, y) = place(mark);
                format!("{x},{y}")
            })
            .collect();
        let (width, dashes) = stroke(series, at);
        html! {
            g class=(class(series, at)) color=(colour(series, at)) {
                polyline class="line" fill="none" stroke="currentColor" stroke-width=(width)
                    stroke-dasharray=(dashes) points=(path.join(" ")) {}
                @if !series.reference && self.kind == Kind::Lines {
                    @for mark in &series.points {
                        @let (x, y) = place(mark);
                        (interval(mark, x, scale, "currentColor"))
                        (marker(at, x, y))
                    }
                }
            }
        }
    }

    /// The bars of a series.
    fn bars(&self, series: &Series, at: usize, scale: &Scale) -> Markup {
        let own = self.series.iter().filter(|series| !series.reference).count().max(1) as f64;
        let before = self.series.iter().take(at).filter(|series| !series.reference).count();
        let width = scale.place() * GROUP / own;
        let left =
            |mark: &Mark| scale.x(mark.x) - scale.place() * GROUP / 2.0 + width * before as f64;
        let opacity = OPACITIES.get(at % OPACITIES.len()).copied().unwrap_or(1.0);
        html! {
            g class=(class(series, at)) color=(colour(series, at)) {
                @for mark in &series.points {
                    @let y = scale.y(mark.y);
                    rect x=(round(left(mark) + 1.0)) y=(round(y)) width=(round(width - 2.0))
                        height=(round(scale.bottom() - y)) fill="currentColor"
                        fill-opacity=(opacity) stroke="currentColor" {}
                    g class="interval" color=(INK) {
                        (interval(mark, round(left(mark) + width / 2.0), scale, "currentColor"))
                    }
                }
            }
        }
    }

    /// The entry of a series in the legend, at this place.
    fn entry(&self, series: &Series, at: usize, (x, y): (f64, f64)) -> Markup {
        let (width, dashes) = stroke(series, at);
        let opacity = OPACITIES.get(at % OPACITIES.len()).copied().unwrap_or(1.0);
        html! {
            g class=(class(series, at)) color=(colour(series, at)) {
                @if self.kind == Kind::Bars && !series.reference {
                    rect x=(x) y=(y - 6.0) width="24" height="12" fill="currentColor"
                        fill-opacity=(opacity) stroke="currentColor" {}
                } @else {
                    line class="line" stroke="currentColor" stroke-width=(width)
                        stroke-dasharray=(dashes) x1=(x) x2=(x + 24.0) y1=(y) y2=(y) {}
                    @if self.kind == Kind::Lines && !series.reference {
                        (marker(at, x + 12.0, y))
                    }
                }
                text x=(x + 30.0) y=(y + 4.0) { (series.name) }
            }
        }
    }
}

/// Expected values above bars: a dashed line across each group.
fn ticks(series: &Series, scale: &Scale) -> Markup {
    let half = scale.place() / 2.0;
    html! {
        g class="reference" color=(INK) {
            @for mark in &series.points {
                @let (x, y) = (scale.x(mark.x), round(scale.y(mark.y)));
                line class="line" stroke="currentColor" stroke-width="1.5" stroke-dasharray="5 4"
                    x1=(round(x - half)) x2=(round(x + half)) y1=(y) y2=(y) {}
            }
        }
    }
}

fn interval(mark: &Mark, x: f64, scale: &Scale, colour: &str) -> Markup {
    html! {
        @if let Some(ends) = mark.ends() {
            @let ends = ends.map(|end| round(scale.y(end)));
            line class="line" stroke=(colour) stroke-width="1.5" x1=(x) x2=(x) y1=(ends[0])
                y2=(ends[1]) {}
        }
    }
}

pub(crate) fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn class(series: &Series, at: usize) -> String {
    if series.reference { "reference".to_owned() } else { format!("s{}", at % COLOURS.len()) }
}

fn colour(series: &Series, at: usize) -> &'static str {
    if series.reference { INK } else { COLOURS.get(at % COLOURS.len()).copied().unwrap_or(INK) }
}

/// The width and the dashes of the line of a series.
fn stroke(series: &Series, at: usize) -> (f64, &'static str) {
    if series.reference {
        return (1.5, "5 4");
    }
    (2.0, DASHES.get(at % DASHES.len()).copied().unwrap_or("none"))
}

/// The corners of markers, from their middle.
const TRIANGLE: [(f64, f64); 3] = [(0.0, -5.5), (5.0, 4.0), (-5.0, 4.0)];
const DIAMOND: [(f64, f64); 4] = [(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)];

fn marker(at: usize, x: f64, y: f64) -> Markup {
    let polygon = |points: &[(f64, f64)]| {
        let points = points.iter().map(|(dx, dy)| format!("{},{}", round(x + dx), round(y + dy)));
        points.collect::<Vec<_>>().join(" ")
    };
    let (left, top) = (round(x - 4.0), round(y - 4.0));
    html! {
        g class="mark" fill="currentColor" {
            @match at % 4 {
                0 => circle cx=(x) cy=(y) r="4.5" {},
                1 => rect x=(left) y=(top) width="8" height="8" {},
                2 => polygon points=(polygon(&TRIANGLE)) {},
                _ => polygon points=(polygon(&DIAMOND)) {},
            }
        }
    }
}

#[cfg(test)]
mod tests;
