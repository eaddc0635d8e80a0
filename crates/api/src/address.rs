//! The address of the API's socket.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// An address of the API's Unix socket.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub enum Address {
    /// An abstract name. It belongs to the network namespace, as vtepd does. Only clients in the
    /// same namespace can connect.
    Abstract(String),
    /// A file, for clients outside the namespace.
    Path(PathBuf),
}

impl Default for Address {
    fn default() -> Self {
        Self::Abstract("vtepd-api".to_owned())
    }
}

/// The text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no socket: write @NAME for an abstract one (default @vtepd-api), or the path of a file"
)]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // `sun_path` has 108 bytes, one of which is the zero before the name or after the path
        // (unix(7)).
        let fits = text.len() < 108 && !text.contains('\0');
        match text.strip_prefix('@') {
            Some(name) if fits && !name.is_empty() => Ok(Self::Abstract(name.to_owned())),
            None if fits && text.contains('/') => Ok(Self::Path(text.into())),
            _ => Err(AddressError(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Abstract(name) => write!(f, "@{name}"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_name_or_a_path() {
        for text in ["@vtepd-api", "/run/vtepd/leaf1.sock", "./leaf1.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("@vtepd-api".parse(), Ok(Address::default()));
        let long = format!("/{}", "x".repeat(107));
        for text in ["", "@", "leaf1.sock", "/a\0b", &long] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
