//! Seed corpora, generated at run time: frames of every kind, recorded FPM streams of FRR, the
//! kernel's answers to dump requests, configuration files and API requests.
//!
//! Each target writes its own seeds: `VTEPD_FUZZ_SEEDS=FOLDER TARGET`. `tests/fuzz/run` does that.

use std::fs;
use std::path::{Path, PathBuf};

use test_frames::{IPV4, IPV6, Ipv4, Ipv6};

use crate::{frames, kernel, probes, requests, spraying};

/// Root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// If the environment requests it, writes the target's seeds and exits.
pub fn write_if_asked(target: &str) {
    let Some(folder) = std::env::var_os("VTEPD_FUZZ_SEEDS").map(PathBuf::from) else { return };
    let seeds = seeds(target);
    assert!(!seeds.is_empty(), "{target} has no seeds");
    fs::create_dir_all(&folder).unwrap();
    for (seed, number) in seeds.iter().zip(0..) {
        fs::write(folder.join(format!("{number:04}")), seed).unwrap();
    }
    std::process::exit(0);
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    match target {
        "dissect" => hosts_frames(),
        "encapsulate" => offloaded(&[]),
        "decapsulate" => [offloaded(&[0]), offloaded(&[0xc0]), outer()].concat(),
        "fpm_stream" => fpm_streams(),
        "netlink_decode" => [netlink_payloads(), kernel::dumps()].concat(),
        "configuration" => configurations(),
        "api_request" => requests::seeds(),
        "steering" => [behind(&[0, 0]), behind(&[1]), outer_frames(&[0, 1])].concat(),
        "offload" => {
            [behind(&[0, 0]), behind(&[7, 2]), behind(&[1, 1, 2]), behind(&[3, 3, 0x29])].concat()
        }
        "chosen_port" => (0..6).flat_map(|policy| behind(&[policy])).collect(),
        "probe_message" => probes::seeds(),
        "probe_exchange" => probes::exchanges(),
        "resequence" => spraying::seeds(),
        "topology" => [
            read_all("deploy/containerlab", ".clab.yml"),
            read_all("tests/tests/system/evpn/other_lab", ".clab.yml"),
        ]
        .concat(),
        "experiment" => [read_all("deploy/experiments", ".toml"), blocks("docs/guide")].concat(),
        "simulation" => [read_all("deploy/simulations", ".toml"), blocks("docs/guide")].concat(),
        "matrix" => read_all("crates/sim/tests/reference", ".cm"),
        "plan" => [read_all("deploy/plans", ".toml"), blocks("docs/guide")].concat(),
        _ => panic!("no target has the name {target}"),
    }
}

fn behind(head: &[u8]) -> Vec<Vec<u8>> {
    hosts_frames().iter().map(|frame| [head, frame].concat()).collect()
}

/// Frames with the kernel's metadata: none, a partial checksum, super-frames.
fn offloaded(head: &[u8]) -> Vec<Vec<u8>> {
    let headers: [[u8; 10]; 5] = [
        [0; 10],
        [2, 0, 34, 0, 6, 0, 0, 0, 0, 0],
        [2, 0, 34, 0, 16, 1, 0, 12, 0, 0],
        [2, 0, 54, 0, 16, 2, 0, 12, 0, 0],
        [2, 0, 34, 0, 6, 3, 0, 12, 0, 0],
    ];
    let with = |header: &[u8]| behind(&[header, head].concat());
    headers.iter().flat_map(|header| with(header)).collect()
}

/// Whole frames of the underlay.
fn outer() -> Vec<Vec<u8>> {
    outer_frames(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
}

fn outer_frames(head: &[u8]) -> Vec<Vec<u8>> {
    let whole = |frame: &Vec<u8>| [head, &frames::encapsulated([0; 6], 0, frame)].concat();
    hosts_frames().iter().map(whole).collect()
}

/// Every IP header with every transport header, with and without VLAN tags, unicast and broadcast.
fn hosts_frames() -> Vec<Vec<u8>> {
    let to_one: [u8; 12] = [2, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 1];
    let to_all: [u8; 12] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1];
    let tags: [&[u8]; 4] = [
        &[],
        &[0x81, 0, 0, 5],
        &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6],
        &[0x91, 0, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 0x81, 0, 0, 4],
    ];
    let mut frames =
        vec![[&to_one[..], &[8, 0]].concat(), [&to_all[..], &[0x88, 0xb5, 1, 2]].concat()];
    let mut arp = vec![8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend([2, 0, 0, 0, 0, 1, 10, 1, 0, 1, 0, 0, 0, 0, 0, 0, 10, 1, 0, 2]);
    frames.push([&to_all[..], &arp].concat());
    for (packet, number) in packets().iter().zip(0usize..) {
        frames.push([&to_one[..], packet].concat());
        frames.push([&to_all[..], tags[number % 4], packet].concat());
    }
    frames
}

/// EtherTypes followed by packets.
fn packets() -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for (protocol, payload) in transports() {
        for (options, fragment) in [(0, 0u16), (0, 0x4000), (8, 0), (0, 0x2000), (0, 0x0010)] {
            packets.push(ipv4(protocol, options, fragment, &payload));
        }
        packets.push(ipv6(protocol, &payload));
        for kind in [0u8, 43, 44, 51, 60] {
            let mut header = vec![protocol, 0, 0, 0, 0, 0, 0, 0];
            if kind == 51 {
                (header[1], header) = (1, [&header[..], &[0; 4]].concat());
            }
            packets.push(ipv6(kind, &[&header[..], &payload].concat()));
        }
    }
    packets
}

fn ipv4(protocol: u8, options: usize, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let fields = Ipv4 { tos: 2, identification: 1, options: vec![1; options], ..Ipv4::default() };
    let addresses = ([10, 1, 0, 1], [10, 1, 0, 2]);
    let packet = test_frames::ipv4(addresses, protocol, payload, fields.fragment(fragment));
    [&IPV4.to_be_bytes()[..], &packet].concat()
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let address = |last| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let packet = test_frames::ipv6((address(1), address(2)), next, payload, Ipv6::default());
    [&IPV6.to_be_bytes()[..], &packet].concat()
}

/// Protocol numbers with transport headers and some payload.
fn transports() -> Vec<(u8, Vec<u8>)> {
    let udp = |port: u16, payload: &[u8]| test_frames::udp((0xc000, port), payload);
    let bth = [4, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 1, 0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4];
    let mut tcp = vec![0xc0, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
    tcp.extend([0xaa; 30]);
    let sctp =
        [0xc0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 3, 0, 17, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let solicitation =
        [&[135, 0, 0, 0, 0, 0, 0, 0][..], &[0xfd; 16], &[1, 1, 2, 0, 0, 0, 0, 1]].concat();
    vec![
        (17, udp(4791, &bth)),
        (17, udp(53, &[0x55; 40])),
        (17, udp(4791, &[0; 4])),
        (6, tcp),
        (132, sctp.to_vec()),
        (33, vec![0xc0, 0, 0, 1, 0, 0, 0, 0]),
        (136, vec![0xc0, 0, 0, 1, 0, 0, 0, 0]),
        (1, vec![8, 0, 0, 0, 0, 1, 0, 1]),
        (58, solicitation),
        (59, Vec::new()),
    ]
}

fn read_all(folder: &str, suffix: &str) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(Path::new(ROOT).join(folder)).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(suffix));
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn fpm_streams() -> Vec<Vec<u8>> {
    read_all("tests/fixtures/fpm", ".bin")
        .iter()
        .map(|stream| [&[37], &stream[..]].concat())
        .collect()
}

/// The netlink payloads of zebra's FPM frames.
fn netlink_payloads() -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    for stream in read_all("tests/fixtures/fpm", ".bin") {
        let mut framer = fpm::Framer::new();
        framer.push(&stream);
        while let Ok(Some(frame)) = framer.next_frame() {
            if frame.encoding == fpm::Encoding::Netlink {
                payloads.push(frame.payload.to_vec());
            }
        }
    }
    payloads.sort();
    payloads.dedup();
    payloads
}

/// The TOML blocks of the documents, the packaged file with its commented-out settings enabled, and
/// others.
fn configurations() -> Vec<Vec<u8>> {
    let mut files = [blocks("docs/guide"), blocks("docs/reference")].concat();
    for packaged in read_all("deploy/debian", ".toml") {
        let text = String::from_utf8(packaged).unwrap();
        let in_force = |line: &str| {
            line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).map(str::to_owned)
        };
        let lines = text.lines().map(|line| in_force(line).unwrap_or(line.to_owned()) + "\n");
        files.push(lines.collect::<String>().into_bytes());
    }
    files.extend([EVERY_KEY.into(), STANDALONE.into()]);
    files
}

/// The TOML blocks of the pages in a folder.
fn blocks(folder: &str) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    for page in read_all(folder, ".md") {
        let text = String::from_utf8(page).unwrap();
        let own = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        blocks.extend(own.map(Vec::from));
    }
    blocks
}

const EVERY_KEY: &str = "\
[takeover]
vnis = [10010, 10020]
exclude = [10030]
hook = \"clsact\"
strict-vtep = true
bridge-bypass = false
stall-limit-ms = 50
realtime = false
gso = false
busy-poll = true
workers = 8
[entropy]
policy = \"qp-bins\"
bins = 8
seed = 3
source-ports = \"50000-50999\"
flow-label = \"netdev\"
[learning]
addresses = 10
total = 100
vteps = 5
moves = 3
[underlay]
rebalance = false
[vni.10020]
policy = \"qp-hash\"
bins = 2
source-ports = \"40000-40009\"
flow-label = \"source-port\"
ttl = 3
strict-vtep = false
addresses = 7
[fpm]
enabled = true
listen = \"[::1]:2620\"
unsafe = true
stale-time = 5
[metrics]
listen = \"127.0.0.1:9472\"
[api]
enabled = true
listen = \"@other\"
";

const STANDALONE: &str = "\
[[standalone]]
vni = 10
local = \"192.0.2.1\"
udp-port = 4790
remotes = [\"192.0.2.2\"]
macs = { \"02:00:00:00:00:01\" = \"192.0.2.3\" }
ageing = 30
ports = [{ interface = \"eth1\" }, { tap = \"tap0\", owner = 0, persistent = true, queues = 2, mtu = 1400 }]
[[standalone]]
vni = 11
local = \"192.0.2.1\"
ports = [{ tap = \"tap1\", owner = \"root\" }]
";
