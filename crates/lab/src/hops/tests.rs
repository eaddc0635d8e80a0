//! Answers of vtepd and of routers, and what is shown.

use super::*;

#[test]
fn a_circuit_is_a_part_of_its_wire() {
    let file =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/containerlab/scaleacross.clab.yml");
    let topology = Topology::load(file.as_ref()).unwrap();
    let far = |text: &str| {
        let (node, interface) = text.split_once(':').unwrap();
        let end = Endpoint { node: node.into(), interface: interface.into() };
        far_end(&topology, &end).map(|(far, circuit)| (far.to_string(), circuit))
    };
    let circuit = |name: &str| Some(name.to_owned());
    assert_eq!(far("leaf1:up2"), Some(("spine2:dn1".into(), None)));
    assert_eq!(far("spine1:dci2"), Some(("spine4:dci1".into(), circuit("wan a2:b2"))));
    assert_eq!(far("spine4:dci1"), Some(("spine1:dci2".into(), circuit("wan a2:b2"))));
    assert_eq!(far("leaf1:up9"), None);
}

#[test]
fn answers_of_ip() {
    let one = |text: &str| serde_json::from_str::<Vec<Answer>>(text).unwrap().remove(0);
    let on = one(
        r#"[{"dst":"10.0.1.2","from":"10.0.1.1","gateway":"10.1.0.7","dev":"dn2","iif":"dn1"}]"#,
    );
    assert_eq!((on.kind, on.gateway.as_deref(), &*on.dev), (None, Some("10.1.0.7"), "dn2"));
    let via = one(r#"[{"dst":"10.0.1.2","via":{"family":"inet6","host":"fe80::1"},"dev":"up1"}]"#);
    assert_eq!(via.via.unwrap().host, "fe80::1");
    let own = one(r#"[{"type":"local","dst":"10.0.1.2","dev":"lo","iif":"up1"}]"#);
    assert_eq!(own.kind.as_deref(), Some("local"));
}

#[test]
fn a_queue_pair_that_is_not_placed_has_no_port() {
    let path = |uplink: &str, source_ports: &[u32]| v1::Path {
        uplink: uplink.into(),
        source_ports: source_ports.into(),
        ..v1::Path::default()
    };
    let chosen = |state: &str| {
        super::chosen(v1::Copy {
            policy: "qp-pin".into(),
            key: "queue pair 0x13".into(),
            source_port: 61_170,
            route: Some(v1::CopyRoute::default()),
            placement: Some(v1::Placement {
                state: state.into(),
                reason: "BECAUSE".into(),
                paths: vec![path("up1", &[50_001]), path("up2", &[50_002, 50_003])],
            }),
            ..v1::Copy::default()
        })
    };
    let (decision, Chosen::OneOf(paths)) = chosen("new") else { panic!("it has a port") };
    assert_eq!(decision, "qp-pin by queue pair 0x13");
    let paths: Vec<_> = paths.iter().map(|of| (&*of.uplink, of.source_ports[0])).collect();
    assert_eq!(paths, [("up1", 50_001), ("up2", 50_002)]);
    let (_, Chosen::All(paths)) = chosen("sprayed") else { panic!("it has one path") };
    assert_eq!(paths.len(), 2);
    for (state, said) in [("pinned", ""), ("moving", ""), ("hashed", ", as qp-hash: BECAUSE")] {
        let (decision, chosen) = chosen(state);
        assert!(matches!(chosen, Chosen::Port(61_170, Some(_))), "{state}");
        assert_eq!(decision, format!("qp-pin by queue pair 0x13{said}"));
    }
}

/// What a queue pair without a single path has: it is sprayed over these, or not placed yet.
fn over(sprayed: bool, paths: Vec<Candidate>) -> Hops {
    let policy = if sprayed { "spray" } else { "qp-pin" };
    Hops {
        from: "host1:eth1".into(),
        to: "host4:eth1".into(),
        vni: 10,
        local: [10, 0, 1, 1].into(),
        vtep: [10, 0, 1, 4].into(),
        udp_port: 4789,
        placed: sprayed,
        sprayed,
        outer_port: None,
        decision: Some(format!("{policy} by queue pair 0x13")),
        hops: Vec::new(),
        paths,
        explanation: None,
        reverse: None,
    }
}

#[test]
fn what_is_not_decided_is_not_shown_as_a_path() {
    let hop = |node: &str| Hop::new(node, "a".into(), "b".into());
    let candidate = |outer_port| Candidate {
        outer_port,
        sprayed: None,
        hops: vec![hop("leaf1"), hop("spine1")],
    };
    let hops = over(false, vec![candidate(50_001), candidate(50_002)]);
    let text = hops.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1], "not placed yet: one of 2 paths, qp-pin by queue pair 0x13");
    assert_eq!(lines[4], "          10.0.1.1:50001 > 10.0.1.4:4789");
    assert_eq!(lines.len(), 2 + 2 * 4, "{text}");
    let json = serde_json::to_value(&hops).unwrap();
    assert_eq!((&json["placed"], &json["outer_port"]), (&false.into(), &serde_json::Value::Null));
}

#[test]
fn sprayed_paths_have_what_became_of_their_packets() {
    let candidate = |outer_port, sent, lost| Candidate {
        outer_port,
        sprayed: Some(v1::SprayedPath { sent, marked: 2, lost, ..v1::SprayedPath::default() }),
        hops: vec![Hop::new("leaf1", "a".into(), "b".into())],
    };
    let hops = over(true, vec![candidate(50_001, 75, 0), candidate(50_002, 25, 1)]);
    let text = hops.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1], "sprayed over 2 paths, spray by queue pair 0x13: 100 packets so far");
    assert_eq!(lines[3], "  75.0 % of them, 2 with ECN marks, 0 lost");
    assert_eq!(lines[5], "         10.0.1.1:50001 > 10.0.1.4:4789");
    let [local, vtep] = ["fd00::1", "fd00::4"].map(|address| address.parse().unwrap());
    let text = Hops { local, vtep, udp_port: 8472, ..hops }.to_string();
    assert!(text.contains("  [fd00::1]:50001 > [fd00::4]:8472\n"), "{text}");
    assert_eq!(lines[7], "  25.0 % of them, 2 with ECN marks, 1 lost");
}
