//! The cases of a file: each combination of the values that it varies.

use std::path::Path;

use toml::{Table, Value};

use super::{File, FileError};

/// The most cases of a file.
const CASES: usize = 10_000;
/// The most bytes of the texts of all cases together, each as long as the file.
const BYTES: usize = 64 << 20;
/// The most runs: each variant and seed of each case.
const RUNS: u128 = 1_000_000;

/// A case: the file with one value of each list of `[sweep]`.
#[derive(Debug, Clone)]
pub struct Case {
    /// The file's name and the varied values, such as `spraying/traffic.0.bytes=2000000`.
    pub name: String,
    /// The file with these values.
    pub file: File,
}

/// The place of a value in a table: keys, and numbers in lists, with dots between. Keys that are
/// missing have their defaults.
fn place<'a>(table: &'a mut Table, path: &str) -> Option<&'a mut Value> {
    match path.split_once('.') {
        None => Some(table.entry(path).or_insert(Value::Boolean(false))),
        Some((key, rest)) => {
            within(table.entry(key).or_insert_with(|| Value::Table(Table::new())), rest)
        }
    }
}

fn within<'a>(value: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    match value {
        Value::Table(table) => place(table, path),
        Value::Array(list) => {
            let (key, rest) = path.split_once('.').map_or((path, None), |(a, b)| (a, Some(b)));
            let item = list.get_mut(key.parse::<usize>().ok()?)?;
            match rest {
                Some(rest) => within(item, rest),
                None => Some(item),
            }
        }
        _ => None,
    }
}

/// The cases of a file. Without `[sweep]`, it is one.
///
/// # Errors
/// [`FileError`] with what is wrong.
pub fn cases(path: &Path, text: &str) -> Result<Vec<Case>, FileError> {
    let toml = |source| FileError::Toml { path: path.to_owned(), source: Box::new(source) };
    let wrong = |problem| FileError::Value { path: path.to_owned(), problem };
    // This names the line of an error; the tables below have no lines.
    let whole: File = toml::from_str(text).map_err(toml)?;
    let table: Table = toml::from_str(text).map_err(toml)?;
    let mut tables = vec![(whole.name.clone(), table)];
    for (key, values) in lists(&whole, text).map_err(wrong)? {
        let mut next = Vec::new();
        for (name, table) in &tables {
            for value in values {
                let mut table = table.clone();
                let place = place(&mut table, key)
                    .ok_or_else(|| wrong(format!("sweep.\"{key}\": the file has no such place")))?;
                *place = value.clone();
                let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                next.push((format!("{name}/{key}={shown}"), table));
            }
        }
        tables = next;
    }
    let case = |(name, table): (String, Table)| {
        let file: File = table.try_into().map_err(toml)?;
        match file.problem() {
            Some(problem) => Err(wrong(problem)),
            None => Ok(Case { name, file }),
        }
    };
    let cases = tables.into_iter().map(case).collect::<Result<Vec<Case>, _>>()?;
    let runs = |case: &Case| u128::from(case.file.seeds) * case.file.variants.len() as u128;
    match cases.iter().map(runs).sum::<u128>() {
        ..=RUNS => Ok(cases),
        runs => Err(wrong(format!(
            "{runs} runs, of all cases, variants and seeds, are too many: use at most {RUNS}"
        ))),
    }
}

/// The lists of the sweep, if they do not make too many cases of a file with this text.
fn lists<'a>(file: &'a File, text: &str) -> Result<Vec<(&'a str, &'a [Value])>, String> {
    let most = CASES.min(BYTES / text.len().max(1)).max(1);
    let mut lists = Vec::new();
    let mut number = 1_usize;
    for (key, values) in &file.sweep {
        let values = values.as_array().filter(|values| !values.is_empty());
        let values = values.ok_or_else(|| format!("sweep.\"{key}\": use a list of values"))?;
        number = number.saturating_mul(values.len());
        if number > most {
            return Err(format!(
                "sweep.\"{key}\": all lists together make {number} cases or more, which are too \
                 many: use at most {most}"
            ));
        }
        lists.push((key.as_str(), values.as_slice()));
    }
    Ok(lists)
}
