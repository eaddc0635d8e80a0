//! Errors of header parsers and builders.

/// Bytes that do not hold the expected header, or a buffer that is too short to write one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The buffer ends within the header, or before a length that the header states.
    #[error("{header} needs {needed} bytes, {available} are there")]
    Truncated {
        /// Name of the header.
        header: &'static str,
        /// Number of bytes needed.
        needed: usize,
        /// Number of bytes available.
        available: usize,
    },
    /// A field has an invalid value.
    #[error("{header} cannot have {field} {value:#x}")]
    Invalid {
        /// Name of the header.
        header: &'static str,
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u32,
    },
}

impl WireError {
    pub(crate) const fn truncated(header: &'static str, needed: usize, available: usize) -> Self {
        Self::Truncated { header, needed, available }
    }

    pub(crate) const fn invalid(header: &'static str, field: &'static str, value: u32) -> Self {
        Self::Invalid { header, field, value }
    }
}
