//! Shares of the table of queue pairs. A host can send frames with any number of queue pair, at no
//! cost. Its share, and that of its VNI, keep room for the queue pairs of others.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use super::{FlowId, Options};
use crate::limit::Limit;

/// New queue pairs a second of a host and of a VNI, after as many at once as their share of the
/// table has. A job starts all queue pairs of a host at once, some hundred to a few thousand.
const HOST_RATE: u32 = 1024;
const VNI_RATE: u32 = 8192;
/// Parts of the table that a host and a VNI can have, but no less than [`LEAST`] queue pairs.
const HOST_PART: u32 = 16;
const VNI_PART: u32 = 2;
const LEAST: u32 = 1024;
/// How often a host without queue pairs is looked at, whether it can be forgotten.
const WITHOUT: Duration = Duration::from_secs(4);
/// For how long idle queue pairs make room after one was refused.
const SHORT: Duration = Duration::from_secs(2);

/// An inner source address in a VNI.
type Host = (u32, Option<IpAddr>);

/// Why a queue pair has the path of `qp-hash`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    /// The table is full.
    Table,
    /// Its VNI has its share of the table.
    Vni,
    /// Its host has its share of the table.
    Host,
    /// Too many new queue pairs of its VNI in a short time.
    VniRate,
    /// Too many new queue pairs of its host in a short time.
    HostRate,
}

impl Beyond {
    /// All reasons, in the order of [`super::Counts::beyond`].
    pub const ALL: [Self; 5] = [Self::Table, Self::Vni, Self::Host, Self::VniRate, Self::HostRate];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Vni => "vni",
            Self::Host => "host",
            Self::VniRate => "vni-rate",
            Self::HostRate => "host-rate",
        }
    }
}

impl Options {
    /// The most queue pairs of a VNI: half of the table.
    #[must_use]
    pub fn vni_share(&self) -> u32 {
        (self.most / VNI_PART).max(LEAST).min(self.most)
    }

    /// The most queue pairs of a host in a VNI: a sixteenth of the table.
    #[must_use]
    pub fn host_share(&self) -> u32 {
        (self.most / HOST_PART).max(LEAST).min(self.most)
    }
}

/// What a host or a VNI has of the table.
#[derive(Debug)]
struct Share {
    most: u32,
    held: u32,
    new: Limit,
    /// Messages of the communication manager.
    messages: Limit,
    /// Whether it is among [`Shares::without`].
    is_without: bool,
    /// When a queue pair was refused because there was no room.
    refused: Option<Duration>,
}

impl Share {
    fn new(rate: u32, most: u32) -> Self {
        let limit = Limit::new(rate, most);
        Self {
            most,
            held: 0,
            new: limit.clone(),
            messages: limit,
            is_without: false,
            refused: None,
        }
    }

    const fn is_full(&self) -> bool {
        self.held >= self.most
    }

    /// Whether there is room for one more. If there is not, that is remembered.
    fn has_room(&mut self, now: Duration) -> bool {
        let is_full = self.is_full();
        if is_full {
            self.refused = Some(now);
        }
        !is_full
    }

    /// Whether a queue pair was refused lately.
    fn is_short(&self, now: Duration) -> bool {
        is_recent(self.refused, now)
    }

    /// Whether a new one would have all that this one has.
    fn is_like_new(&mut self, now: Duration) -> bool {
        self.held == 0 && self.new.is_full(now) && self.messages.is_full(now)
    }
}

/// The shares of all VNIs and hosts.
#[derive(Debug)]
pub(super) struct Shares {
    of_vni: u32,
    of_host: u32,
    vnis: HashMap<u32, Share>,
    hosts: HashMap<Host, Share>,
    /// When a queue pair was refused because the table was full.
    refused: Option<Duration>,
    /// Hosts that had no queue pair at this time. They are forgotten once their limits are full again.
    without: VecDeque<(Duration, Host)>,
}

impl Shares {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            of_vni: options.vni_share(),
            of_host: options.host_share(),
            vnis: HashMap::new(),
            hosts: HashMap::new(),
            refused: None,
            without: VecDeque::new(),
        }
    }

    fn vni(&mut self, vni: u32) -> &mut Share {
        self.vnis.entry(vni).or_insert_with(|| Share::new(VNI_RATE, self.of_vni))
    }

    fn host(&mut self, host: Host, now: Duration) -> &mut Share {
        self.expire(now);
        self.hosts.entry(host).or_insert_with(|| {
            self.without.push_back((now, host));
            Share { is_without: true, ..Share::new(HOST_RATE, self.of_host) }
        })
    }

    /// Forgets hosts without queue pairs: at most two, as a call for each adds at most one.
    fn expire(&mut self, now: Duration) {
        for _ in 0..2 {
            let due = self.without.front().filter(|(at, _)| now.saturating_sub(*at) >= WITHOUT);
            let Some((_, host)) = due.copied() else { return };
            self.without.pop_front();
            let Some(share) = self.hosts.get_mut(&host) else { continue };
            share.is_without = share.held == 0;
            if share.is_like_new(now) {
                self.hosts.remove(&host);
            } else if share.is_without {
                self.without.push_back((now, host));
            }
        }
    }

    /// Takes an entry of the table for a new queue pair, if there is any, and if its host and VNI may
    /// have one more.
    pub(super) fn take(
        &mut self,
        id: &FlowId,
        has_table: bool,
        now: Duration,
    ) -> Result<(), Beyond> {
        if !has_table {
            self.refused = Some(now);
            return Err(Beyond::Table);
        }
        // A VNI beyond its share makes no host known: hosts can invent addresses.
        let vni = self.vni(id.vni);
        if !vni.has_room(now) {
            return Err(Beyond::Vni);
        }
        if !vni.new.has(now) {
            return Err(Beyond::VniRate);
        }
        let host = self.host(host(id), now);
        if !host.has_room(now) {
            return Err(Beyond::Host);
        }
        if !host.new.take(now) {
            return Err(Beyond::HostRate);
        }
        host.held += 1;
        let vni = self.vni(id.vni);
        vni.new.take(now);
        vni.held += 1;
        Ok(())
    }

    /// Gives the entry of a queue pair back.
    pub(super) fn give_back(&mut self, id: &FlowId, now: Duration) {
        let host = host(id);
        if let Some(share) = self.hosts.get_mut(&host) {
            share.held = share.held.saturating_sub(1);
            if share.held == 0 && !std::mem::replace(&mut share.is_without, true) {
                self.without.push_back((now, host));
            }
        }
        let vni = self.vni(id.vni);
        vni.held = vni.held.saturating_sub(1);
        self.expire(now);
    }

    /// Whether a host may send one more message of the communication manager. If so, it is counted.
    pub(super) fn take_message(&mut self, vni: u32, host: IpAddr, now: Duration) -> bool {
        self.vni(vni).messages.has(now)
            && self.host((vni, Some(host)), now).messages.take(now)
            && self.vni(vni).messages.take(now)
    }

    /// Whether others need the room of a queue pair.
    pub(super) fn are_short(&self, id: &FlowId, now: Duration) -> bool {
        let [host, vni] = [self.hosts.get(&host(id)), self.vnis.get(&id.vni)];
        is_recent(self.refused, now)
            || host.is_some_and(|share| share.is_short(now))
            || vni.is_some_and(|share| share.is_short(now))
    }

    /// Whether the VNI or the host of a queue pair has all that it can have.
    pub(super) fn beyond(&self, id: &FlowId) -> Option<Beyond> {
        let [host, vni] = [self.hosts.get(&host(id)), self.vnis.get(&id.vni)];
        let is_full = |share: Option<&Share>| share.is_some_and(Share::is_full);
        match (is_full(vni), is_full(host)) {
            (true, _) => Some(Beyond::Vni),
            (_, true) => Some(Beyond::Host),
            _ => None,
        }
    }
}

/// Whether something was a short time ago.
fn is_recent(at: Option<Duration>, now: Duration) -> bool {
    at.is_some_and(|at| now.saturating_sub(at) < SHORT)
}

/// The host that sends a queue pair.
fn host(id: &FlowId) -> Host {
    (id.vni, id.channel().map(|(channel, _)| channel.hosts.0))
}

#[cfg(test)]
mod tests {
    use path::Key;
    use wire::QueuePair;

    use super::super::Target;
    use super::*;

    fn id(vni: u32, host: u32, queue_pair: u32) -> FlowId {
        let [source, destination] = [host, 1].map(|of| IpAddr::from(of.to_be_bytes()));
        let queue_pair = QueuePair::try_from(queue_pair).unwrap();
        let key = Key::QueuePair { source, destination, queue_pair };
        let address = IpAddr::from([10, 0, 0, 1]);
        let target = Target { local: address, address, port: 4789, by_kernel: false };
        FlowId { vni, key, target }
    }

    fn shares() -> Shares {
        Shares::new(&Options::default())
    }

    const AT: fn(u64) -> Duration = Duration::from_millis;

    fn take(shares: &mut Shares, id: FlowId, millisecond: u64) -> Result<(), Beyond> {
        shares.take(&id, true, AT(millisecond))
    }

    #[test]
    fn a_host_has_its_share_and_others_have_theirs() {
        let mut shares = shares();
        for queue_pair in 0..4096 {
            assert_eq!(take(&mut shares, id(1, 9, queue_pair), 0), Ok(()), "all at once");
        }
        assert_eq!(take(&mut shares, id(1, 9, 5000), 5000), Err(Beyond::Host));
        assert!(
            shares.beyond(&id(1, 9, 0)) == Some(Beyond::Host)
                && shares.beyond(&id(1, 8, 0)).is_none()
        );
        for (vni, host) in [(1, 8), (2, 9)] {
            for queue_pair in 0..1024 {
                assert_eq!(take(&mut shares, id(vni, host, queue_pair), 5000), Ok(()));
            }
        }
        shares.give_back(&id(1, 9, 7), AT(5000));
        assert_eq!(take(&mut shares, id(1, 9, 5000), 5000), Ok(()));
    }

    /// Its queue pairs end as fast as they begin.
    #[test]
    fn new_queue_pairs_of_a_host_have_a_rate_however_often_it_is_forgotten() {
        let mut shares = shares();
        let mut placed = 0;
        for millisecond in 0..20_000 {
            for number in 0..25 {
                let id = id(1, 9, millisecond * 25 + number);
                if take(&mut shares, id, millisecond.into()).is_ok() {
                    placed += 1;
                    shares.give_back(&id, AT(millisecond.into()));
                }
            }
        }
        assert!((4096 + 20_000..=4096 + 21_000).contains(&placed), "{placed}");
    }

    /// A host that invents source addresses takes from its own VNI only, and fills no memory.
    #[test]
    fn invented_hosts_have_the_share_of_their_vni() {
        let mut shares = shares();
        let mut beyond = Vec::new();
        for host in 0..200_000 {
            beyond.extend(take(&mut shares, id(1, host, 0), u64::from(host) / 25).err());
        }
        assert_eq!(shares.vnis[&1].held, 32_768);
        assert!(shares.hosts.len() <= 32_768 && beyond.contains(&Beyond::Vni));
        assert_eq!(take(&mut shares, id(2, 9, 0), 8000), Ok(()));
        // They send nothing more, and are forgotten together with their queue pairs.
        (0..200_000).for_each(|host| shares.give_back(&id(1, host, 0), AT(8000)));
        (0..40_000).for_each(|_| _ = take(&mut shares, id(2, 9, 0), 30_000));
        assert!(shares.hosts.len() <= 1, "{}", shares.hosts.len());
    }

    #[test]
    fn messages_of_the_communication_manager_have_a_rate_for_each_host() {
        let mut shares = shares();
        let host = |number: u32| IpAddr::from(number.to_be_bytes());
        let taken = (0..10_000).filter(|_| shares.take_message(1, host(9), AT(0))).count();
        assert_eq!(taken, 4096);
        assert!(shares.take_message(1, host(8), AT(0)) && shares.take_message(2, host(9), AT(0)));
    }

    #[test]
    fn a_small_table_has_no_small_shares() {
        let shares = |most| {
            let options = Options { most, ..Options::default() };
            (options.vni_share(), options.host_share())
        };
        let all = [10, 2000, 65_536, 1_000_000].map(shares);
        assert_eq!(all, [(10, 10), (1024, 1024), (32_768, 4096), (500_000, 62_500)]);
    }
}
