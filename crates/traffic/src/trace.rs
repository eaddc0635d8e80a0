//! Where the frames of each queue pair go, whoever encapsulates them: what the links between leaves
//! send is captured. The kernel copies packets for that beside its own work.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fabric::counters::CountersError;
use fabric::deployed::{Deployed, Host};
use fabric::topology::Endpoint;
use nix::net::if_::if_nametoindex;
use ports::{CaptureFilter, CaptureSocket};
use wire::dissect;
use wire::number::PROTOCOL_UDP;

/// How often captured packets are read. Some ten thousand find room meanwhile.
const PERIOD: Duration = Duration::from_millis(20);
/// The most changes whose time is kept. More are counted.
const MOST_CHANGES: usize = 1000;
/// Bytes of the headers of UDP and VXLAN.
const UDP_AND_VXLAN: usize = 16;

/// Captures at the sending ends of the links that a stream can take.
#[derive(Debug)]
pub struct Trace {
    source: IpAddr,
    links: Vec<Link>,
    /// The same time on both clocks.
    start: (Instant, Duration),
}

/// A link, and what captures there.
#[derive(Debug)]
struct Link {
    tier: usize,
    name: String,
    socket: CaptureSocket,
}

/// A frame that was seen on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    /// Since 1970.
    time: Duration,
    queue_pair: u32,
    /// Its index.
    link: usize,
}

/// A queue pair has another link than before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// When its first frame took the new one.
    pub at: Instant,
    /// Its number.
    pub queue_pair: u32,
    /// The sending ends of the links, as `node:interface`.
    pub from: String,
    /// The new one.
    pub to: String,
}

/// Where queue pairs went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traced {
    /// By number.
    pub queue_pairs: BTreeMap<u32, Way>,
    /// The first 1,000 changes, in the order of their times.
    pub changes: Vec<Change>,
    /// Packets that found no room: ways and changes are not complete.
    pub missed: u64,
}

/// Where a queue pair went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Way {
    /// The sending ends of the links that its last frame took, from the first; without those where no
    /// frame was seen.
    pub links: Vec<String>,
    /// How often it had another link than before, in the tier of links where that happened most.
    pub moves: u32,
}

impl Trace {
    /// Captures what the host `from` sends over these links, which are in tiers in the order that
    /// frames take them.
    ///
    /// # Errors
    /// [`CountersError`], for example if there is no such interface.
    pub fn open(
        deployed: &Deployed,
        from: &Host,
        tiers: &[Vec<Endpoint>],
    ) -> Result<Self, CountersError> {
        let vni = wire::Vni::try_from(from.vni).ok();
        let filter = CaptureFilter::Vxlan { ports: vec![from.udp_port], vni };
        let mut links = Vec::new();
        for (tier, ends) in tiers.iter().enumerate() {
            for end in ends {
                let open = || {
                    let index = if_nametoindex(end.interface.as_str()).map_err(io::Error::from)?;
                    CaptureSocket::open(index, &filter)
                };
                let socket = deployed.namespace(&end.node)?.enter(open)??;
                links.push(Link { tier, name: end.to_string(), socket });
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self { source: from.address.into(), links, start: (Instant::now(), now) })
    }

    /// Follows frames until `stop` is set.
    #[must_use]
    pub fn run(mut self, stop: &AtomicBool) -> Traced {
        let mut followed = Followed::default();
        let mut seen = Vec::new();
        loop {
            let ends = stop.load(Ordering::Relaxed);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            for at in 0..self.links.len() {
                self.read(at, &mut seen);
            }
            seen.sort_unstable();
            // Later ones may have come while other links were read.
            let ready = match ends {
                true => seen.len(),
                false => seen.partition_point(|of: &Seen| of.time < now),
            };
            for of in seen.drain(..ready) {
                followed.follow(of, &self.links);
            }
            if ends {
                break;
            }
            std::thread::sleep(PERIOD);
        }
        let missed = self.links.iter_mut().map(|link| link.socket.lost().unwrap_or(1)).sum();
        followed.result(&self, missed)
    }

    /// Reads what a link has sent. One that is down has nothing to read.
    fn read(&mut self, link: usize, seen: &mut Vec<Seen>) {
        let Some(Link { socket, .. }) = self.links.get_mut(link) else { return };
        loop {
            match socket.receive() {
                Ok(Some(captured)) if captured.outgoing => {
                    if let Some(queue_pair) = queue_pair(captured.frame.data, self.source) {
                        seen.push(Seen { time: captured.time, queue_pair, link });
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }
}

/// The destination queue pair of the frame of this host in a VXLAN packet.
fn queue_pair(packet: &[u8], source: IpAddr) -> Option<u32> {
    let outer = dissect(packet)?.transport.filter(|of| of.protocol == PROTOCOL_UDP)?;
    let frame = packet.get(usize::from(outer.offset) + UDP_AND_VXLAN..)?;
    let inner = dissect(frame)?;
    let is_own = inner.network.addresses().is_some_and(|(from, _)| from == source);
    Some(inner.roce.filter(|_| is_own)?.destination.get())
}

/// What was followed so far.
#[derive(Debug, Default)]
struct Followed {
    /// By queue pair and tier: the last link, and the number of changes.
    ways: BTreeMap<u32, BTreeMap<usize, (usize, u32)>>,
    /// Time, queue pair, and both links.
    changes: Vec<(Duration, u32, usize, usize)>,
}

impl Followed {
    fn follow(&mut self, Seen { time, queue_pair, link }: Seen, links: &[Link]) {
        let Some(tier) = links.get(link).map(|link| link.tier) else { return };
        self.note((time, queue_pair, link), tier);
    }

    fn note(&mut self, (time, queue_pair, link): (Duration, u32, usize), tier: usize) {
        let way = self.ways.entry(queue_pair).or_default();
        let (last, moves) = way.entry(tier).or_insert((link, 0));
        let before = std::mem::replace(last, link);
        if before == link {
            return;
        }
        *moves += 1;
        if self.changes.len() < MOST_CHANGES {
            self.changes.push((time, queue_pair, before, link));
        }
    }

    fn result(self, trace: &Trace, missed: u64) -> Traced {
        let (instant, since_1970) = trace.start;
        let name = |link: usize| trace.links.get(link).map(|of| of.name.clone());
        let way = |tiers: BTreeMap<usize, (usize, u32)>| Way {
            links: tiers.values().filter_map(|(link, _)| name(*link)).collect(),
            moves: tiers.values().map(|(_, moves)| *moves).max().unwrap_or_default(),
        };
        let change = |(time, queue_pair, from, to): (Duration, u32, usize, usize)| Change {
            at: instant + time.saturating_sub(since_1970),
            queue_pair,
            from: name(from).unwrap_or_default(),
            to: name(to).unwrap_or_default(),
        };
        Traced {
            queue_pairs: self
                .ways
                .into_iter()
                .map(|(number, tiers)| (number, way(tiers)))
                .collect(),
            changes: self.changes.into_iter().map(change).collect(),
            missed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const HOST: Ipv4Addr = Ipv4Addr::new(192, 168, 10, 1);

    /// A frame of `from` to a queue pair, in a VXLAN packet.
    fn packet(from: Ipv4Addr, queue_pair: u32, port: u16) -> Vec<u8> {
        let ipv4 = |source: Ipv4Addr, payload: &[u8]| {
            let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
            let mut ip = vec![0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, 17, 0, 0];
            ip.extend(source.octets());
            ip.extend([10, 0, 0, 2]);
            [&[0; 12][..], &[8, 0], &ip, payload].concat()
        };
        let udp = |port: u16, payload: &[u8]| {
            let length = u16::try_from(8 + payload.len()).unwrap().to_be_bytes();
            [&[0xc0, 0], &port.to_be_bytes()[..], &length, &[0, 0], payload].concat()
        };
        let number = queue_pair.to_be_bytes();
        let bth = [4, 0, 0xff, 0xff, 0, number[1], number[2], number[3], 0, 0, 0, 1];
        let inner = ipv4(from, &udp(port, &[&bth[..], &[0; 36]].concat()));
        let vxlan = [&[8, 0, 0, 0, 0, 0, 10, 0][..], &inner].concat();
        ipv4(Ipv4Addr::new(10, 0, 0, 1), &udp(4789, &vxlan))
    }

    #[test]
    fn a_packet_has_the_queue_pair_of_the_frame_in_it() {
        let source = IpAddr::from(HOST);
        let own = packet(HOST, 0x01_02_03, 4791);
        assert_eq!(queue_pair(&own, source), Some(0x01_02_03));
        assert_eq!(queue_pair(&packet(Ipv4Addr::LOCALHOST, 7, 4791), source), None, "a peer's");
        assert_eq!(queue_pair(&packet(HOST, 7, 4792), source), None, "no RoCE");
        for end in 0..own.len() {
            assert_eq!(queue_pair(&own[..end], source), None, "cut at {end}");
        }
    }

    #[test]
    fn each_tier_has_its_link_and_a_move_counts_once() {
        let mut followed = Followed::default();
        let millisecond = Duration::from_millis;
        // Links 0 and 1 are those of a leaf, 2 and 3 the next ones.
        let frames = [(1, 7, 0, 0), (1, 8, 1, 0), (2, 7, 2, 1), (3, 7, 0, 0), (4, 7, 1, 0)];
        let others = [(5, 7, 3, 1), (6, 8, 1, 0), (7, 7, 0, 0)];
        for (time, queue_pair, link, tier) in frames.into_iter().chain(others) {
            followed.note((millisecond(time), queue_pair, link), tier);
        }
        let moves = |queue_pair: u32| {
            let of = followed.ways[&queue_pair].iter();
            of.map(|(tier, (link, moves))| (*tier, *link, *moves)).collect::<Vec<_>>()
        };
        assert_eq!(moves(7), [(0, 0, 2), (1, 3, 1)]);
        assert_eq!(moves(8), [(0, 1, 0)]);
        let changes = [(4, 7, 0, 1), (5, 7, 2, 3), (7, 7, 1, 0)];
        assert_eq!(followed.changes, changes.map(|(at, a, b, c)| (millisecond(at), a, b, c)));
        for turn in 0..2 * MOST_CHANGES {
            followed.note((millisecond(9), 8, turn % 2), 0);
        }
        assert_eq!(followed.changes.len(), MOST_CHANGES);
        assert!(followed.ways[&8][&0].1 as usize > MOST_CHANGES, "they are counted all the same");
        let trace = Trace {
            source: HOST.into(),
            links: Vec::new(),
            start: (Instant::now(), millisecond(1)),
        };
        let traced = followed.result(&trace, 3);
        assert_eq!((traced.missed, traced.queue_pairs[&7].moves), (3, 2), "the most of a tier");
        assert_eq!(traced.changes[0].at, trace.start.0 + millisecond(3));
    }
}
