//! The filter of the sockets of probes: whose packets pass, and how many.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use bpf::{ProbeFilter, ProbesRefused};
use fabric::netns::{Namespace, veth};
use ports::ProbeSocket;
use ports::probe_socket::Underlay;
use root_test::root_test;
use test_frames::{IPV4, IPV6, Ipv4, Ipv6, UDP, ethernet, ipv4, ipv6, udp, vxlan};

const MACS: ([u8; 6], [u8; 6]) = ([2, 0, 0, 0, 1, 0], [2, 0, 0, 0, 0, 1]);
const LOCAL: [u8; 4] = [10, 0, 0, 1];
/// Packets with a token that was told that a VTEP may send in a second.
const RATE: u32 = 1000;
/// The others: with the opening token, without any, without any from all VTEPs, and ICMP errors.
const OPENING: u32 = 256;
const WITHOUT: u32 = 256;
const ALL_WITHOUT: u32 = 8192;
const ERRORS: u32 = 1024;
const TOKENS: [u32; 4] = [11, 12, 13, 14];
const NO_TOKEN: u32 = 0;
const ICMP: u8 = 1;
const TIME_EXCEEDED: u8 = 11;

/// A VTEP.
fn vtep(number: u8) -> [u8; 4] {
    [10, 0, 0, number]
}

/// A message with this token.
fn message(token: u32) -> Vec<u8> {
    let mut message = vec![0; 24];
    message.extend_from_slice(&token.to_be_bytes());
    message.resize(44, 0);
    let inner = ethernet([2; 6], [4; 6], 0x88b5, &message);
    udp((50_000, 4789), &vxlan(0xff_ffff, 0, &inner))
}

fn packet(from: [u8; 4], token: u32) -> Vec<u8> {
    let packet = ipv4((from, LOCAL), UDP, &message(token), Ipv4::default());
    ethernet(MACS.0, MACS.1, IPV4, &packet)
}

/// A router's error about a packet from here to this VTEP.
fn error(about: [u8; 4]) -> Vec<u8> {
    let quoted = ipv4((LOCAL, about), UDP, &message(NO_TOKEN), Ipv4::default());
    let icmp = [&[TIME_EXCEEDED, 0, 0, 0, 0, 0, 0, 0], &quoted[..]].concat();
    let packet = ipv4(([10, 1, 0, 0], LOCAL), ICMP, &icmp, Ipv4::default());
    ethernet(MACS.0, MACS.1, IPV4, &packet)
}

/// An uplink, with a router that sends.
struct Uplink {
    _leaf: Namespace,
    _router: Namespace,
    filter: ProbeFilter,
    sockets: [ProbeSocket; 2],
    sender: ProbeSocket,
    from: u32,
}

impl Uplink {
    /// `vteps` are known.
    fn new(tag: &str, vteps: std::ops::Range<u8>) -> Self {
        let name = |node: &str| format!("vtp-{tag}-{node}-{}", std::process::id());
        let [leaf, router] = ["leaf", "router"].map(|node| {
            let namespace = Namespace::create(name(node)).unwrap();
            namespace.run(&["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"]).unwrap();
            namespace
        });
        veth((&leaf, "up1"), (&router, "leaf"), 1500).unwrap();
        leaf.run(&["ip", "link", "set", "up1", "address", "02:00:00:00:00:01"]).unwrap();
        let index = |of: &Namespace, name: &str| {
            of.enter(|| nix::net::if_::if_nametoindex(name).unwrap()).unwrap()
        };
        let mut filter = ProbeFilter::load(RATE).unwrap();
        let mut open = |underlay| {
            let attach = |socket: std::os::fd::BorrowedFd<'_>| {
                filter.attach(socket).map_err(std::io::Error::other)
            };
            leaf.enter(|| ProbeSocket::open(underlay, attach).unwrap()).unwrap()
        };
        let sockets = [Underlay::Ipv4, Underlay::Ipv6].map(&mut open);
        filter.set_uplinks(&BTreeSet::from([index(&leaf, "up1")])).unwrap();
        for number in vteps {
            filter.set_sender((vtep(number).into(), LOCAL.into()), TOKENS).unwrap();
        }
        let open = || ProbeSocket::open(Underlay::Ipv4, |_| Ok(())).unwrap();
        let (sender, from) = (router.enter(open).unwrap(), index(&router, "leaf"));
        Self { _leaf: leaf, _router: router, filter, sockets, sender, from }
    }

    fn refused(&self) -> u64 {
        let ProbesRefused { not_from_uplink, not_from_vtep, over_limit } =
            self.filter.refused().unwrap();
        assert_eq!(not_from_uplink, 0);
        not_from_vtep + over_limit
    }

    /// Sends packets that the filter counts. Returns how many of them passed, and the time that this
    /// took in seconds.
    fn pass(&self, packets: &[Vec<u8>]) -> (u32, f64) {
        let (began, before, mut passed) = (Instant::now(), self.refused(), 0);
        for some in packets.chunks(256) {
            some.iter().for_each(|packet| self.sender.send(self.from, packet).unwrap());
            passed += self.read();
        }
        while u64::from(passed) + self.refused() - before < packets.len() as u64 {
            assert!(began.elapsed() < Duration::from_secs(30), "{passed} of {}", packets.len());
            passed += self.read();
        }
        (passed, began.elapsed().as_secs_f64())
    }

    /// Reads what has passed. Returns its number.
    fn read(&self) -> u32 {
        let mut buffer = [0; 2048];
        let mut next = || self.sockets.iter().find_map(|of| of.receive(&mut buffer).unwrap());
        let number = std::iter::from_fn(&mut next).count();
        u32::try_from(number).unwrap()
    }

    /// Of these packets, a second's worth passes at once, and then as many in a second.
    fn is_limited(&self, packets: &[Vec<u8>], rate: u32) {
        let (passed, took) = self.pass(packets);
        let most = rate + 2 + (took * f64::from(rate)) as u32;
        assert!((rate..=most).contains(&passed), "{passed} of {} in {took} s", packets.len());
    }

    /// All of these pass.
    fn is_open(&self, packet: Vec<u8>, number: usize) {
        assert_eq!(self.pass(&vec![packet; number]).0 as usize, number);
    }
}

#[root_test]
fn who_has_a_token_and_other_vteps_have_limits_of_their_own() {
    let uplink = Uplink::new("plimit", 2..4);
    uplink.is_limited(&vec![packet(vtep(2), NO_TOKEN); 3000], WITHOUT);
    // Those with a token in the name of the same VTEP, and others, are not held up.
    uplink.is_open(packet(vtep(3), NO_TOKEN), 200);
    for token in TOKENS {
        uplink.is_open(packet(vtep(2), token), 200);
    }
    let uplink = Uplink::new("plimit2", 2..4);
    uplink.is_limited(&vec![packet(vtep(2), TOKENS[3]); 3000], OPENING);
    uplink.is_limited(&vec![packet(vtep(2), TOKENS[0]); 4000], RATE);
    uplink.is_limited(&vec![packet(vtep(2), NO_TOKEN); 3000], WITHOUT);
}

/// Whoever claims to be all of them at once.
#[root_test]
fn all_vteps_without_a_token_have_one_limit_together() {
    let uplink = Uplink::new("pall", 2..102);
    let flood: Vec<Vec<u8>> =
        (0..300).flat_map(|_| (2..102).map(|number| packet(vtep(number), NO_TOKEN))).collect();
    uplink.is_limited(&flood, ALL_WITHOUT);
    for number in 2..102 {
        uplink.is_open(packet(vtep(number), TOKENS[3]), 1);
        uplink.is_open(packet(vtep(number), TOKENS[1]), 1);
    }
}

#[root_test]
fn errors_about_packets_to_vteps_have_a_limit() {
    let uplink = Uplink::new("perror", 2..3);
    // Nobody is told of those about others: the one behind them is the first that passes.
    uplink.sender.send(uplink.from, &error(vtep(9))).unwrap();
    uplink.is_limited(&vec![error(vtep(2)); 5000], ERRORS);
}

#[root_test]
fn ipv6_has_the_same_limits() {
    let mut uplink = Uplink::new("psix", 2..3);
    let [from, to] = [2, 1].map(|low| {
        let mut address = [0; 16];
        (address[0], address[15]) = (0xfd, low);
        address
    });
    let ends = (IpAddr::from(from), IpAddr::from(to));
    uplink.filter.set_sender(ends, TOKENS).unwrap();
    let packet = |token| {
        let packet = ipv6((from, to), UDP, &message(token), Ipv6::default());
        ethernet(MACS.0, MACS.1, IPV6, &packet)
    };
    uplink.is_limited(&vec![packet(NO_TOKEN); 3000], WITHOUT);
    uplink.is_open(packet(TOKENS[1]), 200);
    uplink.filter.remove_sender(ends).unwrap();
    assert_eq!(uplink.pass(&vec![packet(TOKENS[1]); 200]).0, 0);
}
