//! Parts of an experiment or of a simulation that run on several machines.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::plan::Key;

/// The most parts.
const MOST: u64 = 10_000;

/// A part of the runs: those whose number has this remainder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Shard {
    index: u64,
    count: u64,
}

impl Shard {
    /// The remainder, from 0.
    #[must_use]
    pub const fn index(self) -> u64 {
        self.index
    }

    /// The number of parts, 1 to 10,000.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// All parts.
    pub fn all(self) -> impl Iterator<Item = Self> {
        (0..self.count).map(move |index| Self { index, ..self })
    }

    /// Whether it has the run with this number.
    #[must_use]
    pub const fn has(self, number: u64) -> bool {
        number % self.count == self.index
    }

    /// Whether it has this run of an experiment: all dataplanes and points of its repetition, so that
    /// a difference between machines is none between dataplanes.
    #[must_use]
    pub fn has_run(self, key: &Key) -> bool {
        self.has(key.repetition.into())
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(index, count)| {
            Some(Self { index: index.parse().ok()?, count: count.parse().ok()? })
        });
        numbers.filter(|shard| shard.index < shard.count && shard.count <= MOST).ok_or_else(|| {
            format!("'{text}': use INDEX/COUNT, such as 0/4 to 3/4, of at most {MOST} parts")
        })
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl TryFrom<String> for Shard {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Shard> for String {
    fn from(shard: Shard) -> Self {
        shard.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_is_in_one_shard() {
        let shard: Shard = "1/3".parse().unwrap();
        assert_eq!(
            shard.all().map(|one| one.to_string()).collect::<Vec<_>>(),
            ["0/3", "1/3", "2/3"]
        );
        for repetition in 0..9 {
            let key = Key { repetition, ..Key::default() };
            assert_eq!(shard.all().filter(|one| one.has_run(&key)).count(), 1);
            assert_eq!(shard.has_run(&key), repetition % 3 == 1);
        }
        for wrong in ["4/4", "1", "a/b", "-1/3", "0/0", "0/10001", "0/18446744073709551615"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
        assert_eq!("9999/10000".parse::<Shard>().unwrap().all().count(), 10_000);
    }
}
