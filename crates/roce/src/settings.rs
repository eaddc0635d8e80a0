//! Settings of an endpoint and its connections.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::early::AHEAD;
use crate::{dcqcn, nscc};

/// What a responder does with requests that arrive before those that precede them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Drops them, and asks for what is missing. The requester goes back to it.
    #[default]
    Drop,
    /// Keeps up to 256 of them until their turn. The requester repeats only what is missing. Both
    /// ends must have this setting.
    Place,
}

/// Settings of all connections of an endpoint. In a file, a quantity may have its unit: `"500us"`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096 bytes of payload in a packet.
    #[serde(deserialize_with = "quantity::bytes")]
    #[schemars(with = "quantity::NumberOrText")]
    pub mtu: u32,
    /// Maximum bytes of a queue pair that are sent and not acknowledged; at least one MTU.
    #[serde(deserialize_with = "quantity::bytes")]
    #[schemars(with = "quantity::NumberOrText")]
    pub window: u32,
    /// Packets after which an acknowledgement is requested within a message.
    pub acknowledge_every: u32,
    /// Retransmission timer in nanoseconds. The InfiniBand architecture (9.7.6.1.3) has 4.096 µs ×
    /// 2ⁿ.
    #[serde(deserialize_with = "quantity::nanoseconds")]
    #[schemars(with = "quantity::NumberOrText")]
    pub timeout: u64,
    /// Retransmissions without progress after which a connection fails. NICs have 3 bits, 0 to 7.
    pub retries: u32,
    /// Maximum number of read requests of a queue pair that wait for their responses.
    pub reads: u32,
    /// Code of the time that a receiver without buffer asks for, 0 to 31 (InfiniBand architecture
    /// table 45). 12 is 0.64 ms.
    pub rnr_timer: u8,
    /// Packets that a queue pair sends before the next one has its turn.
    pub burst: u32,
    /// Rate of the endpoint in bits per second, counting whole frames without FCS. 0 for no limit.
    #[serde(deserialize_with = "quantity::bits")]
    #[schemars(with = "quantity::NumberOrText")]
    pub rate: u64,
    /// Congestion control by notifications. Without any congestion control, frames are Not-ECT, and
    /// notifications are only counted.
    pub dcqcn: Option<dcqcn::Parameters>,
    /// Congestion control by acknowledgements, instead of `dcqcn`.
    pub nscc: Option<nscc::Parameters>,
    /// What the responder does with requests that arrive out of order.
    pub order: Order,
    /// Each packet of a write has a RETH of 16 bytes, so that its bytes go to their place when it
    /// arrives. Both ends must have the same; for `order = place`.
    pub reth_in_each: bool,
    /// How much longer than packets that were sent after it a packet may take, in nanoseconds. Then
    /// it is lost. For `order = place`.
    #[serde(deserialize_with = "quantity::nanoseconds")]
    #[schemars(with = "quantity::NumberOrText")]
    pub reordering: u64,
    /// Bytes of requests after which the responder acknowledges without being asked; 0 for never.
    #[serde(deserialize_with = "quantity::bytes")]
    #[schemars(with = "quantity::NumberOrText")]
    pub acknowledge_bytes: u32,
    /// The responder acknowledges packets with the ECN mark at once.
    pub acknowledge_marked: bool,
    /// DSCP of all frames, 0 to 63.
    pub dscp: u8,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mtu: 1024,
            window: 256 << 10,
            acknowledge_every: 16,
            timeout: timeout(14),
            retries: 7,
            reads: 16,
            rnr_timer: 12,
            burst: 16,
            rate: 0,
            dcqcn: None,
            nscc: None,
            order: Order::Drop,
            reth_in_each: false,
            reordering: 50_000,
            acknowledge_bytes: 0,
            acknowledge_marked: false,
            dscp: 0,
        }
    }
}

/// The retransmission timer for an exponent of 0 to 31, in nanoseconds: 4.096 µs × 2ⁿ (InfiniBand
/// architecture 9.7.6.1.3). 14, perftest's default, is 67 ms.
#[must_use]
pub const fn timeout(exponent: u32) -> u64 {
    4096 << if exponent > 31 { 31 } else { exponent }
}

/// A setting is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}: use {range}")]
pub struct SettingError {
    /// The setting.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// The values that are valid.
    pub range: &'static str,
}

impl Settings {
    /// Checks all ranges.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn check(&self) -> Result<(), SettingError> {
        let out = |name, value: u64, range| Err(SettingError { name, value, range });
        match self {
            Self { mtu, .. } if ![256, 512, 1024, 2048, 4096].contains(mtu) => {
                out("the path MTU", (*mtu).into(), "256, 512, 1024, 2048 or 4096 bytes")
            }
            Self { window, .. } if !(self.mtu..=1 << 30).contains(window) => {
                out("the window", (*window).into(), "one path MTU to 1 GiB")
            }
            Self { acknowledge_every: 0, .. } => {
                out("the number of packets for an acknowledgement", 0, "at least 1")
            }
            Self { timeout: 0, .. } => out("the retransmission timer", 0, "at least 1 ns"),
            Self { reads, .. } if !(1..=128).contains(reads) => {
                out("the number of outstanding reads", (*reads).into(), "1 to 128")
            }
            Self { rnr_timer: 32.., .. } => {
                out("the code of the RNR timer", self.rnr_timer.into(), "0 to 31")
            }
            Self { burst: 0, .. } => out("the burst", 0, "at least 1 packet"),
            Self { dscp: 64.., .. } => out("the DSCP", self.dscp.into(), "0 to 63"),
            Self { dcqcn: Some(_), nscc: Some(_), .. } => {
                out("the number of congestion controls", 2, "dcqcn or nscc")
            }
            Self { nscc: Some(nscc::Parameters { round_trip: 0 }), .. } => {
                out("the round trip time", 0, "at least 1 ns")
            }
            Self { reth_in_each: true, order: Order::Drop, .. } => {
                out("reth-in-each", 1, "it with order = place")
            }
            Self { dcqcn, nscc, rate: 0, .. } if dcqcn.is_some() || nscc.is_some() => out(
                "the rate",
                0,
                "the line rate in bits per second, from which congestion control starts",
            ),
            _ => Ok(()),
        }
    }

    /// The number of packets that a message of `length` bytes needs; at least one.
    pub(crate) const fn packets(&self, length: u32) -> u32 {
        let packets = length.div_ceil(self.mtu);
        if packets == 0 { 1 } else { packets }
    }

    /// The outstanding window in packets. A responder that keeps packets has room for so many.
    pub(crate) const fn window_packets(&self) -> i32 {
        let packets = (self.window / self.mtu) as i32;
        match self.order {
            Order::Place if packets > AHEAD as i32 => AHEAD as i32,
            _ => packets,
        }
    }

    pub(crate) const fn places(&self) -> bool {
        matches!(self.order, Order::Place)
    }

    /// Whether the requester remembers each packet that is not acknowledged.
    pub(crate) const fn remembers(&self) -> bool {
        self.places() || self.nscc.is_some()
    }
}

/// The time that an RNR NAK asks for, in nanoseconds (InfiniBand architecture table 45).
pub(crate) fn rnr_time(code: u8) -> u64 {
    /// In units of 10 µs, from code 1 on.
    const TIMES: [u64; 31] = [
        1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
        2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];
    let code = usize::from(code & 31);
    code.checked_sub(1).and_then(|at| TIMES.get(at)).copied().unwrap_or(65_536) * 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_specification() {
        assert_eq!([timeout(0), timeout(14), timeout(31)], [4096, 67_108_864, 8_796_093_022_208]);
        let times = [0, 1, 12, 31].map(rnr_time);
        assert_eq!(times, [655_360_000, 10_000, 640_000, 491_520_000]);
    }

    #[test]
    fn a_file_has_plain_numbers_or_texts_with_units() {
        let parse = |text: &str| toml::from_str::<Settings>(text);
        let plain = "mtu = 4096\nwindow = 65536\ntimeout = 500000\nrate = 1000000000\n\
                     reordering = 50000\nacknowledge-bytes = 16000\nnscc.round-trip = 30000\n\
                     [dcqcn]\nalpha-timer = 55000\nadditive-increase = 5e6\nbyte-counter = 1000000";
        let units = "mtu = '4KiB'\nwindow = '64KiB'\ntimeout = '500us'\nrate = '1Gbit'\n\
                     reordering = '50us'\nacknowledge-bytes = '16kB'\nnscc.round-trip = '30us'\n\
                     [dcqcn]\nalpha-timer = '55us'\nadditive-increase = '5Mbit'\nbyte-counter = '1MB'";
        assert_eq!(parse(plain).unwrap(), parse(units).unwrap());
        let error = parse("timeout = '500kB'").unwrap_err().to_string();
        assert!(error.contains("ns, us, ms, s, min, such as 5ms"), "{error}");
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        assert_eq!(Settings::default().check(), Ok(()));
        let refused = |settings: Settings| settings.check().unwrap_err().to_string();
        let mtu = Settings { mtu: 1000, ..Settings::default() };
        assert_eq!(refused(mtu), "the path MTU is 1000: use 256, 512, 1024, 2048 or 4096 bytes");
        let dcqcn = Some(dcqcn::Parameters::default());
        let nscc = Some(nscc::Parameters::default());
        for settings in [
            Settings { window: 1023, ..Settings::default() },
            Settings { dcqcn, ..Settings::default() },
            Settings { dcqcn, nscc, rate: 1, ..Settings::default() },
            Settings { nscc, ..Settings::default() },
            Settings { reth_in_each: true, ..Settings::default() },
            Settings { dscp: 64, ..Settings::default() },
            Settings { reads: 0, ..Settings::default() },
        ] {
            refused(settings);
        }
    }
}
