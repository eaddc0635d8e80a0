//! VXLAN.

use crate::error::WireError;
use crate::header::header;
use crate::types::Vni;

header! {
    /// A VXLAN header (RFC 7348 section 5).
    ///
    /// ```text
    ///  0                   1                   2                   3
    ///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |R|R|R|R|I|R|R|R|                   Reserved                    |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// |          VXLAN network identifier (VNI)       |   Reserved    |
    /// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
    /// ```
    Vxlan[8] {
        /// The I flag and seven reserved flags.
        flags, set_flags: u8 = 0;
        /// Reserved bits of the first word.
        reserved, set_reserved: u32 = 0 & 0x00ff_ffff;
        /// The VNI as a number; may be 0.
        vni_number, set_vni_number: u32 = 4 & 0xffff_ff00;
        /// Reserved byte of the second word.
        reserved_byte, set_reserved_byte: u8 = 7;
    }
}

impl Vxlan<[u8; 8]> {
    /// The I flag: the VNI is valid.
    pub const I_FLAG: u8 = 0x08;
    /// Mask of all reserved bits of the header as a big-endian number: everything except the I flag
    /// and the VNI.
    pub const RESERVED: u64 = 0xf7ff_ffff_0000_00ff;

    /// A header for `vni`.
    #[inline]
    #[must_use]
    pub fn new(vni: Vni) -> Self {
        *Self::zeroed().set_flags(Self::I_FLAG).set_vni_number(vni.get())
    }
}

impl<B: core::borrow::Borrow<[u8; 8]>> Vxlan<B> {
    /// The reserved bits that are set, at their positions in [`Vxlan::RESERVED`].
    #[inline]
    #[must_use]
    pub fn reserved_bits(&self) -> u64 {
        u64::from_be_bytes(*self.as_bytes()) & Vxlan::RESERVED
    }

    /// The VNI, if the I flag is set. Reserved bits are ignored, as RFC 7348 requires of receivers.
    ///
    /// # Errors
    /// If the I flag is not set, or the VNI is 0.
    #[inline]
    pub fn vni(&self) -> Result<Vni, WireError> {
        if self.flags() & Vxlan::I_FLAG == 0 {
            return Err(WireError::invalid("Vxlan", "flags", self.flags().into()));
        }
        Vni::try_from(self.vni_number())
            .map_err(|_| WireError::invalid("Vxlan", "VNI", self.vni_number()))
    }
}
