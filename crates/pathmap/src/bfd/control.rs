//! Control packets (RFC 5880 section 4.1). All numbers are in network byte order.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |Vers |  Diag   |Sta|P|F|C|A|D|M|  Detect Mult  |    Length     |
//! |                       My Discriminator                        |
//! |                      Your Discriminator                       |
//! |                    Desired Min TX Interval                    |
//! |                   Required Min RX Interval                    |
//! |                 Required Min Echo RX Interval                 |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```

use std::num::NonZeroU32;

use thiserror::Error;

/// Length of a control packet without authentication in bytes.
pub const LENGTH: usize = 24;
const VERSION: u8 = 1;
const POLL: u8 = 0x20;
const FINAL: u8 = 0x10;
const INDEPENDENT: u8 = 0x08;
const AUTHENTICATION: u8 = 0x04;
const DEMAND: u8 = 0x02;
const MULTIPOINT: u8 = 0x01;

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// An administrator has stopped it.
    AdminDown,
    /// The other end was not heard, or has not heard this end.
    Down,
    /// The other end was heard. Whether it hears this end is not known.
    Init,
    /// Both ends hear each other.
    Up,
}

impl State {
    const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::AdminDown,
            1 => Self::Down,
            2 => Self::Init,
            _ => Self::Up,
        }
    }

    const fn bits(self) -> u8 {
        match self {
            Self::AdminDown => 0,
            Self::Down => 1,
            Self::Init => 2,
            Self::Up => 3,
        }
    }
}

/// Why a session left the state Up last: 0 to 31.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Diagnostic(u8);

impl Diagnostic {
    /// No diagnostic.
    pub const NONE: Self = Self(0);
    /// The detection time expired.
    pub const EXPIRED: Self = Self(1);
    /// The other end said that the session is down.
    pub const SIGNALED: Self = Self(3);
    /// An administrator has stopped the session.
    pub const ADMIN_DOWN: Self = Self(7);

    /// The diagnostic with the code of the low five bits.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// Its code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// A control packet without authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// Why the sender's session left the state Up last.
    pub diagnostic: Diagnostic,
    /// The sender's state.
    pub state: State,
    /// The sender asks for a packet with [`Self::is_final`].
    pub poll: bool,
    /// The answer to a packet with [`Self::poll`].
    pub is_final: bool,
    /// The sender's BFD goes on when its control plane fails.
    pub independent: bool,
    /// The sender wants no periodic packets.
    pub demand: bool,
    /// Transmit intervals without a packet after which the sender's packets are missing. Not 0.
    pub multiplier: u8,
    /// The sender's number of the session.
    pub my: NonZeroU32,
    /// The receiver's number of the session. 0 if the sender does not know it.
    pub your: u32,
    /// The shortest interval in which the sender wants to send, in microseconds.
    pub desired_min_tx: u32,
    /// The shortest interval in which the sender can receive, in microseconds. 0: it wants none.
    pub required_min_rx: u32,
    /// The same for echo packets. 0: it does not answer them.
    pub required_min_echo_rx: u32,
}

/// Why bytes are no control packet that may be used (RFC 5880 section 6.8.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ControlError {
    /// It is shorter than its header or its length says.
    #[error("the control packet is too short")]
    Short,
    /// Another version.
    #[error("the control packet has version {0}, not 1")]
    Version(u8),
    /// Sessions here have no authentication, so a packet with it must be discarded.
    #[error("the control packet has authentication, and the session has none")]
    Authentication,
    /// Its length is not that of a packet without authentication.
    #[error("the control packet has length {0}, not 24")]
    Length(u8),
    /// The detection multiplier is 0.
    #[error("the control packet has the detection multiplier 0")]
    Multiplier,
    /// The bit for multipoint is set.
    #[error("the control packet has the multipoint bit")]
    Multipoint,
    /// The sender's discriminator is 0.
    #[error("the control packet has no discriminator of its sender")]
    NoSender,
    /// The receiver's discriminator is 0 although the state says that the sender knows it.
    #[error("the control packet has no discriminator of its receiver")]
    NoReceiver,
}

impl Control {
    /// Reads a control packet. Bytes behind it are ignored.
    ///
    /// # Errors
    /// As [`ControlError`] says.
    pub fn parse(bytes: &[u8]) -> Result<Self, ControlError> {
        let bytes = bytes.first_chunk::<LENGTH>().ok_or(ControlError::Short)?;
        let [first, flags, multiplier, length, words @ ..] = *bytes;
        if first >> 5 != VERSION {
            return Err(ControlError::Version(first >> 5));
        }
        if flags & AUTHENTICATION != 0 {
            return Err(ControlError::Authentication);
        }
        if usize::from(length) != LENGTH {
            return Err(ControlError::Length(length));
        }
        if multiplier == 0 {
            return Err(ControlError::Multiplier);
        }
        if flags & MULTIPOINT != 0 {
            return Err(ControlError::Multipoint);
        }
        let (words, _) = words.as_chunks::<4>();
        let [my, your, desired_min_tx, required_min_rx, required_min_echo_rx] = *words else {
            return Err(ControlError::Short);
        };
        let my = NonZeroU32::new(u32::from_be_bytes(my)).ok_or(ControlError::NoSender)?;
        let (state, your) = (State::from_bits(flags >> 6), u32::from_be_bytes(your));
        if your == 0 && !matches!(state, State::Down | State::AdminDown) {
            return Err(ControlError::NoReceiver);
        }
        Ok(Self {
            diagnostic: Diagnostic::new(first),
            state,
            poll: flags & POLL != 0,
            is_final: flags & FINAL != 0,
            independent: flags & INDEPENDENT != 0,
            demand: flags & DEMAND != 0,
            multiplier,
            my,
            your,
            desired_min_tx: u32::from_be_bytes(desired_min_tx),
            required_min_rx: u32::from_be_bytes(required_min_rx),
            required_min_echo_rx: u32::from_be_bytes(required_min_echo_rx),
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; LENGTH] {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = self.state.bits() << 6
            | flag(self.poll, POLL)
            | flag(self.is_final, FINAL)
            | flag(self.independent, INDEPENDENT)
            | flag(self.demand, DEMAND);
        let first = VERSION << 5 | self.diagnostic.code();
        let mut bytes = [0; LENGTH];
        let words = [
            u32::from_be_bytes([first, flags, self.multiplier, LENGTH as u8]),
            self.my.get(),
            self.your,
            self.desired_min_tx,
            self.required_min_rx,
            self.required_min_echo_rx,
        ];
        for (place, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_be_bytes();
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn controls() -> impl Strategy<Value = Control> {
        let flags = any::<[bool; 4]>();
        let numbers = (1..=u32::MAX, 1..=u32::MAX, any::<[u32; 3]>());
        (0..32u8, 0..4u8, flags, 1..=255u8, numbers).prop_map(
            |(diagnostic, state, flags, multiplier, (my, your, intervals))| Control {
                diagnostic: Diagnostic::new(diagnostic),
                state: State::from_bits(state),
                poll: flags[0],
                is_final: flags[1],
                independent: flags[2],
                demand: flags[3],
                multiplier,
                my: NonZeroU32::new(my).unwrap(),
                your,
                desired_min_tx: intervals[0],
                required_min_rx: intervals[1],
                required_min_echo_rx: intervals[2],
            },
        )
    }

    #[test]
    fn a_packet_has_the_bytes_of_the_rfc() {
        let control = Control {
            diagnostic: Diagnostic::SIGNALED,
            state: State::Down,
            poll: true,
            is_final: false,
            independent: true,
            demand: false,
            multiplier: 3,
            my: NonZeroU32::new(0x0102_0304).unwrap(),
            your: 0,
            desired_min_tx: 1_000_000,
            required_min_rx: 10_000,
            required_min_echo_rx: 0,
        };
        let bytes = [
            0x23, 0x68, 3, 24, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0x0f, 0x42, 0x40, 0, 0, 0x27, 0x10, 0, 0,
            0, 0,
        ];
        assert_eq!(control.bytes(), bytes);
        assert_eq!(Control::parse(&bytes), Ok(control));
        let with = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            Control::parse(&bytes)
        };
        assert_eq!(with(0, 0x03), Err(ControlError::Version(0)));
        assert_eq!(with(1, 0x6c), Err(ControlError::Authentication));
        assert_eq!(with(1, 0x69), Err(ControlError::Multipoint));
        assert_eq!(with(1, 0xe8), Err(ControlError::NoReceiver));
        assert_eq!(with(2, 0), Err(ControlError::Multiplier));
        assert_eq!(with(3, 23), Err(ControlError::Length(23)));
    }

    proptest! {
        #[test]
        fn a_packet_is_read_as_it_was_written(control in controls(), more in 0..9usize) {
            let mut bytes = control.bytes().to_vec();
            bytes.resize(LENGTH + more, 0xff);
            prop_assert_eq!(Control::parse(&bytes), Ok(control));
            for length in 0..LENGTH {
                prop_assert_eq!(Control::parse(&bytes[..length]), Err(ControlError::Short));
            }
        }

        #[test]
        fn each_bit_says_something(control in controls(), bit in 0..LENGTH * 8) {
            let mut bytes = control.bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let changed = Control::parse(&bytes);
            prop_assert_ne!(changed, Ok(control));
            if let Ok(changed) = changed {
                prop_assert_eq!(changed.bytes(), bytes);
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(control) = Control::parse(&bytes) {
                prop_assert_eq!(Control::parse(&control.bytes()), Ok(control));
            }
        }
    }
}
