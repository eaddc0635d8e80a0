//! Parses `stages` and `healthcheck` of a node.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_norway::Value;

use super::value::{
    Result, expected, fields, number, seconds, sequence, string, unsupported, words,
};
use crate::model::{Healthcheck, Stage, StageSettings};

pub(super) fn stages(place: &str, value: &Value) -> Result<BTreeMap<Stage, StageSettings>> {
    let mut stages = BTreeMap::new();
    for (name, value) in fields(place, value)? {
        let place = format!("{place}.{name}");
        let mut settings = StageSettings::default();
        for (key, value) in fields(&place, value)? {
            let place = format!("{place}.{key}");
            match key {
                "wait-for" => {
                    for value in sequence(&place, value)? {
                        settings.wait_for.push(wait_for(&place, value)?);
                    }
                }
                "exec" => exec(&place, value, &mut settings)?,
                _ => return Err(unsupported(&place, "")),
            }
        }
        stages.insert(stage(&place, name)?, settings);
    }
    Ok(stages)
}

fn stage(place: &str, name: &str) -> Result<Stage> {
    Stage::named(name)
        .ok_or_else(|| expected(place, "create, create-links, configure, healthy or exit"))
}

fn wait_for(place: &str, value: &Value) -> Result<(String, Stage)> {
    let (mut node, mut waited) = (None, None);
    for (key, value) in fields(place, value)? {
        let place = format!("{place}.{key}");
        match key {
            "node" => node = Some(string(&place, value)?),
            "stage" => waited = Some(stage(&place, &string(&place, value)?)?),
            _ => return Err(unsupported(&place, "")),
        }
    }
    node.zip(waited).ok_or_else(|| expected(place, "node and stage"))
}

/// Parses commands: lists by phase, or a list of mappings with a command and its phase.
fn exec(place: &str, value: &Value, settings: &mut StageSettings) -> Result<()> {
    let mut push = |place: &str, phase: &str, text: &str| {
        let command = words(place, text)?;
        match phase {
            "on-enter" => settings.on_enter.push(command),
            "on-exit" => settings.on_exit.push(command),
            _ => return Err(expected(place, "on-enter or on-exit")),
        }
        Ok(())
    };
    if let Some(commands) = value.as_sequence() {
        for value in commands {
            let (mut command, mut phase) = (None, None);
            for (key, value) in fields(place, value)? {
                let text = string(&format!("{place}.{key}"), value)?;
                match (key, text.as_str()) {
                    ("command", _) => command = Some(text),
                    ("phase", _) => phase = Some(text),
                    ("target", "container") => {}
                    ("target", _) => {
                        let why = "lab runs nothing outside of the nodes; run it before or after 'lab up'";
                        return Err(unsupported(&format!("{place}.target: {text}"), why));
                    }
                    _ => return Err(unsupported(&format!("{place}.{key}"), "")),
                }
            }
            let command = command.ok_or_else(|| expected(place, "a command"))?;
            push(place, phase.as_deref().unwrap_or("on-enter"), &command)?;
        }
        return Ok(());
    }
    for (phase, value) in fields(place, value)? {
        for value in sequence(place, value)? {
            push(place, phase, &string(place, value)?)?;
        }
    }
    Ok(())
}

/// Parses a health check. The format and the defaults are Docker's.
pub(super) fn healthcheck(place: &str, value: &Value) -> Result<Healthcheck> {
    let mut check = Healthcheck::default();
    for (key, value) in fields(place, value)? {
        let place = format!("{place}.{key}");
        let time = || seconds(&place, value).map(Duration::from_secs);
        let is_set = |time: &Duration| !time.is_zero();
        match key {
            "test" => {
                let test: Vec<String> = sequence(&place, value)?
                    .iter()
                    .map(|word| string(&place, word))
                    .collect::<Result<_>>()?;
                check.test = match test.split_first() {
                    Some((form, words)) if form == "CMD" && !words.is_empty() => words.to_vec(),
                    Some((form, [text])) if form == "CMD-SHELL" => {
                        vec!["sh".to_owned(), "-c".to_owned(), text.clone()]
                    }
                    _ => return Err(expected(&place, "CMD and words, or CMD-SHELL and a line")),
                };
            }
            // 0 means Docker's own value.
            "interval" => check.interval = Some(time()?).filter(is_set).unwrap_or(check.interval),
            "timeout" => check.timeout = Some(time()?).filter(is_set).unwrap_or(check.timeout),
            "start-period" => check.start_period = time()?,
            "retries" => check.retries = number(&place, value)?,
            _ => return Err(unsupported(&place, "")),
        }
    }
    if check.test.is_empty() {
        return Err(expected(place, "a test"));
    }
    Ok(check)
}
