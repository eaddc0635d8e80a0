//! Why bytes are no header.

/// Bytes that do not hold the header they were read as, or too little room to write one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The buffer ends within the header, or within a length that the header claims.
    #[error("{header} needs {needed} bytes, {available} are there")]
    Truncated {
        /// The header.
        header: &'static str,
        /// Bytes it takes.
        needed: usize,
        /// Bytes there are.
        available: usize,
    },
    /// A field has a value that the header cannot have.
    #[error("{header} cannot have {field} {value:#x}")]
    Invalid {
        /// The header.
        header: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
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
