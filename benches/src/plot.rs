//! Draws rows as an SVG file with one panel for each benchmark and unit.
//!
//! Cases that begin with a number, such as "1000 MACs", are points over that number. The rest of
//! the name identifies the line. Other cases are bars, for vtepd and, if measured, the kernel.

use std::fmt::Write as _;

use crate::table::{Report, Row};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 230.0;
const PLOT: f64 = WIDTH - LEFT - 90.0;
const BAR: f64 = 16.0;
const LINES: f64 = 240.0;
const COLOURS: [&str; 6] = ["#0b6aa2", "#d1495b", "#2e8b57", "#b8860b", "#6a4c93", "#444444"];
const KERNEL: &str = "#aaaaaa";

/// Draws all rows, one panel below the other.
#[must_use]
pub fn svg(report: &Report) -> String {
    let mut body = String::new();
    let mut y = 60.0;
    for rows in panels(&report.rows) {
        y += panel(&mut body, y, &rows) + 40.0;
    }
    let machine = escape(&report.machine);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"24\" fill=\"#555\">{machine}</text>\n{body}</svg>\n"
    )
}

/// Groups rows by benchmark and unit, in the order of their first row.
fn panels(rows: &[Row]) -> Vec<Vec<&Row>> {
    let mut panels: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        let alike = |panel: &&mut Vec<&Row>| {
            panel
                .first()
                .is_some_and(|first| (&first.bench, &first.unit) == (&row.bench, &row.unit))
        };
        match panels.iter_mut().find(alike) {
            Some(panel) => panel.push(row),
            None => panels.push(vec![row]),
        }
    }
    panels
}

/// Draws a panel at `y` and returns its height.
fn panel(body: &mut String, y: f64, rows: &[&Row]) -> f64 {
    let Some(first) = rows.first() else { return 0.0 };
    let title = escape(&format!("{}, {}", first.bench, first.unit));
    let _ = writeln!(
        body,
        "<text x=\"12\" y=\"{y:.1}\" font-size=\"15\" font-weight=\"bold\">{title}</text>"
    );
    let figures = rows
        .iter()
        .flat_map(|row| [Some(row.vtepd), row.kernel, row.target.filter(|_| row.ratio.is_none())]);
    let top = figures.flatten().filter(|figure| figure.is_finite()).fold(0.0, f64::max).max(1e-9);
    let lines = series(rows);
    let drawn = if lines.is_empty() {
        bars(body, y + 10.0, rows, top)
    } else {
        curves(body, y + 10.0, &lines, top)
    };
    drawn + 10.0
}

/// The lines with their names and points; empty if the rows are not points of lines.
fn series<'a>(rows: &[&'a Row]) -> Vec<(&'a str, Vec<(f64, f64)>)> {
    let mut lines: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for row in rows {
        let Some((number, name)) = row.case.split_once(' ') else { return Vec::new() };
        let Ok(number) = number.parse::<f64>() else { return Vec::new() };
        match lines.iter_mut().find(|(other, _)| *other == name) {
            Some((_, points)) => points.push((number, row.vtepd)),
            None => lines.push((name, vec![(number, row.vtepd)])),
        }
    }
    // A line needs more than two points.
    if lines.iter().all(|(_, points)| points.len() > 2) { lines } else { Vec::new() }
}

fn bars(body: &mut String, y: f64, rows: &[&Row], top: f64) -> f64 {
    let scale = PLOT / top;
    let mut at = y;
    for row in rows {
        let mut bar = |at: f64, figure: f64, colour: &str| {
            let (width, text) = ((figure * scale).max(0.0), at + BAR - 6.0);
            let _ = writeln!(
                body,
                "<rect x=\"{LEFT}\" y=\"{at:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{text:.1}\" fill=\"#333\">{}</text>",
                BAR - 4.0,
                LEFT + width + 5.0,
                short(figure)
            );
        };
        bar(at, row.vtepd, COLOURS[0]);
        if let Some(kernel) = row.kernel {
            at += BAR - 3.0;
            bar(at, kernel, KERNEL);
        }
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            at + BAR - 6.0,
            escape(&row.case)
        );
        if let Some(target) = row.target.filter(|_| row.ratio.is_none()) {
            let x = LEFT + target * scale;
            let _ = writeln!(
                body,
                "<path d=\"M{x:.1} {:.1}v{BAR}\" stroke=\"{}\" stroke-width=\"2\"/>",
                at - 2.0,
                COLOURS[1]
            );
        }
        at += BAR + 2.0;
    }
    let mut note = Vec::new();
    if rows.iter().any(|row| row.kernel.is_some()) {
        note.push("grey: kernel VXLAN");
    }
    if rows.iter().any(|row| row.target.is_some() && row.ratio.is_none()) {
        note.push("red: target");
    }
    let _ = writeln!(
        body,
        "<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#777\">{}</text>",
        at + 10.0,
        note.join(", ")
    );
    at - y + 14.0
}

/// Draws lines over a logarithmic axis.
fn curves(body: &mut String, y: f64, lines: &[(&str, Vec<(f64, f64)>)], top: f64) -> f64 {
    let numbers =
        || lines.iter().flat_map(|(_, points)| points.iter().map(|(number, _)| number.max(1.0)));
    let widest = numbers().fold(10.0, f64::max).log10();
    let left = 60.0;
    let across = |number: f64| left + number.max(1.0).log10() / widest * (WIDTH - left - 140.0);
    let (foot, top) = (y + LINES, top * 1.1);
    let up = |figure: f64| foot - figure / top * LINES;
    for part in 0..=4 {
        let (figure, right) = (top * f64::from(part) / 4.0, across(10f64.powf(widest)));
        let at = up(figure);
        let _ = writeln!(
            body,
            "<path d=\"M{left} {at:.1}H{right:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 6.0,
            at + 4.0,
            short(figure)
        );
    }
    for power in 0..=widest.floor() as i32 {
        let number = 10f64.powi(power);
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{number}</text>",
            across(number),
            foot + 16.0
        );
    }
    for (((name, points), colour), place) in lines.iter().zip(COLOURS.iter().cycle()).zip(0u32..) {
        let path: Vec<_> =
            points.iter().map(|(number, figure)| (across(*number), up(*figure))).collect();
        let way: Vec<_> = path.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            way.join(" ")
        );
        for (x, y) in path {
            let _ =
                writeln!(body, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
            WIDTH - 130.0,
            y + 14.0 + 16.0 * f64::from(place),
            escape(name)
        );
    }
    LINES + 24.0
}

/// Formats a figure with about three digits.
fn short(figure: f64) -> String {
    match figure.abs() {
        large if large >= 100.0 => format!("{figure:.0}"),
        middle if middle >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bench: &str, case: &str, vtepd: f64, kernel: Option<f64>) -> Row {
        let (bench, case, unit) = (bench.into(), case.into(), "ns/frame".into());
        Row { bench, case, unit, vtepd, kernel, ..Row::default() }
    }

    fn drawn(rows: Vec<Row>) -> String {
        svg(&Report { machine: "a <b> & c".into(), commit: None, rows })
    }

    #[test]
    fn numbers_make_lines_and_names_make_bars() {
        let points = [8, 1000, 100_000].map(|n| row("scale", &format!("{n} MACs"), 9.0, None));
        let svg = drawn([points.to_vec(), vec![row("micro", "64 B hot", 5.0, None)]].concat());
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (1, 3));
        // One bar and the background.
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(svg.contains("a &lt;b&gt; &amp; c"), "{svg}");
    }

    #[test]
    fn a_line_of_equal_figures_is_level_and_a_bar_is_as_long_as_its_figure() {
        let points = [1, 10, 100].map(|n| row("scale", &format!("{n} VNIs"), 7.0, None));
        let svg = drawn(points.to_vec());
        let line = svg.lines().find(|line| line.contains("<polyline")).unwrap();
        let heights: Vec<_> = line
            .split('"')
            .nth(1)
            .unwrap()
            .split(' ')
            .map(|at| at.split_once(',').unwrap().1)
            .collect();
        assert!(heights.windows(2).all(|pair| pair[0] == pair[1]), "{heights:?}");
        let svg = drawn(vec![row("system", "net CPU", 50.0, Some(100.0))]);
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains("<rect x="))
            .map(|line| {
                line.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
            })
            .collect();
        assert_eq!(widths.len(), 2);
        assert!((widths[0] * 2.0 - widths[1]).abs() < 0.2, "{widths:?}");
    }
}
