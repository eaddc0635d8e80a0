//! Remembers what [`Pinning::pin`](super::Pinning::pin) said, because asking takes a lock that all
//! workers share.

use core::net::IpAddr;

use wire::Vni;

use super::Pin;
use crate::choice::{Flow, Remote};

/// Number of entries. A queue pair whose entry another one has taken is asked about again.
const ENTRIES: usize = 4096;

/// A queue pair towards a remote VTEP, and when it was asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Question {
    flow: Flow,
    vni: Vni,
    ends: (IpAddr, IpAddr),
    destination_port: u16,
    version: u64,
}

/// A question and its answer.
type Known = (Question, Option<Pin>);

/// The paths of the queue pairs that were asked about last, in a table with one place for each hash.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownPins {
    /// Empty until the first queue pair is asked about.
    entries: Box<[Option<Known>]>,
}

impl KnownPins {
    /// The path of a queue pair. `ask` is asked if it is not known in this version.
    pub(super) fn get_or(
        &mut self,
        (flow, to): (&Flow, &Remote<'_>),
        version: u64,
        ask: impl FnOnce() -> Option<Pin>,
    ) -> Option<Pin> {
        let Remote { vni, local, address, destination_port, .. } = *to;
        let question =
            Question { flow: *flow, vni, ends: (local, address), destination_port, version };
        if self.entries.is_empty() {
            self.entries = vec![None; ENTRIES].into();
        }
        let Some(entry) = self.entries.get_mut(flow.hash as usize % ENTRIES) else { return ask() };
        match entry {
            Some((known, pin)) if *known == question => *pin,
            _ => {
                let pin = ask();
                *entry = Some((question, pin));
                pin
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;
    use core::num::NonZeroU32;

    use super::*;
    use crate::group::Paths;
    use crate::key::{Key, Reason};

    #[test]
    fn each_question_is_asked_once() {
        let group = Paths::default();
        let [host, other, local, remote] =
            [1, 2, 3, 4].map(|low| Ipv4Addr::new(10, 0, 0, low).into());
        let queue_pair = 17.try_into().unwrap();
        let key = Key::QueuePair { source: host, destination: other, queue_pair };
        let flow = Flow { key, reason: Reason::Roce, hash: 5, roce_port: 50_000 };
        let to = Remote {
            vni: Vni::try_from(100).unwrap(),
            local,
            address: remote,
            destination_port: 4789,
            group: &group,
        };
        let mut known = KnownPins::default();
        let mut ask = |flow: &Flow, to: &Remote<'_>, version| {
            let mut asked = false;
            let pin = known.get_or((flow, to), version, || {
                asked = true;
                let slot = NonZeroU32::new(u32::from(flow.roce_port) + version as u32)?;
                Some(Pin { hop: 1, source_port: flow.roce_port, slot })
            });
            (asked, pin.unwrap().slot.get())
        };
        assert_eq!([ask(&flow, &to, 1), ask(&flow, &to, 1)], [(true, 50_001), (false, 50_001)]);
        assert_eq!([ask(&flow, &to, 2), ask(&flow, &to, 2)], [(true, 50_002), (false, 50_002)]);
        // All of these have the same place in the table.
        let port = Flow { roce_port: 50_001, ..flow };
        let pair =
            Key::QueuePair { source: host, destination: other, queue_pair: 18.try_into().unwrap() };
        let pair = Flow { key: pair, ..flow };
        let wrapped = Flow { hash: 5 + ENTRIES as u64, ..flow };
        for flow in [port, pair, wrapped, flow] {
            assert!(ask(&flow, &to, 2).0 && !ask(&flow, &to, 2).0, "{flow:?}");
        }
        let vni = Remote { vni: Vni::try_from(101).unwrap(), ..to };
        let vtep = Remote { address: local, ..to };
        let leaf = Remote { local: remote, ..to };
        let service = Remote { destination_port: 8472, ..to };
        for to in [vni, vtep, leaf, service, to] {
            assert!(ask(&flow, &to, 2).0 && !ask(&flow, &to, 2).0, "{to:?}");
        }
    }
}
