//! The text of a traffic matrix, as htsim reads it.
//!
//! ```text
//! Nodes 128
//! Connections 2
//! Triggers 1
//! 0->17 id 1 start 0 size 2000000 send_done_trigger 4
//! 17->3 id 2 trigger 4 size 2000000 prio 1
//! trigger id 4 oneshot
//! ```
//!
//! `start` is in microseconds. A flow with `prio 1` is ordered.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::time::{MICROSECOND, Picos};
use crate::traffic::{Flow, Start};

/// A text that is no traffic matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the traffic matrix: {problem}")]
pub struct MatrixError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what to write.
    pub problem: String,
}

/// A traffic matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    /// The number of hosts.
    pub nodes: u32,
    /// The flows.
    pub flows: Vec<Flow>,
}

fn number<T: std::str::FromStr>(key: &str, word: Option<&str>) -> Result<T, String> {
    let word = word.ok_or_else(|| format!("'{key}' needs a number after it"))?;
    word.parse().map_err(|_| format!("'{key} {word}': use a whole number in range"))
}

/// A time in microseconds, also with a fraction.
fn start(word: Option<&str>) -> Result<Picos, String> {
    let time: Option<f64> = word.and_then(|word| word.parse().ok());
    let time = time.filter(|time| (0.0..1e12).contains(time));
    time.map(|time| (time * MICROSECOND as f64) as Picos)
        .ok_or_else(|| "'start' needs a time in microseconds after it".to_owned())
}

fn flow(line: &str, ends: (&str, &str)) -> Result<Flow, String> {
    let ends = (number("", Some(ends.0))?, number("->", Some(ends.1))?);
    let mut flow = Flow::new(0, ends, 0);
    let mut words = line.split_whitespace().skip(1);
    while let Some(key) = words.next() {
        match key {
            "id" => flow.id = number(key, words.next())?,
            "start" => flow.start = Start::At(start(words.next())?),
            "size" => flow.bytes = number(key, words.next())?,
            "trigger" => flow.start = Start::On(number(key, words.next())?),
            "send_done_trigger" => flow.fires = Some(number(key, words.next())?),
            "prio" => flow.ordered = number::<u32>(key, words.next())? > 0,
            _ => {
                return Err(format!(
                    "'{key}' is not supported: use id, start, size, trigger, send_done_trigger \
                     and prio"
                ));
            }
        }
    }
    match flow {
        Flow { bytes: 0, .. } => Err("the flow has no size: write 'size BYTES'".into()),
        Flow { source, target, .. } if source == target => {
            Err("the flow leads from a host to itself".into())
        }
        _ => Ok(flow),
    }
}

impl Matrix {
    /// Reads a matrix.
    ///
    /// # Errors
    /// [`MatrixError`] with the line.
    pub fn parse(text: &str) -> Result<Self, MatrixError> {
        let mut matrix = Self { nodes: 0, flows: Vec::new() };
        for (line, text) in (1..).zip(text.lines()) {
            let error = |problem: String| MatrixError { line, problem };
            let mut words = text.split_whitespace();
            let Some(first) = words.next() else { continue };
            match (first, first.split_once("->")) {
                (_, Some(ends)) => matrix.flows.push(flow(text, ends).map_err(error)?),
                ("Nodes", _) => matrix.nodes = number(first, words.next()).map_err(error)?,
                // The lines tell their number; a trigger is what flows name.
                ("Connections" | "Triggers", _) => {}
                ("trigger", _) => match words.nth(2) {
                    Some("oneshot") => {}
                    kind => {
                        let kind = kind.unwrap_or_default();
                        return Err(error(format!(
                            "a trigger '{kind}' is not supported: use 'trigger id N oneshot'"
                        )));
                    }
                },
                _ if first.starts_with('#') => {}
                _ => {
                    return Err(error(format!(
                        "'{first}' is not supported: use Nodes, Connections, Triggers, trigger \
                         and 'a->b'"
                    )));
                }
            }
        }
        matrix.check()?;
        Ok(matrix)
    }

    /// Numbers must be in range, and triggers must fire.
    fn check(&self) -> Result<(), MatrixError> {
        let fired: BTreeSet<u32> = self.flows.iter().filter_map(|flow| flow.fires).collect();
        let problem = self.flows.iter().find_map(|flow| match flow.start {
            _ if flow.source.max(flow.target) >= self.nodes => {
                Some(format!("flow {} names a host beyond the {} of 'Nodes'", flow.id, self.nodes))
            }
            Start::On(trigger) if !fired.contains(&trigger) => {
                Some(format!("no flow fires trigger {trigger}, for which flow {} waits", flow.id))
            }
            _ => None,
        });
        problem.map_or(Ok(()), |problem| Err(MatrixError { line: 0, problem }))
    }

    /// The text of a matrix.
    #[must_use]
    pub fn text(&self) -> String {
        let triggers: Vec<u32> = self.flows.iter().filter_map(|flow| flow.fires).collect();
        let mut text = format!("Nodes {}\nConnections {}\n", self.nodes, self.flows.len());
        // Writing into a string cannot fail.
        let mut line = |arguments: std::fmt::Arguments<'_>| {
            let _ = writeln!(text, "{arguments}");
        };
        if !triggers.is_empty() {
            line(format_args!("Triggers {}", triggers.len()));
        }
        for flow in &self.flows {
            let Flow { id, source, target, bytes, .. } = flow;
            let start = match flow.start {
                Start::At(time) => format!("start {}", time as f64 / MICROSECOND as f64),
                Start::On(trigger) => format!("trigger {trigger}"),
            };
            let fires = flow.fires.map(|trigger| format!(" send_done_trigger {trigger}"));
            let prio = if flow.ordered { " prio 1" } else { "" };
            line(format_args!(
                "{source}->{target} id {id} {start} size {bytes}{prio}{}",
                fires.unwrap_or_default()
            ));
        }
        for trigger in triggers {
            line(format_args!("trigger id {trigger} oneshot"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic;

    #[test]
    fn a_matrix_survives_its_text() {
        for flows in [
            traffic::permutation(16, 1, 4000, 0.25),
            traffic::incast(16, 1, 4000, 4, true),
            traffic::ring(16, 1, 4000, 8),
            traffic::all_to_all(16, 1, 4000, 8, 2),
        ] {
            let matrix = Matrix { nodes: 16, flows };
            assert_eq!(Matrix::parse(&matrix.text()), Ok(matrix));
        }
    }

    #[test]
    fn wrong_lines_are_named() {
        for (text, line, word) in [
            ("Nodes 4\n0->1 id 1 start 0", 2, "size"),
            ("Nodes 4\n0->9 id 1 start 0 size 5", 0, "Nodes"),
            ("Nodes 4\n\n0->0 id 1 start 0 size 5", 3, "itself"),
            ("Nodes 4\n0->1 id 1 trigger 7 size 5", 0, "trigger 7"),
            ("Nodes 4\n0->1 id 1 start x size 5", 2, "microseconds"),
            ("Nodes 4\n0->1 id 1 colour 3 size 5", 2, "colour"),
            ("Nodes x", 1, "whole number"),
            ("failure switch_id 3", 1, "failure"),
            ("Nodes 4\ntrigger id 1 barrier", 2, "'barrier' is not supported"),
            ("Nodes 4\ntrigger id 1", 2, "oneshot"),
        ] {
            let error = Matrix::parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.problem.contains(word), "{error}");
        }
    }
}
