//! The encoding of VNIs on the bridge punt pair.

use crate::snapshot::VniIndex;

/// The VLAN identifier of the 802.1ad tag by which frames on the bridge punt pair carry their VNI.
/// Identifiers 0 and 4095 are reserved (IEEE 802.1Q-2022 table 9-2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u16);

impl Slot {
    /// The slot of a VNI: its index.
    #[must_use]
    pub const fn of(index: VniIndex) -> Self {
        Self(index.get())
    }

    /// The slot in the tag control information of a tag.
    #[must_use]
    pub const fn from_tci(tci: u16) -> Self {
        Self(tci & 0x0fff)
    }

    /// The VLAN identifier.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The VNI in this slot; `None` for reserved identifiers.
    #[must_use]
    pub const fn index(self) -> Option<VniIndex> {
        VniIndex::new(self.0)
    }
}
