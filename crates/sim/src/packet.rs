//! Packets: 32 bytes each, reused.

use crate::table::Table;

/// The length of what carries no data: acknowledgements, trimmed packets, probes.
pub(crate) const HEADER: u16 = 64;
/// The most flows of a run: their numbers have 24 bits.
pub(crate) const FLOWS: u32 = 1 << 24;

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Data.
    Data = 0,
    /// Data that a queue has trimmed.
    Trimmed = 1,
    /// A question of a sender that may not send data.
    Probe = 2,
    /// An acknowledgement.
    Ack = 3,
    /// The answer to a trimmed packet.
    Nack = 4,
}

/// Flags of a packet.
pub(crate) mod flag {
    /// The bits of the kind.
    pub(crate) const KIND: u8 = 7;
    /// A queue has set the ECN mark. In an answer: the packet had it.
    pub(crate) const MARKED: u8 = 8;
    /// The sender wants an answer at once. In an acknowledgement: the map begins with the packet.
    pub(crate) const ANSWER: u8 = 16;
    /// A retransmission. In an answer: of one.
    pub(crate) const AGAIN: u8 = 32;
    /// It was trimmed at the port to its host.
    pub(crate) const LAST_HOP: u8 = 64;
}

/// A packet, and in an answer what it says.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Packet {
    /// The flow in the low 24 bits, the flags in the others.
    pub(crate) head: u32,
    /// The number in its flow. In an answer: of the packet that caused it.
    pub(crate) number: u32,
    /// The port that it passes.
    pub(crate) port: u32,
    /// In an acknowledgement: all packets below have arrived.
    pub(crate) below: u32,
    /// In an acknowledgement: the bytes that have arrived, modulo 2³².
    pub(crate) received: u32,
    /// The number of its path.
    pub(crate) entropy: u16,
    /// Bytes on the wire.
    pub(crate) size: u16,
    /// In an acknowledgement: which packets from [`Packet::map_begin`] have arrived.
    pub(crate) map: u64,
}

impl Packet {
    pub(crate) fn new(kind: Kind, flags: u8, flow: u32, number: u32) -> Self {
        Self {
            head: u32::from(kind as u8 | flags) << 24 | flow,
            number,
            size: HEADER,
            ..Self::default()
        }
    }

    #[inline]
    pub(crate) const fn flow(&self) -> u32 {
        self.head & (FLOWS - 1)
    }

    #[inline]
    const fn flags(&self) -> u8 {
        (self.head >> 24) as u8
    }

    #[inline]
    pub(crate) const fn kind(&self) -> Kind {
        match self.flags() & flag::KIND {
            0 => Kind::Data,
            1 => Kind::Trimmed,
            2 => Kind::Probe,
            3 => Kind::Ack,
            _ => Kind::Nack,
        }
    }

    #[inline]
    pub(crate) const fn has(&self, flag: u8) -> bool {
        self.flags() & flag != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, flag: u8) {
        self.head |= u32::from(flag) << 24;
    }

    /// Whether it goes from the target of its flow to the source.
    #[inline]
    pub(crate) const fn is_answer(&self) -> bool {
        matches!(self.kind(), Kind::Ack | Kind::Nack)
    }

    #[inline]
    pub(crate) const fn is_data(&self) -> bool {
        self.flags() & flag::KIND == 0
    }

    /// Takes the data away.
    pub(crate) fn trim(&mut self, last_hop: bool) {
        self.set(Kind::Trimmed as u8);
        if last_hop {
            self.set(flag::LAST_HOP);
        }
        self.size = HEADER;
    }

    /// The number of the first packet in the map of an acknowledgement.
    pub(crate) fn map_begin(&self) -> u32 {
        if self.has(flag::ANSWER) {
            self.number
        } else {
            self.number.saturating_sub(63).max(self.below + 1)
        }
    }
}

/// All packets under way. Its length is the most that were so at once.
pub(crate) type Packets = Table<Packet>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_thirty_two_bytes() {
        assert_eq!(size_of::<Packet>(), 32);
    }

    #[test]
    fn flags_do_not_touch_the_flow() {
        let mut packet = Packet::new(Kind::Data, flag::AGAIN, FLOWS - 1, 7);
        packet.set(flag::MARKED);
        packet.trim(true);
        assert_eq!((packet.flow(), packet.kind(), packet.size), (FLOWS - 1, Kind::Trimmed, 64));
        assert!(packet.has(flag::MARKED) && packet.has(flag::AGAIN) && packet.has(flag::LAST_HOP));
        assert!(!packet.has(flag::ANSWER) && !packet.is_data() && !packet.is_answer());
        for kind in [Kind::Data, Kind::Trimmed, Kind::Probe, Kind::Ack, Kind::Nack] {
            assert_eq!(Packet::new(kind, 0, 5, 0).kind(), kind);
        }
    }
}
