//! Checks the field names of the JSON output. Scripts depend on them: new fields are added here,
//! and none is renamed or removed.

#![cfg(test)]

use api::v1;
use serde::Serialize;

fn names(message: &impl Serialize) -> String {
    let value = serde_json::to_value(message).unwrap();
    let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names.join(" ")
}

macro_rules! messages {
    ($($message:ident: $names:literal,)+) => {
        #[test]
        fn names_stay() {
            $(assert_eq!(names(&v1::$message::default()), $names, stringify!($message));)+
        }
    };
}

messages! {
    Status: "bypass configuration generation impaired_uplinks learning left moves pid ready sources steering super_frames taken uptime_seconds version warnings worker_stalls",
    Steering: "hook lacks uplinks",
    Bypass: "addresses capacity no_room no_room_total other_ports ports",
    Port: "bridge bypass frames port reason vni",
    PortFrames: "bypass passed refreshed stalled",
    Source: "name overruns resyncs stale_seconds state",
    Resync: "dumped swept what",
    Vni: "chosen_port datapath datapath_reason external left netdev reason_slug standalone taken vni",
    Taken: "ageing_seconds destination_port flood_vteps flow_label frame_limit learning local policy remote_macs strict_vtep",
    Policy: "bins name seed source_ports",
    FdbEntry: "mac netdev port silent_seconds vni vtep",
    FloodEntry: "netdev vni vtep",
    Neighbour: "address interface kind mac vni",
    Route: "default_route next_hops state vtep",
    NextHop: "gateway mac mtu uplink weight",
    Peer: "default_route next_hops state traffic vnis vtep",
    PeerTraffic: "default_route_frames received_bytes received_frames sent_bytes sent_frames",
    PeerVni: "flood macs vni",
    Counters: "copied default_route_frames dropped drops held in_super_frames learning moves past_bridge paths queue_pairs_beyond received_bridge received_underlay sent steering super_frames vnis worker_stalls workers",
    WorkerCounters: "flow_evictions flow_hits flow_misses received_bridge received_underlay",
    LearningCounters: "flapping moved new rate refreshed refused too_many_addresses too_many_vteps unreachable",
    MoveCounters: "coalesced flapping followed",
    VniCounters: "decapsulated_bytes decapsulated_frames dropped encapsulated_bytes encapsulated_frames flooded netdev switched_bytes switched_frames unknown_vtep vni",
    PathCounters: "bytes frames gateway uplink",
    Drop: "frames reason sentence",
    SteeringCounters: "offload_decapsulated offload_encapsulated offload_failed port_bypassed port_chosen port_kept port_passed port_refreshed port_stalled punt_returned punt_unknown_slot uplink_redirected uplink_stalled vxlan_offloaded vxlan_redirected vxlan_stalled vxlan_too_big",
    Event: "buckets gateway interface kind local lost mac moves previous_vtep reason_slug sequence source state text time vni vtep",
    Explanation: "copies datapath destination dropped flooded netdev ports vni",
    ReceivedExplanation: "destination destination_port ecn fate known_vtep learning local netdev port previous_vtep reason source vni vtep",
    Copy: "bin dropped hash key placement policy reason route source_port source_ports vtep",
    Placement: "paths reason state",
    VtepPaths: "age_ms answers complete dead destination_port known local path_ids paths probes ready routers_max routers_min sprayed sprayed_vnis tiers traced vtep",
    Path: "arrival delay_us kilobytes_per_second others_kilobytes_per_second queue_pairs router_count routers source_ports uplink",
    Tier: "arrival floor jain links mmr",
    QueuePair: "age_ms bytes cnps destination ecn_marks exact frames idle_ms kilobytes_per_second moves naks partner paths psn_gaps psn_repeats queue_pair routers same_links source source_port state uplink vni vtep",
    CachedFlow: "age_ms current destination destination_mac queue_pair source source_port uplink vni vtep worker",
    CopyRoute: "bucket choices default_route destination_mac destination_port dont_fragment flow_label gateway length local path_hash source_mac tos ttl uplink weight weights",
}

#[test]
fn a_seed_is_text() {
    // jq and JavaScript represent only 53 bits of an integer exactly.
    let policy = v1::Policy { seed: u64::MAX, ..v1::Policy::default() };
    assert_eq!(serde_json::to_value(policy).unwrap()["seed"], "18446744073709551615");
}
