//! `lab plot`: draws columns of the tables of results.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use experiment::figure::{CDF, Csv, Figure};
use experiment::plot::Size;

use crate::output::{Outcome, write};
use crate::results_arguments::Plot;

/// The tables that are looked at first, and last, for the columns.
const FIRST: [&str; 4] = ["runs.csv", QUEUE_PAIRS, "timeline.csv", "iterations.csv"];
/// A distribution is over queue pairs, if they have the column.
const QUEUE_PAIRS: &str = "queue-pairs.csv";
const LAST: &str = "summary.csv";
/// The program that makes PDF of SVG, and Debian's package of it.
const CONVERTER: (&str, &str) = ("rsvg-convert", "librsvg2-bin");

pub(super) fn run(arguments: &Plot) -> Outcome {
    let figure = Figure {
        x: arguments.x.clone(),
        y: arguments.y.clone(),
        series: Some(arguments.series.clone()),
        only: arguments.only.clone(),
        logarithmic: (arguments.log_x, arguments.log_y),
        titles: (arguments.x_title.clone(), arguments.y_title.clone()),
    };
    let mut tables = tables(&arguments.directory, arguments.table.as_deref())?;
    if arguments.y == CDF {
        tables.sort_by_key(|table| table.name() != QUEUE_PAIRS);
    }
    let chart = figure.chart(&tables)?;
    let svg = chart.file(if arguments.wide { Size::Page } else { Size::Column });
    if let Some(path) = &arguments.svg {
        write(path, svg.as_bytes())?;
    }
    if let Some(path) = &arguments.pdf {
        write(path, &pdf(&svg)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The tables of a directory, or the one with this name.
fn tables(directory: &Path, only: Option<&str>) -> Result<Vec<Csv>, Box<dyn Error>> {
    let failed = |path: &Path, error: &dyn Error| format!("{}: {error}", path.display());
    let entries = std::fs::read_dir(directory).map_err(|error| failed(directory, &error))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".csv") && only.is_none_or(|only| only == name) {
            names.push(name);
        }
    }
    names.sort_by_key(|name| {
        let first = FIRST.iter().position(|first| first == name).unwrap_or(FIRST.len());
        (name == LAST, first, name.clone())
    });
    if names.is_empty() {
        let name = only.unwrap_or("*.csv");
        return Err(format!("{} has no {name}: see 'lab run'", directory.display()).into());
    }
    let mut tables = Vec::new();
    for name in names {
        let path = directory.join(&name);
        let text = experiment::input::read_text(&path).map_err(|error| failed(&path, &error))?;
        let table = Csv::parse(&name, &text)
            .ok_or_else(|| format!("{} is no table of comma-separated values", path.display()))?;
        tables.push(table);
    }
    Ok(tables)
}

/// Converts the chart. The fonts are in the file then, as publishers require.
fn pdf(svg: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let (program, package) = CONVERTER;
    let started = Command::new(program)
        .args(["--format", "pdf"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = started.map_err(|error| {
        format!(
            "{program} makes the PDF, and cannot be run: {error}; 'apt install {package}', or --svg"
        )
    })?;
    if let Some(mut input) = child.stdin.take() {
        // It reads all of it before it writes. If it ends before, it says why.
        let _ = input.write_all(svg.as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program} cannot make the PDF: {}", said.trim()).into());
    }
    Ok(output.stdout)
}
