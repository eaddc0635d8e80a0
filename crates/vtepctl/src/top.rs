//! `vtepctl top`: figures and events on a terminal, with keys for changes.
//!
//! - [`sample`]: answers of vtepd at one time, and the figures of two such samples
//! - [`model`]: the state of the screen
//! - [`keys`]: what each key does
//! - [`view`]: the screen as text; [`csv`]: its paths and queue pairs as comma-separated values
//! - [`link`]: the connection to vtepd
//! - [`terminal`]: the terminal

mod csv;
#[cfg(test)]
mod fixtures;
mod keys;
mod link;
mod model;
mod sample;
mod terminal;
mod view;

use std::io::{self, BufWriter, Write};

use api::{Address, v1};
use serde::Serialize;

use crate::arguments::{Output, Top};
use crate::output::{Failure, json};
use model::Screen;
use sample::Figures;

/// What `-o json` prints.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    figures: &'a Figures,
    events: Vec<&'a v1::Event>,
}

/// Shows the screen, or prints it once.
///
/// # Errors
/// Without a terminal unless it prints once; when printing, without a vtepd; when the output cannot
/// be written.
pub(crate) async fn run(top: Top, address: &Address, output: Output) -> Result<(), Failure> {
    if !top.once {
        check(output, terminal::is_there()).map_err(|text| Failure::Input(text.to_owned()))?;
        return terminal::show(address, top.interval).await;
    }
    let mut screen = Screen::default();
    let updates = link::once(address, top.interval).await?;
    updates.into_iter().for_each(|update| screen.apply(update));
    let mut out = BufWriter::new(io::stdout().lock());
    match (output, &screen.figures) {
        (Output::Json, Some(figures)) => {
            json(&mut out, &Report { figures, events: screen.events.iter().collect() })?;
        }
        (Output::Table, Some(figures)) if top.csv => csv::table(figures).write_csv(&mut out)?,
        _ => {
            let width = top.width.or_else(|| size("COLUMNS")).unwrap_or(80);
            let height = top.height.or_else(|| size("LINES")).unwrap_or(24);
            out.write_all(view::as_text(&screen, width, height).as_bytes())?;
        }
    }
    Ok(out.flush()?)
}

/// Whether the screen can be shown without `--once`.
const fn check(output: Output, is_terminal: bool) -> Result<(), &'static str> {
    match (output, is_terminal) {
        (Output::Json, _) => Err("JSON is printed once: add --once"),
        (Output::Table, false) => {
            Err("there is no terminal: print one screen with --once, or ask for the state with \
             `vtepctl status`")
        }
        (Output::Table, true) => Ok(()),
    }
}

/// A size in columns or lines from the environment.
fn size(variable: &str) -> Option<u16> {
    let number: u16 = std::env::var(variable).ok()?.parse().ok()?;
    (1..=1000).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_the_error_says_what_to_do() {
        assert!(check(Output::Table, true).is_ok());
        assert!(check(Output::Table, false).unwrap_err().contains("--once"));
        assert!(check(Output::Json, true).unwrap_err().contains("--once"));
    }

    /// Scripts depend on the names.
    #[test]
    fn the_names_of_the_json_stay() {
        let mut screen = Screen::default();
        let sample = fixtures::sample(std::time::Instant::now(), 0);
        screen.apply(model::Update::Sample(Box::new(sample)));
        let figures = screen.figures.as_ref().unwrap();
        let report = serde_json::to_value(Report { figures, events: Vec::new() }).unwrap();
        let mut names: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names.join(" "),
            "datapaths decapsulated dropped_per_second encapsulated events \
             kernel_packets_per_second leaf next_hops paths pid queue_pairs ready seconds \
             uptime_seconds version vnis warnings"
        );
    }
}
