use super::*;
use fabric::topology::Topology;

fn topology(name: &str) -> Topology {
    let file = format!("{}/../../deploy/containerlab/{name}.clab.yml", env!("CARGO_MANIFEST_DIR"));
    Topology::load(file.as_ref()).unwrap()
}

/// The picture of a topology. The link at `down` is down; loads differ from link to link.
fn graph(topology: &Topology, down: Option<&str>) -> Graph {
    let load = |bits: f64| Load {
        sent_bits_per_second: bits,
        received_bits_per_second: bits,
        sent_packets_per_second: (bits / 8000.0).round(),
        circuit: None,
    };
    let links = topology.wires().into_iter().enumerate().map(|(at, wire)| {
        let [a, b] = wire.ends.each_ref().map(ToString::to_string);
        GraphLink {
            up: down != Some(&*a),
            circuit: wire.circuit_name(),
            a_to_b: load(if at % 3 == 0 { 2100.0 } else { 1.234e6 * at as f64 }),
            b_to_a: load(1850.0),
            a,
            b,
        }
    });
    let links = links.collect();
    let nodes = tiers::of(topology).into_iter().map(|(name, tier)| GraphNode { name, tier });
    Graph { fabric: topology.name.to_string(), seconds: 1.0, nodes: nodes.collect(), links }
}

fn fabric(sites: usize, leaves: usize, spines: usize, hosts: usize) -> Topology {
    let plan = fabric::new::Plan {
        name: "mine".parse().unwrap(),
        sites,
        leaves,
        spines,
        hosts,
        bfd: None,
        circuit: (Duration::from_millis(5), Duration::ZERO),
        vtepd: true,
    };
    let files = plan.files().unwrap();
    let (_, text) = files.iter().find(|(path, _)| path.ends_with("mine.clab.yml")).unwrap();
    Topology::parse(text, "/".as_ref(), |_| None).unwrap()
}

#[test]
fn tiers_are_distances_from_the_hosts() {
    let tiers = tiers::of(&topology("scaleacross"));
    let names = |tier: usize| {
        let own = tiers.iter().filter(|(_, own)| **own == tier);
        own.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(0), "host1 host2 host3 host4 host5 host6 store1 store4");
    assert_eq!(names(1), "leaf1 leaf2 leaf3 leaf4 leaf5 leaf6");
    assert_eq!(names(2), "spine1 spine2 spine3 spine4");
    assert_eq!(names(3), "", "neither the node of the circuits nor vtepd");
    // A router between two data centres is above their spines; a part without hosts begins with the
    // nodes that have one link.
    let text = "
name: chain
topology:
  nodes:
    h1: {kind: linux}
    l1: {kind: linux, binds: ['frr.conf:/etc/frr/frr.conf']}
    s1: {kind: linux, binds: ['frr.conf:/etc/frr/frr.conf']}
    dci: {kind: linux, binds: ['frr.conf:/etc/frr/frr.conf']}
    x1: {kind: linux}
    x2: {kind: linux}
    x3: {kind: linux}
  links:
    - endpoints: ['h1:eth1', 'l1:hp1']
    - endpoints: ['l1:up1', 's1:dn1']
    - endpoints: ['s1:up1', 'dci:dn1']
    - endpoints: ['x1:eth1', 'x2:eth1']
    - endpoints: ['x2:eth2', 'x3:eth1']
";
    let chain = Topology::parse(text, "/".as_ref(), |_| None).unwrap();
    let tiers: Vec<(String, usize)> = tiers::of(&chain).into_iter().collect();
    let expected = [("dci", 3), ("h1", 0), ("l1", 1), ("s1", 2), ("x1", 0), ("x2", 1), ("x3", 0)];
    assert_eq!(tiers, expected.map(|(name, tier)| (name.to_owned(), tier)));
}

#[test]
fn nothing_overlaps() {
    let wide = ["scaleacross", "minimal", "wide", "wide16"].map(topology);
    let new = [fabric(1, 2, 2, 1), fabric(1, 4, 4, 1), fabric(2, 4, 4, 2), fabric(3, 2, 2, 1)];
    for topology in wide.into_iter().chain(new) {
        for down in [None, Some("spine1:dci1"), Some("leaf1:up1"), Some("spine2:dci1")] {
            let graph = graph(&topology, down);
            assert_eq!(draw::overlaps(&graph), Vec::<String>::new(), "{:?}", graph.nodes);
        }
    }
}

#[test]
fn nodes_are_above_the_middle_of_those_below() {
    let graph = graph(&topology("scaleacross"), None);
    let nodes: Vec<(&str, usize)> =
        graph.nodes.iter().map(|node| (node.name.as_str(), node.tier)).collect();
    let index = |end: &str| {
        let name = end.split(':').next().unwrap();
        nodes.iter().position(|(node, _)| *node == name).unwrap()
    };
    let links: Vec<[usize; 2]> =
        graph.links.iter().map(|link| [index(&link.a), index(&link.b)]).collect();
    let layout = layout::Layout::new(&nodes, &links, 1.0);
    let x = |name: &str| layout.nodes[index(name)].x;
    let top = |name: &str| layout.nodes[index(name)].top;
    // leaf1 has two hosts, which move those of leaf2 aside.
    for (leaf, middle) in [("leaf1", (x("host1") + x("store1")) / 2.0), ("leaf2", x("host2"))] {
        assert!((x(leaf) - middle).abs() < 40.0, "{leaf}: {} and {middle}", x(leaf));
    }
    let sites = [["spine1", "spine2"], ["spine3", "spine4"]];
    for ([a, b], leaves) in
        sites.into_iter().zip([["leaf1", "leaf2", "leaf3"], ["leaf4", "leaf5", "leaf6"]])
    {
        let middle = leaves.iter().map(|leaf| x(leaf)).sum::<f64>() / 3.0;
        assert!(((x(a) + x(b)) / 2.0 - middle).abs() < 1e-9 && x(a) < x(b), "{a} {b}");
    }
    assert!(top("spine1") < top("leaf1") && top("leaf1") < top("host1"));
    // Circuits between spines are arcs above them, inside the picture.
    for (link, curve) in graph.links.iter().zip(&layout.links).filter(|(l, _)| l.circuit.is_some())
    {
        let (_, y) = curve.at(0.5);
        assert!(y < top("spine1") - 20.0 && y > 0.0, "{}: {y}", link.a);
    }
}

#[test]
fn names_with_numbers_are_in_their_order() {
    let mut names = ["leaf10", "leaf2", "spine", "leaf1", "a"];
    names.sort_by(|a, b| layout::natural(a, b));
    assert_eq!(names, ["a", "leaf1", "leaf2", "leaf10", "spine"]);
}

#[test]
fn rates_have_three_digits() {
    let all = [0.0, 999.0, 999.6, 2100.0, 99_940.0, 1e6, 12_345_678.0, 999_600_000.0, 2.5e10, 1e12];
    assert_eq!(
        all.map(short_rate),
        ["0", "999", "1k", "2.1k", "99.9k", "1M", "12.3M", "1G", "25G", "1000G"]
    );
}

#[test]
fn the_picture_says_everything() {
    let mut graph = graph(&topology("scaleacross"), Some("leaf1:up1"));
    let properties = Properties {
        delay_milliseconds: 5.0,
        jitter_milliseconds: 1.0,
        loss_percent: 0.0,
        rate_kilobits: 0,
        queue_bytes: 1 << 20,
    };
    let circuit = graph.links.iter_mut().find(|link| link.a == "spine1:dci2").unwrap();
    circuit.a_to_b = Load {
        sent_bits_per_second: 41.25e6,
        received_bits_per_second: 40e6,
        sent_packets_per_second: 5000.0,
        circuit: Some(properties),
    };
    let svg = graph.svg();
    assert!(svg.contains("Fabric scaleacross: load of the links over 1 s</title>"), "{svg}");
    let title = "<title>spine1:dci2 to spine4:dci1: 41.2 Mbit/s sent, 40 Mbit/s received, 5000 \
                 packets/s; circuit wan a2:b2: delay 5ms, jitter 1ms, loss 0%, no rate limit</title>";
    assert!(svg.contains(title), "{svg}");
    // The highest load is 41.2 Mbit/s, so that the scale ends at 60.
    assert!(svg.contains(">up to 15 Mbit/s<") && svg.contains(">up to 60 Mbit/s<"), "{svg}");
    assert!(svg.contains(">41.2M</text>"), "{svg}");
    // The link that is down, in both forms, and its entry in the legend.
    assert!(svg.contains("<title>leaf1:up1 to spine1:dn1: down</title>"), "{svg}");
    assert_eq!(svg.matches("class=\"down\"").count(), 2);
    assert!(!svg.contains("<title>leaf1:up1 to spine1:dn1: 2"), "it has no load");
    // 23 links that are up with two directions each, and four circuits with one mark each.
    assert_eq!(svg.matches("class=\"tip\"").count(), 46);
    assert_eq!(svg.matches("<circle").count(), 5);
    assert!(svg.contains("prefers-color-scheme: dark") && !svg.contains("NaN"), "{svg}");

    // Without any load beside routing packets, everything is idle.
    for link in &mut graph.links {
        (link.a_to_b, link.b_to_a) = (Load::default(), Load::default());
    }
    let idle = graph.svg();
    assert_eq!(idle.matches("<g class=\"l0\"").count(), 47);
    assert!(idle.contains(">idle: below 10 kbit/s<"), "{idle}");
}

#[test]
fn the_json_form_is_flat() {
    let graph = graph(&topology("minimal"), None);
    let json = serde_json::to_value(&graph).unwrap();
    assert_eq!(json["links"][1]["a_to_b"]["sent_bits_per_second"], 1.234e6);
    assert_eq!(json["links"][1]["up"], true);
    assert!(json["links"][1].get("circuit").is_none());
    assert!(json["nodes"].as_array().unwrap().iter().any(|node| node["tier"] == 2), "{json}");
}

#[test]
fn a_load_is_the_difference_of_two_readings() {
    let end = |node: &str| Endpoint { node: node.into(), interface: "eth1".into() };
    let start = Instant::now();
    let reading = |milliseconds, tx_bytes, rx_bytes| {
        let counters =
            Counters { tx_bytes, rx_bytes, tx_packets: tx_bytes / 100, ..Counters::default() };
        let counters = BTreeMap::from([("eth1".to_owned(), counters)]);
        Reading { at: start + Duration::from_millis(milliseconds), counters }
    };
    let readings = |all: [Reading; 2]| -> BTreeMap<String, Reading> {
        ["a", "b"].map(str::to_owned).into_iter().zip(all).collect()
    };
    let before = readings([reading(0, 1000, 0), reading(100, 0, 500)]);
    let after = readings([reading(2000, 51_000, 0), reading(1100, 0, 10_500)]);
    let load = load(&before, &after, &end("a"), &end("b"));
    assert_eq!(
        (load.sent_bits_per_second, load.received_bits_per_second, load.sent_packets_per_second),
        (200_000.0, 80_000.0, 250.0)
    );
    let none = super::load(&before, &after, &end("c"), &end("b"));
    assert_eq!(none.sent_bits_per_second, 0.0, "an interface that is missing sends nothing");
}
