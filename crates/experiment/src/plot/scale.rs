//! Where values are drawn.

use super::{Axis, Chart, FONT, Kind};

/// The place of the axes.
const LEFT: f64 = 74.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 48.0;
/// Values on the axis get a tick each, if there are not more.
const EACH: usize = 8;
/// The smallest distance between the texts of two ticks.
const DISTANCE: f64 = 8.0;
/// The width of a letter as a part of the text size, on average.
pub(super) const LETTER: f64 = 0.56;

/// The scale of a chart.
pub(super) struct Scale {
    size: (f64, f64),
    x: Range,
    /// The number of names; `None` if the axis has numbers.
    names: Option<usize>,
    /// The distance of values on the horizontal axis, for bars.
    place: f64,
    y: Range,
    x_ticks: Vec<(f64, String)>,
    y_ticks: Vec<(f64, String)>,
}

/// The values between the ends of an axis.
#[derive(Clone, Copy)]
struct Range {
    least: f64,
    most: f64,
    logarithmic: bool,
}

impl Range {
    /// The place of a value between the ends, 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let place = |value: f64| if self.logarithmic { value.max(1e-9).ln() } else { value };
        let width = place(self.most) - place(self.least);
        let share = (place(value) - place(self.least)) / width;
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.5 }
    }
}

impl Scale {
    pub(super) fn new(chart: &Chart, size: (f64, f64)) -> Self {
        let marks = chart.series.iter().flat_map(|series| &series.points);
        let ends = marks.clone().map(|mark| mark.ends().map_or(mark.y, |[_, end]| end));
        let most = ends.fold(chart.bottom, f64::max);
        let y_ticks = ticks(chart.bottom, most, chart.logarithmic);
        let top = y_ticks.last().copied().unwrap_or(1.0);
        let y = Range { least: chart.bottom, most: top, logarithmic: chart.logarithmic };
        let mut values: Vec<f64> = marks.map(|mark| mark.x).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let logarithmic = chart.x == Axis::Logarithmic;
        if logarithmic {
            values.retain(|value| *value > 0.0);
        }
        let (first, last) = (values.first().copied(), values.last().copied());
        let (least, most) = (first.unwrap_or_default(), last.unwrap_or(1.0));
        let x = Range { least, most, logarithmic };
        let mut scale = Self {
            size,
            x,
            names: None,
            place: 0.0,
            y,
            x_ticks: Vec::new(),
            y_ticks: y_ticks.into_iter().map(|tick| (tick, label(tick))).collect(),
        };
        let width = scale.right() - scale.left();
        match &chart.x {
            Axis::Names(names) => {
                scale.names = Some(names.len().max(1));
                scale.place = width / names.len().max(1) as f64;
                scale.x_ticks =
                    names.iter().enumerate().map(|(at, name)| (at as f64, name.clone())).collect();
            }
            Axis::Numbers | Axis::Logarithmic => {
                scale.place = width / (values.len() + 1) as f64;
                let each = values.len() <= EACH && chart.kind != Kind::Curves;
                let ticks = if each { values } else { inner_ticks(x) };
                scale.x_ticks = scale.without_overlap(ticks);
            }
        }
        scale
    }

    /// Leaves out the ticks whose text would lie on that of the one before.
    fn without_overlap(&self, ticks: Vec<f64>) -> Vec<(f64, String)> {
        let mut kept: Vec<(f64, String)> = Vec::new();
        let mut end = f64::NEG_INFINITY;
        for tick in ticks {
            let (text, x) = (label(tick), self.x(tick));
            let half = text.len() as f64 * FONT * LETTER / 2.0;
            if x - half >= end {
                end = x + half + DISTANCE;
                kept.push((tick, text));
            }
        }
        kept
    }

    pub(super) const fn left(&self) -> f64 {
        LEFT
    }

    pub(super) const fn right(&self) -> f64 {
        self.size.0 - RIGHT
    }

    pub(super) const fn top(&self) -> f64 {
        TOP
    }

    pub(super) const fn bottom(&self) -> f64 {
        self.size.1 - BOTTOM
    }

    /// The distance of values on the horizontal axis.
    pub(super) const fn place(&self) -> f64 {
        self.place
    }

    pub(super) fn x(&self, value: f64) -> f64 {
        let width = self.right() - self.left();
        match self.names {
            Some(all) => self.left() + width * (value + 0.5) / all as f64,
            // The marks of the ends are not on the edge.
            None => self.left() + 10.0 + (width - 20.0) * self.x.share(value),
        }
    }

    pub(super) fn y(&self, value: f64) -> f64 {
        self.top() + (self.bottom() - self.top()) * (1.0 - self.y.share(value))
    }

    pub(super) fn x_ticks(&self) -> &[(f64, String)] {
        &self.x_ticks
    }

    pub(super) fn y_ticks(&self) -> &[(f64, String)] {
        &self.y_ticks
    }

    /// The style of a name that is too long for its place.
    pub(super) fn smaller(&self, name: &str) -> Option<String> {
        let width = name.chars().count() as f64 * FONT * LETTER;
        let share = self.place / width.max(1.0);
        (self.names.is_some() && share < 1.0)
            .then(|| format!("font-size:{:.1}px", (FONT * share).max(5.0)))
    }
}

/// Round values from the bottom of an axis to beyond `most`.
fn ticks(bottom: f64, most: f64, logarithmic: bool) -> Vec<f64> {
    if logarithmic {
        let powers = (0..12).map(|power| bottom * 10_f64.powi(power));
        let below = powers.clone().take_while(|power| *power < most).count().max(1);
        return powers.take(below + 1).collect();
    }
    let step = step((most - bottom).max(1e-9) / 5.0);
    let count = ((most - bottom) / step - 1e-9).ceil().max(1.0) as usize;
    (0..=count).map(|at| bottom + step * at as f64).collect()
}

/// Round values within a range.
fn inner_ticks(range: Range) -> Vec<f64> {
    let Range { least, most, logarithmic } = range;
    if logarithmic {
        let first = least.max(1e-9).log10().floor() as i32;
        let of = |factors: &[f64]| -> Vec<f64> {
            let powers = (first..first + 15).map(|power| 10_f64.powi(power));
            let all = powers.flat_map(|power| factors.iter().map(move |factor| factor * power));
            all.filter(|value| (least..=most).contains(value)).collect()
        };
        let few = of(&[1.0, 2.0, 5.0]);
        // A narrow range may have none of them.
        return if few.len() > 2 {
            few
        } else {
            of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
        };
    }
    let step = step((most - least).max(1e-9) / 5.0);
    let first = (least / step).ceil();
    let values = (0..12).map(|at| (first + f64::from(at)) * step);
    values.take_while(|value| *value <= most).collect()
}

/// A round step that is not smaller.
fn step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= least * 0.999).unwrap_or(10.0 * power)
}

fn label(value: f64) -> String {
    let text = format!("{:.3}", value + 0.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
