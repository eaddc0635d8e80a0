//! The report of arrivals: what a VTEP got by each path of another one, which sprays packets over
//! them. It begins like a probe, so that the same checks apply to both.
//!
//! ```text
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  V VNIs       |  P paths      |       0                       |
//! |                     V VNIs, 24 bits in 4 bytes each           |
//! |  P times: outer source port, received, marked, 2 bytes each   |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! The numbers are totals modulo 2¹⁶. So a report that is lost is made good by the next one.

use path::{Arrived, MOST_PATHS};
use wire::Vni;

use super::{MessageError, Probe, Reader};

/// The most VNIs of which packets are sprayed to one VTEP.
pub const MOST_VNIS: usize = 64;

/// What arrived from the receiver of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrivalReport {
    /// The head of the message: that of a probe of its sender.
    pub head: Probe,
    /// The VNIs of which the sender of the report takes sprayed packets. At most [`MOST_VNIS`].
    pub vnis: Vec<Vni>,
    /// What arrived by each path. At most [`MOST_PATHS`].
    pub paths: Vec<Arrived>,
}

impl ArrivalReport {
    /// Length of the message without its tag, in bytes.
    #[must_use]
    pub const fn length(&self) -> usize {
        super::PROBE_LENGTH + 4 + 4 * self.vnis.len() + 6 * self.paths.len()
    }

    pub(super) fn append(&self, bytes: &mut Vec<u8>) {
        let vnis = self.vnis.iter().take(MOST_VNIS);
        let paths = self.paths.iter().take(MOST_PATHS);
        bytes.extend_from_slice(&[vnis.len() as u8, paths.len() as u8, 0, 0]);
        vnis.for_each(|vni| bytes.extend_from_slice(&vni.get().to_be_bytes()));
        for Arrived { port, received, marked } in paths {
            [port, received, marked].iter().for_each(|n| bytes.extend_from_slice(&n.to_be_bytes()));
        }
    }
}

impl Reader<'_> {
    /// The rest of a report that begins with this head.
    pub(super) fn arrivals(
        &mut self,
        head: Probe,
        length: MessageError,
    ) -> Result<ArrivalReport, MessageError> {
        let [vnis, paths, zeros @ ..] = self.take::<4>().ok_or(length)?;
        if usize::from(vnis) > MOST_VNIS || usize::from(paths) > MOST_PATHS || zeros != [0; 2] {
            return Err(MessageError::Range);
        }
        let mut vni =
            |_| Vni::try_from(self.word().ok_or(length)?).map_err(|_| MessageError::Range);
        let vnis = (0..vnis).map(&mut vni).collect::<Result<_, _>>()?;
        let mut path = |_| {
            let halves = (self.half(), self.half(), self.half());
            let (Some(port), Some(received), Some(marked)) = halves else { return Err(length) };
            if port == 0 {
                Err(MessageError::Range)
            } else {
                Ok(Arrived { port, received, marked })
            }
        };
        let paths = (0..paths).map(&mut path).collect::<Result<_, _>>()?;
        Ok(ArrivalReport { head, vnis, paths })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::super::Message;
    use super::*;

    prop_compose! {
        pub(crate) fn report(head: Probe)(
            vnis in prop::collection::vec(1_u32..1 << 24, 0..=MOST_VNIS),
            paths in prop::collection::vec((1..=u16::MAX, any::<[u16; 2]>()), 0..=MOST_PATHS),
        ) -> ArrivalReport {
            let vnis = vnis.into_iter().map(|vni| Vni::try_from(vni).unwrap()).collect();
            let of = |(port, [received, marked]): (u16, [u16; 2])| Arrived { port, received, marked };
            ArrivalReport { head, vnis, paths: paths.into_iter().map(of).collect() }
        }
    }

    fn head() -> Probe {
        let (epoch, id, nonce, uplink, token) = (1, 2, 3, 4, 5);
        let (port, ttl, records, urgent) = (50_000, 64, false, false);
        Probe { epoch, id, nonce, uplink, port, ttl, records, urgent, token }
    }

    #[test]
    fn a_report_by_its_bytes() {
        let vnis = vec![Vni::try_from(0x0a_0b0c).unwrap()];
        let paths = vec![Arrived { port: 0xc001, received: 0x0102, marked: 3 }];
        let report = ArrivalReport { head: head(), vnis, paths };
        let bytes = Message::Arrivals(report.clone()).bytes();
        assert_eq!(bytes.len(), report.length());
        assert_eq!(bytes[..4], [0x56, 0x50, 4, 3]);
        assert_eq!(bytes[28..], [1, 1, 0, 0, 0, 10, 11, 12, 0xc0, 1, 1, 2, 0, 3]);
        assert_eq!(Message::parse(&bytes), Ok(Message::Arrivals(report)));
        // VNI 0, port 0, more than 24 bits, a field that is not 0, and too many.
        for (at, value) in [(35, 0), (36, 0), (32, 1), (30, 1), (28, 65), (29, 65)] {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            if at == 35 {
                wrong[33..35].fill(0);
            }
            if at == 36 {
                wrong[37] = 0;
            }
            assert_eq!(Message::parse(&wrong), Err(MessageError::Range), "byte {at}");
        }
    }
}
