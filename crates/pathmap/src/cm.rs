//! Messages of the InfiniBand communication manager that begin and end connections (InfiniBand
//! architecture volume 1 chapter 12). Hosts send them to queue pair 1.

use wire::QueuePair;

/// The queue pair of management datagrams.
pub const QUEUE_PAIR: u32 = 1;

/// Lengths of the base and the datagram transport header, and of the management datagram's header.
const HEADERS: [usize; 3] = [12, 8, 24];
/// Class of communication management.
const CLASS: u8 = 7;
/// Version of the class.
const CLASS_VERSION: u8 = 2;
/// Method of a message without answer.
const SEND: u8 = 3;

/// What a message says about queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// A host asks for a connection (REQ).
    Request {
        /// Its number for the exchange.
        id: u32,
        /// Its queue pair.
        queue_pair: QueuePair,
    },
    /// A host accepts a connection (REP).
    Reply {
        /// Its number for the exchange.
        id: u32,
        /// The number of the request.
        of: u32,
        /// Its queue pair.
        queue_pair: QueuePair,
    },
    /// A host ends a connection (DREQ).
    Disconnect {
        /// The queue pair of the host that receives this.
        queue_pair: QueuePair,
    },
    /// A host confirms the end of a connection (DREP).
    Disconnected {
        /// Its number for the exchange.
        id: u32,
    },
}

impl Event {
    /// Reads a message from its base transport header on. `None` if it is of another kind.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let mad = packet.get(HEADERS[0] + HEADERS[1]..)?;
        let (header, body) = mad.split_at_checked(HEADERS[2])?;
        // Base version, class, class version, method.
        if *header.first_chunk()? != [1, CLASS, CLASS_VERSION, SEND] {
            return None;
        }
        let attribute = u16::from_be_bytes(*header.get(16..)?.first_chunk()?);
        let word = |at: usize| Some(u32::from_be_bytes(*body.get(at..)?.first_chunk()?));
        let queue_pair =
            |at: usize| Some(QueuePair::from_be_bytes(*body.get(at..)?.first_chunk()?));
        let id = word(0)?;
        Some(match attribute {
            0x10 => Self::Request { id, queue_pair: queue_pair(32)? },
            0x13 => Self::Reply { id, of: word(4)?, queue_pair: queue_pair(12)? },
            0x15 => Self::Disconnect { queue_pair: queue_pair(8)? },
            0x16 => Self::Disconnected { id },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message with this attribute and these words of its body.
    fn message(attribute: u16, words: &[(usize, u32)]) -> Vec<u8> {
        let mut packet = vec![0; 12 + 8 + 256];
        packet[20..24].copy_from_slice(&[1, 7, 2, 3]);
        packet[36..38].copy_from_slice(&attribute.to_be_bytes());
        for (at, word) in words {
            packet[44 + at..48 + at].copy_from_slice(&word.to_be_bytes());
        }
        packet
    }

    #[test]
    fn messages_of_each_kind() {
        let pair = |number: u32| QueuePair::try_from(number).unwrap();
        let queue_pair = pair(0xab_cdef);
        for (attribute, words, expected) in [
            (0x10, vec![(0, 5), (32, 0xabcd_ef09)], Some(Event::Request { id: 5, queue_pair })),
            (
                0x13,
                vec![(0, 6), (4, 5), (12, 0xabcd_ef09)],
                Some(Event::Reply { id: 6, of: 5, queue_pair }),
            ),
            (0x15, vec![(0, 5), (4, 6), (8, 0xabcd_ef09)], Some(Event::Disconnect { queue_pair })),
            (0x16, vec![(0, 6), (4, 5)], Some(Event::Disconnected { id: 6 })),
            // RTU.
            (0x14, vec![(0, 5)], None),
        ] {
            let packet = message(attribute, &words);
            assert_eq!(Event::parse(&packet), expected, "{attribute:#x}");
            for at in [20, 21, 22, 23] {
                let mut other = packet.clone();
                other[at] ^= 0x40;
                assert_eq!(Event::parse(&other), None);
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            attribute in 0x10..0x18_u16,
            length in 0..276_usize,
        ) {
            let _ = Event::parse(&bytes);
            let _ = Event::parse(&message(attribute, &[])[..length]);
        }
    }
}
