//! Recorded FPM streams of FRR 8.4.4 and 10.3: every stream of `fixtures/fpm` decodes to the
//! contents of its JSON file, however it is split. No damage to a stream makes the decoder panic.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use fpm::{
    Disconnect, Encoding, Event, FrameError, Framer, Generation, Server, Transaction, ZebraTraits,
    decode_frame,
};
use netlink::{
    FdbEntry, Message, NextHop, NextHopKind, Operation, Route, RouteNextHop, RouteTarget, decode,
};
use proptest::prelude::*;
use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// A recorded stream and its expected contents.
struct Recording {
    name: String,
    stream: Vec<u8>,
    json: Value,
}

fn recordings() -> Vec<Recording> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/fpm");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "bin"));
    files.sort();
    // 4 runs of 14 or 15 scenarios, and 4 of the L3VNI.
    assert_eq!(files.len(), 60, "recordings in {}", folder.display());
    let read = |file: &PathBuf| Recording {
        name: file.file_stem().unwrap().to_string_lossy().into_owned(),
        stream: std::fs::read(file).unwrap(),
        json: serde_json::from_slice(&std::fs::read(file.with_extension("json")).unwrap()).unwrap(),
    };
    files.iter().map(read).collect()
}

fn recording(name: &str) -> Recording {
    recordings().into_iter().find(|recording| recording.name == name).unwrap()
}

/// The transactions that are complete so far.
fn drain(framer: &mut Framer) -> Vec<Transaction> {
    std::iter::from_fn(|| framer.next_frame().unwrap())
        .map(|frame| decode_frame(&frame).unwrap())
        .collect()
}

/// The transactions of a whole stream.
fn transactions(stream: &[u8]) -> Vec<Transaction> {
    let mut framer = Framer::new();
    framer.push(stream);
    let transactions = drain(&mut framer);
    assert_eq!(framer.pending(), 0);
    transactions
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len() + 4).unwrap().to_be_bytes();
    [&[1, kind], length.as_slice(), payload].concat()
}

// Converts the JSON to messages. Every key is either translated or listed as not represented, so an
// unknown key fails the test.

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

fn octet(value: &Value) -> u8 {
    u8::try_from(value.as_u64().unwrap()).unwrap()
}

fn ip(value: &Value) -> IpAddr {
    value.as_str().unwrap().parse().unwrap()
}

fn flags(value: &Value, names: &[(&str, u32)]) -> u32 {
    let bit = |name: &str| {
        names.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}")).1
    };
    value.as_str().unwrap().split('|').filter(|name| !name.is_empty()).map(bit).sum()
}

const MESSAGE_FLAGS: [(&str, u32); 4] =
    [("REQUEST", 1), ("REPLACE", 0x100), ("CREATE", 0x400), ("CREATE(sic)", 0x400)];

/// Checks that an object has only keys in `used` or `meaningless`.
fn only<'a>(
    object: &'a Map<String, Value>,
    used: &[&str],
    meaningless: &[&str],
) -> &'a Map<String, Value> {
    for key in object.keys() {
        assert!(
            used.contains(&key.as_str()) || meaningless.contains(&key.as_str()),
            "what is {key}?"
        );
    }
    object
}

fn hop(
    attributes: &Map<String, Value>,
    gateway: &str,
    oif: &str,
    flags: u8,
) -> Option<RouteNextHop> {
    let gateway = attributes.get(gateway).map(ip);
    let ifindex = attributes.get(oif).map(number);
    let vni = attributes.get("RTA_ENCAP").map(|encapsulation| {
        assert_eq!(attributes["RTA_ENCAP_TYPE"], 100);
        number(&encapsulation["VXLAN_VNI"])
    });
    (gateway.is_some() || ifindex.is_some()).then_some(RouteNextHop {
        ifindex: ifindex.unwrap_or(0),
        gateway,
        weight: 1,
        flags,
        vni,
        encapsulation: None,
    })
}

fn route(decoded: &Map<String, Value>, attributes: &Map<String, Value>) -> Route {
    let hop_keys = ["RTA_GATEWAY", "RTA_OIF", "RTA_ENCAP", "RTA_ENCAP_TYPE"];
    only(
        attributes,
        &[&hop_keys[..], &["RTA_DST", "RTA_PRIORITY", "RTA_MULTIPATH", "RTA_NH_ID"]].concat(),
        &[],
    );
    assert_eq!(decoded["src_len"], 0);
    let rtm_flags = number(&decoded["rtm_flags"]);
    let unspecified = if decoded["family"] == "AF_INET" { "0.0.0.0" } else { "::" };
    let via = match (attributes.get("RTA_NH_ID"), attributes.get("RTA_MULTIPATH")) {
        (Some(id), _) => RouteTarget::Object(number(id)),
        (None, Some(Value::Array(hops))) => RouteTarget::NextHops(
            hops.iter()
                .map(|entry| {
                    let entry = only(
                        entry.as_object().unwrap(),
                        &["flags", "weight", "ifindex", "attrs"],
                        &["hops"],
                    );
                    let inside = only(entry["attrs"].as_object().unwrap(), &hop_keys, &[]);
                    let flags = octet(&entry["flags"]);
                    let inside = hop(inside, "RTA_GATEWAY", "", flags);
                    RouteNextHop {
                        ifindex: number(&entry["ifindex"]),
                        weight: octet(&entry["weight"]).into(),
                        ..inside.unwrap_or(RouteNextHop {
                            ifindex: 0,
                            gateway: None,
                            weight: 1,
                            flags,
                            vni: None,
                            encapsulation: None,
                        })
                    }
                })
                .collect(),
        ),
        _ => RouteTarget::NextHops(
            hop(attributes, "RTA_GATEWAY", "RTA_OIF", (rtm_flags & 0xff) as u8)
                .into_iter()
                .collect(),
        ),
    };
    let message_flags = flags(&decoded["nlmsg_flags"], &MESSAGE_FLAGS);
    let destination = attributes.get("RTA_DST").map_or_else(|| unspecified.parse().unwrap(), ip);
    Route {
        table: number(&decoded["table"]),
        destination,
        prefix_length: octet(&decoded["dst_len"]),
        priority: attributes.get("RTA_PRIORITY").map_or(0, number),
        tos: octet(&decoded["tos"]),
        source: None,
        route_type: octet(&decoded["rtm_type"]),
        protocol: match decoded["proto"].as_str().unwrap() {
            "kernel" => 2,
            "bgp" => 186,
            other => panic!("protocol {other}"),
        },
        replace: message_flags & 0x100 != 0,
        prepend: destination.is_ipv4() && message_flags & 0x902 == 0,
        cloned: rtm_flags & 0x200 != 0,
        mtu: None,
        mtu_locked: false,
        hop_limit: None,
        via,
    }
}

fn next_hop(decoded: &Map<String, Value>, attributes: &Map<String, Value>) -> NextHop {
    only(attributes, &["NHA_ID", "NHA_GATEWAY", "NHA_OIF", "NHA_GROUP"], &[]);
    let member = |member: &Value| (number(&member["id"]), u16::from(octet(&member["weight"])));
    let kind = match attributes.get("NHA_GROUP") {
        Some(group) => NextHopKind::Group(group.as_array().unwrap().iter().map(member).collect()),
        None => match hop(attributes, "NHA_GATEWAY", "NHA_OIF", octet(&decoded["nh_flags"])) {
            Some(hop) => NextHopKind::Single(hop),
            None => NextHopKind::Other,
        },
    };
    NextHop { id: number(&attributes["NHA_ID"]), kind }
}

fn fdb_entry(decoded: &Map<String, Value>, attributes: &Map<String, Value>) -> FdbEntry {
    let used = ["NDA_LLADDR", "NDA_DST", "NDA_MASTER", "NDA_SRC_VNI"];
    only(attributes, &used, &["NDA_PROTOCOL", "NDA_FDB_EXT_ATTRS"]);
    assert_eq!(decoded["family"], "AF_BRIDGE");
    let state = flags(&decoded["state"], &[("REACHABLE", 0x02), ("NOARP", 0x40)]);
    FdbEntry {
        ifindex: number(&decoded["ifindex"]),
        mac: attributes["NDA_LLADDR"].as_str().unwrap().parse().unwrap(),
        destination: attributes.get("NDA_DST").map(ip),
        master: attributes.get("NDA_MASTER").map(number),
        source_vni: attributes.get("NDA_SRC_VNI").map(number),
        state: u16::try_from(state).unwrap(),
        flags: flags(
            &decoded["flags"],
            &[("SELF", 0x02), ("MASTER", 0x04), ("EXT_LEARNED", 0x10), ("STICKY", 0x40)],
        ),
        ..FdbEntry::default()
    }
}

fn expected(message: &Value) -> Message {
    let decoded = message["decoded"].as_object().unwrap();
    let attributes = decoded["attrs"].as_object().unwrap();
    let header = ["nlmsg_len", "nlmsg_seq", "nlmsg_pid"];
    match message["type"].as_str().unwrap() {
        kind @ ("RTM_NEWROUTE" | "RTM_DELROUTE") => {
            let used = [
                "nlmsg_flags",
                "family",
                "dst_len",
                "src_len",
                "tos",
                "table",
                "proto",
                "rtm_type",
                "rtm_flags",
            ];
            only(decoded, &[&used[..], &["attrs"]].concat(), &[&header[..], &["scope"]].concat());
            Message::Route(operation(kind), route(decoded, attributes))
        }
        kind @ ("RTM_NEWNEXTHOP" | "RTM_DELNEXTHOP") => {
            only(
                decoded,
                &["nh_flags", "attrs"],
                &[&header[..], &["nlmsg_flags", "family", "scope", "proto"]].concat(),
            );
            Message::NextHop(operation(kind), next_hop(decoded, attributes))
        }
        kind @ ("RTM_NEWNEIGH" | "RTM_DELNEIGH") => {
            let used = ["family", "ifindex", "state", "flags", "attrs"];
            only(decoded, &used, &[&header[..], &["nlmsg_flags", "ndm_type"]].concat());
            Message::Fdb(operation(kind), fdb_entry(decoded, attributes))
        }
        other => panic!("message type {other}"),
    }
}

fn operation(kind: &str) -> Operation {
    if kind.starts_with("RTM_NEW") { Operation::New } else { Operation::Delete }
}

fn type_name(message: &Message) -> &'static str {
    match message {
        Message::Route(Operation::New, _) => "RTM_NEWROUTE",
        Message::Route(Operation::Delete, _) => "RTM_DELROUTE",
        Message::NextHop(Operation::New, _) => "RTM_NEWNEXTHOP",
        Message::NextHop(Operation::Delete, _) => "RTM_DELNEXTHOP",
        Message::Fdb(Operation::New, _) => "RTM_NEWNEIGH",
        Message::Fdb(Operation::Delete, _) => "RTM_DELNEIGH",
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_recorded_stream_decodes_to_its_json() {
    for Recording { name, stream, json } in recordings() {
        assert_eq!(json["bytes"], stream.len(), "{name}");
        let mut framer = Framer::new();
        framer.push(&stream);
        let mut counts = BTreeMap::new();
        for expected_frame in json["frames"].as_array().unwrap() {
            let frame = framer.next_frame().unwrap().unwrap();
            assert_eq!(expected_frame["version"], 1, "{name}");
            assert_eq!(expected_frame["msg_type"], 1, "{name}");
            assert_eq!(frame.encoding, Encoding::Netlink, "{name}");
            assert_eq!(expected_frame["offset"], frame.offset, "{name}");
            assert_eq!(expected_frame["msg_len"], frame.payload.len() + 4, "{name}");
            let messages: Vec<Message> =
                expected_frame["messages"].as_array().unwrap().iter().map(expected).collect();
            assert_eq!(
                decode_frame(&frame).unwrap().messages,
                messages,
                "{name} at {}",
                frame.offset
            );
            for message in &messages {
                *counts.entry(type_name(message).to_owned()).or_insert(0) += 1;
            }
        }
        assert_eq!(framer.next_frame(), Ok(None), "{name}");
        assert_eq!(framer.pending(), 0, "{name}");
        assert_eq!(serde_json::to_value(counts).unwrap(), json["counts"], "{name}");
    }
}

#[test]
fn s1_one_and_two_messages_per_frame() {
    // FRR 10.3 replaces routes, with one message per frame. FRR 8.4 deletes and adds, with both
    // messages in one frame.
    let one = transactions(&recording("frr103-nonhg-11-uplink-bfd-down-spine1").stream);
    let two = transactions(&recording("frr844-nonhg-11-uplink-bfd-down-spine1").stream);
    assert_eq!((one.len(), two.len()), (3, 3));
    for (one, two) in one.iter().zip(&two) {
        let (
            [Message::Route(Operation::New, replaced)],
            [Message::Route(Operation::Delete, old), Message::Route(Operation::New, new)],
        ) = (&one.messages[..], &two.messages[..])
        else {
            panic!("{one:?} {two:?}");
        };
        assert_eq!((old.destination, old.prefix_length), (new.destination, new.prefix_length));
        assert_eq!(
            (replaced.destination, replaced.prefix_length),
            (new.destination, new.prefix_length)
        );
        assert_eq!(replaced.via, new.via);
        assert_ne!(old.via, new.via);
    }
}

#[test]
fn q13_stream_split_at_every_byte() {
    for Recording { name, stream, .. } in recordings() {
        let whole = transactions(&stream);
        for split in 0..=stream.len() {
            let mut framer = Framer::new();
            framer.push(&stream[..split]);
            let mut pieces = drain(&mut framer);
            framer.push(&stream[split..]);
            pieces.extend(drain(&mut framer));
            assert_eq!(pieces, whole, "{name} cut at {split}");
        }
        let mut framer = Framer::new();
        let mut single = Vec::new();
        for octet in &stream {
            framer.push(&[*octet]);
            single.extend(drain(&mut framer));
        }
        assert_eq!(single, whole, "{name} octet by octet");
    }
}

#[test]
fn q13_bad_header() {
    let good = recording("frr103-nhg-02-mac-only-learned").stream;
    let end = u64::try_from(good.len()).unwrap();
    let cases = [
        ([1, 1, 0, 3], FrameError::Length { offset: end, length: 3 }),
        ([1, 1, 0, 0], FrameError::Length { offset: end, length: 0 }),
        ([2, 1, 0, 8], FrameError::Version { offset: end, version: 2 }),
        ([0, 1, 0, 8], FrameError::Version { offset: end, version: 0 }),
        ([1, 0, 0, 8], FrameError::Type { offset: end, kind: 0 }),
        ([1, 3, 0, 8], FrameError::Type { offset: end, kind: 3 }),
    ];
    for (header, error) in cases {
        let mut framer = Framer::new();
        framer.push(&[&good, &header[..], &[0; 64]].concat());
        // Earlier frames are valid. Later bytes are never read.
        assert_eq!(decode_frame(&framer.next_frame().unwrap().unwrap()).unwrap().messages.len(), 1);
        assert_eq!(framer.next_frame(), Err(error));
        framer.push(&good);
        assert_eq!(framer.next_frame(), Err(error));
    }
}

#[test]
fn q13_empty_frame() {
    assert_eq!(transactions(&frame(1, &[])), [Transaction::default()]);
}

#[test]
fn q13_bad_length_inside_a_frame() {
    for Recording { name, stream, .. } in recordings() {
        // The nlmsg_len of each frame's first message: one more than available, and shorter than a
        // header.
        let mut framer = Framer::new();
        framer.push(&stream);
        while let Some(recorded) = framer.next_frame().unwrap() {
            let more = u32::try_from(recorded.payload.len() + 1).unwrap();
            for length in [more, 15, 0, u32::MAX] {
                let mut payload = recorded.payload.to_vec();
                payload[..4].copy_from_slice(&length.to_ne_bytes());
                let mut damaged = Framer::new();
                damaged.push(&frame(1, &payload));
                let error = decode_frame(&damaged.next_frame().unwrap().unwrap()).unwrap_err();
                let words = error.to_string();
                assert!(
                    words.contains("byte 4 of the stream") && words.contains("nlmsg_len"),
                    "{name}: {words}"
                );
            }
        }
    }
}

/// Appends an unknown attribute to each message.
fn with_unknown_attributes(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = payload;
    while !rest.is_empty() {
        let length = u32::from_ne_bytes(*rest.first_chunk().unwrap());
        let (message, tail) = rest.split_at(usize::try_from(length).unwrap().next_multiple_of(4));
        out.extend((length + 12).to_ne_bytes());
        out.extend(&message[4..]);
        // Length 9, type 12345 with both flag bits; five octets and padding.
        out.extend(9u16.to_ne_bytes());
        out.extend((12345u16 | 0xc000).to_ne_bytes());
        out.extend([1, 2, 3, 4, 5, 0, 0, 0]);
        rest = tail;
    }
    out
}

#[test]
fn q13_unknown_attributes() {
    for Recording { name, stream, .. } in recordings() {
        let mut framer = Framer::new();
        framer.push(&stream);
        while let Some(recorded) = framer.next_frame().unwrap() {
            let more = frame(1, &with_unknown_attributes(&recorded.payload));
            assert_eq!(
                transactions(&more),
                [decode_frame(&recorded).unwrap()],
                "{name} at {}",
                recorded.offset
            );
        }
    }
}

#[test]
fn q13_unknown_message_types() {
    let known = recording("frr103-nhg-02-mac-only-learned").stream;
    let mut unknown = known[4..].to_vec();
    unknown[4..6].copy_from_slice(&4711u16.to_ne_bytes());
    let both = frame(1, &[&unknown, &known[4..]].concat());
    let [transaction] = &transactions(&both)[..] else { panic!() };
    assert_eq!(transaction.messages[0], Message::Other(4711));
    assert_eq!(transaction.messages[1..], transactions(&known)[0].messages);
}

#[test]
fn q13_frame_of_65535_bytes() {
    let small = recording("frr103-nhg-02-mac-only-learned").stream;
    let payload = &small[4..];
    let filling = 65_531 - payload.len();
    let mut message = 65_531u32.to_ne_bytes().to_vec();
    message.extend(&payload[4..]);
    message.extend(u16::try_from(filling).unwrap().to_ne_bytes());
    message.extend(12345u16.to_ne_bytes());
    message.resize(65_531, 0xa5);
    let big = frame(1, &message);
    assert_eq!(big.len(), 65_535);
    let stream = [&big, &small[..], &big].concat();
    let same = transactions(&small).remove(0);
    assert_eq!(transactions(&stream), [same.clone(), same.clone(), same]);
}

/// A server on a port that the kernel chooses.
fn server() -> Server {
    Server::bind("127.0.0.1:0".parse().unwrap(), fpm::Users::default()).unwrap()
}

async fn collect(server: &mut Server, frames: usize) -> Vec<Transaction> {
    let mut transactions = Vec::new();
    while transactions.len() < frames {
        match server.next().await {
            Event::Transaction(transaction) => transactions.push(transaction),
            other => panic!("after {} frames: {other:?}", transactions.len()),
        }
    }
    transactions
}

/// zebra ends within a message, reconnects and replays.
#[tokio::test]
async fn q13_cut_inside_a_message() {
    let session = recording("frr103-nonhg-17-fpm-reconnect").stream;
    let whole = transactions(&session);
    let mut server = server();
    let address = server.local_address().unwrap();
    for cut in [1, 3, 4, 5, 100, session.len() - 1] {
        let mut zebra = TcpStream::connect(address).await.unwrap();
        zebra.write_all(&session[..cut]).await.unwrap();
        // Only the write side is closed, because the server must still be able to look up the
        // socket's owner.
        zebra.shutdown().await.unwrap();
        assert!(matches!(server.next().await, Event::Connected { .. }));
        let mut framer = Framer::new();
        framer.push(&session[..cut]);
        let complete = drain(&mut framer);
        assert_eq!(collect(&mut server, complete.len()).await, complete);
        let Event::Disconnected { reason: Disconnect::ClosedInsideFrame { pending } } =
            server.next().await
        else {
            panic!("cut at {cut}");
        };
        assert_eq!(pending, framer.pending());

        let mut zebra = TcpStream::connect(address).await.unwrap();
        zebra.write_all(&session).await.unwrap();
        zebra.shutdown().await.unwrap();
        assert!(matches!(server.next().await, Event::Connected { .. }));
        assert_eq!(collect(&mut server, whole.len()).await, whole);
        assert!(matches!(server.next().await, Event::Disconnected { reason: Disconnect::Closed }));
    }
}

/// Malformed input ends its connection with a reason, and the next connection works.
#[tokio::test]
async fn q13_malformed_input_closes_that_connection_only() {
    let good = recording("frr844-nhg-01-initial").stream;
    let mut server = server();
    let address = server.local_address().unwrap();
    let mut bad_payload = frame(1, &[0xff; 64]);
    bad_payload.extend(&good);
    for (bad, words) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "FPM version 71"),
        (vec![1, 1, 0, 2, 0, 0, 0, 0], "frame length of 2"),
        (vec![1, 9, 0, 8, 0, 0, 0, 0], "message type 9"),
        (bad_payload, "nlmsg_len"),
        (frame(2, &[0xff; 32]), "protobuf"),
    ] {
        let mut peer = TcpStream::connect(address).await.unwrap();
        peer.write_all(&[&good, &bad[..]].concat()).await.unwrap();
        assert!(matches!(server.next().await, Event::Connected { .. }));
        let frames = transactions(&good);
        assert_eq!(collect(&mut server, frames.len()).await, frames);
        let Event::Disconnected { reason } = server.next().await else { panic!() };
        assert!(reason.to_string().contains(words), "{reason}");
    }
}

#[test]
fn the_generation_shows_in_the_stream() {
    for Recording { name, stream, .. } in recordings() {
        let mut traits = ZebraTraits::default();
        let mut macs = 0;
        for message in transactions(&stream).iter().flat_map(|transaction| &transaction.messages) {
            traits.observe(message);
            macs += usize::from(matches!(message, Message::Fdb(..)));
        }
        let expected = match (&name[..6], macs) {
            (_, 0) => Generation::Unknown,
            ("frr844", _) => Generation::BeforeFrr9,
            _ => Generation::Frr9OrLater,
        };
        assert_eq!(traits.generation(), expected, "{name}");
    }
}

/// Decodes any stream. The result may be transactions, an error or an incomplete frame, but never a
/// panic.
fn survive(stream: &[u8]) {
    let mut framer = Framer::new();
    framer.push(stream);
    while let Ok(Some(frame)) = framer.next_frame() {
        let _ = decode_frame(&frame);
        for message in decode(&frame.payload) {
            let _ = message;
        }
    }
}

#[test]
fn no_single_bit_nor_cut_makes_it_panic() {
    for name in
        ["frr844-l3vni-nhg", "frr103-l3vni-nonhg-reconnect", "frr103-nonhg-13-uplink-carrier-down"]
    {
        let stream = recording(name).stream;
        for cut in 0..stream.len() {
            survive(&stream[..cut]);
        }
        for bit in 0..stream.len() * 8 {
            let mut damaged = stream.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            survive(&damaged);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_mutation_makes_it_panic(
        pick in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        static STREAMS: std::sync::LazyLock<Vec<Vec<u8>>> =
            std::sync::LazyLock::new(|| recordings().into_iter().map(|recording| recording.stream).collect());
        let mut stream = pick.get(&STREAMS).clone();
        for (place, value) in changes {
            *place.get_mut(&mut stream) = value;
        }
        if let Some(cut) = cut {
            stream.truncate(cut.index(stream.len()));
        }
        survive(&stream);
    }
}
