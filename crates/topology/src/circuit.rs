//! A circuit by its interfaces.

use std::fmt;
use std::str::FromStr;

/// The two interfaces of a circuit, written `A:B`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Circuit(pub [String; 2]);

impl FromStr for Circuit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some((a, b)) if !a.is_empty() && !b.is_empty() && a != b && !b.contains(':') => {
                Ok(Self([a.to_owned(), b.to_owned()]))
            }
            _ => Err("expected two interfaces with a colon between, such as eth1:eth2".to_owned()),
        }
    }
}

impl fmt::Display for Circuit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0[0], self.0[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circuit_is_two_interfaces() {
        assert_eq!("a1:b1".parse::<Circuit>().unwrap(), Circuit(["a1".into(), "b1".into()]));
        for wrong in ["a1", "a1:", ":b1", "a:a", "a:b:c", ""] {
            wrong.parse::<Circuit>().unwrap_err();
        }
    }
}
