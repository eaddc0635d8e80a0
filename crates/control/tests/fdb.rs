//! Behind which VTEP a MAC address is if the kernel, zebra and the bridge disagree.

#![cfg(test)]

mod world;

use std::time::{Duration, Instant};

use control::{FpmSweep, Settings, SourceState, StaleTime};
use netlink::{Dump, FdbEntry, Message};
use wire::MacAddr;
use world::*;

#[test]
fn s2_remote_mac() {
    let mut state = state_after(leaf());
    assert_eq!(behind(&state.build(), mac(1)), None);
    apply(&mut state, [remote(New, mac(1), "10.0.0.12")]);
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
    // A move from VTEP to VTEP is one message.
    apply(&mut state, [remote(New, mac(1), "10.0.0.13")]);
    let update = state.build();
    assert_eq!(behind(&update, mac(1)), Some(ip("10.0.0.13")));
    assert!(!update.snapshot.knows_vtep(ip("10.0.0.12")), "nothing names it any more");
    apply(&mut state, [remote(Delete, mac(1), "10.0.0.13")]);
    assert_eq!(behind(&state.build(), mac(1)), None);
}

#[test]
fn s2_flood_entry() {
    let mut state = state_after(leaf());
    apply(&mut state, [flood(New, "10.0.0.13"), flood(New, "10.0.0.12")]);
    assert_eq!(flood_list(&state.build()), [ip("10.0.0.12"), ip("10.0.0.13")]);
    apply(&mut state, [flood(Delete, "10.0.0.12")]);
    let update = state.build();
    assert_eq!(flood_list(&update), [ip("10.0.0.13")]);
    assert!(!update.snapshot.knows_vtep(ip("10.0.0.12")));
}

#[test]
fn s2_remote_to_local() {
    let mut state = state_after(leaf());
    apply(&mut state, [remote(New, mac(1), "10.0.0.12"), bridged(New, VXLAN, mac(1))]);
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
    apply(&mut state, [bridged(New, HOST, mac(1)), remote(Delete, mac(1), "10.0.0.12")]);
    assert_eq!(behind(&state.build(), mac(1)), None);
}

#[test]
fn s2_local_to_remote() {
    let mut state = state_after(leaf());
    apply(&mut state, [bridged(New, HOST, mac(1))]);
    assert_eq!(behind(&state.build(), mac(1)), None);
    apply(&mut state, [bridged(New, VXLAN, mac(1)), remote(New, mac(1), "10.0.0.12")]);
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
}

/// While the port lacks carrier, the bridge sends to the netdev what it has behind the port.
#[test]
fn an_address_behind_a_port_with_a_backup_keeps_its_vtep() {
    let mut state = state_after(leaf());
    let options = netlink::BridgePort { backup: true, ..FORWARDING };
    apply(&mut state, [link(host_port_with(options)), bridged(New, HOST, mac(1))]);
    apply(&mut state, [remote(New, mac(1), "10.0.0.12")]);
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
    apply(&mut state, [link(host_port_with(FORWARDING))]);
    assert_eq!(behind(&state.build(), mac(1)), None);
    let only_port = netlink::Link { bridge_port_only: true, ..host_port_with(options) };
    apply(&mut state, [link(only_port)]);
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
}

/// The kernel tells nothing of the entries that a netdev brings from another namespace.
#[test]
fn the_entries_of_a_new_netdev_are_read() {
    let mut state = state_after(leaf());
    state.take_wanted_dumps();
    apply(&mut state, [Message::Link(Delete, vxlan(VXLAN, BRIDGE, vxlan_of(VNI)))]);
    apply(&mut state, [link(vxlan(VXLAN, BRIDGE, vxlan_of(VNI)))]);
    assert!(state.take_wanted_dumps().contains(&Dump::Fdb));
    apply(&mut state, [link(vxlan(VXLAN, BRIDGE, vxlan_of(VNI)))]);
    assert!(!state.take_wanted_dumps().contains(&Dump::Fdb));
}

#[test]
fn q15_remote_to_local_without_delete() {
    // zebra sends nothing when a remote MAC becomes local: only the bridge reports it.
    let mut state = state_after(leaf());
    state.fpm_connected();
    zebra(&mut state, [zebra_mac(New, mac(1), "10.0.0.12")]);
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
    apply(&mut state, [bridged(New, HOST, mac(1))]);
    assert_eq!(behind(&state.build(), mac(1)), None);
    // The local entry ages out, while the VTEP still has the address.
    apply(&mut state, [bridged(Delete, HOST, mac(1))]);
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
}

#[test]
fn q14_fpm_connects_after_macs_exist() {
    // zebra never replays L2 MAC addresses. Earlier ones come from the kernel, which is dumped
    // after every connect.
    let mut state = state_after(leaf());
    state.take_wanted_dumps();
    state.build();
    assert!(state.take_wanted_dumps().iter().all(|dump| *dump != Dump::Fdb));
    state.fpm_connected();
    let doubtful = state.take_wanted_dumps();
    for dump in Dump::ALL {
        assert!(doubtful.contains(&dump), "{dump:?} is not dumped again");
    }
    state.resync(
        Dump::Fdb,
        vec![remote(New, mac(1), "10.0.0.12"), remote(New, mac(2), "10.0.0.13")],
    );
    zebra(&mut state, [zebra_mac(New, mac(3), "10.0.0.14")]);
    let update = state.build();
    assert_eq!(behind(&update, mac(1)), Some(ip("10.0.0.12")));
    assert_eq!(behind(&update, mac(2)), Some(ip("10.0.0.13")));
    assert_eq!(behind(&update, mac(3)), Some(ip("10.0.0.14")));
}

#[test]
fn the_kernels_entry_beats_zebras_whoever_comes_first() {
    let kernel = remote(New, mac(1), "10.0.0.12");
    let fpm = zebra_mac(New, mac(1), "10.0.0.13");
    for kernel_first in [true, false] {
        let mut state = state_after(leaf());
        state.fpm_connected();
        if kernel_first {
            apply(&mut state, [kernel.clone()]);
            zebra(&mut state, [fpm.clone()]);
        } else {
            zebra(&mut state, [fpm.clone()]);
            apply(&mut state, [kernel.clone()]);
        }
        assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
    }
}

#[test]
fn a_kernel_delete_clears_both_and_zebras_only_its_own() {
    let mut state = state_after(leaf());
    state.fpm_connected();
    for address in [mac(1), mac(2)] {
        apply(&mut state, [remote(New, address, "10.0.0.12")]);
        zebra(&mut state, [zebra_mac(New, address, "10.0.0.12")]);
    }
    apply(&mut state, [remote(Delete, mac(1), "10.0.0.12")]);
    zebra(&mut state, [zebra_mac(Delete, mac(2), "10.0.0.12")]);
    let update = state.build();
    assert_eq!(behind(&update, mac(1)), None);
    assert_eq!(behind(&update, mac(2)), Some(ip("10.0.0.12")));
}

#[test]
fn own_addresses_of_bridge_and_ports_hide_no_remote_mac() {
    // An anycast gateway has the same MAC address on every leaf.
    let mut state = state_after(leaf());
    let own = FdbEntry { state: 0x80, ..bridged_of(HOST, mac(1)) };
    apply(&mut state, [remote(New, mac(1), "10.0.0.12"), Message::Fdb(New, own)]);
    let update = state.build();
    assert_eq!(behind(&update, mac(1)), Some(ip("10.0.0.12")));
    let index = update.plan.vnis[&Netdev(VXLAN)].index;
    assert_eq!(state.port_of(index, mac(1)).as_deref(), Some("br10010"), "it is the bridge's own");
}

#[test]
fn a_mac_on_a_port_of_another_bridge_is_not_local_here() {
    let mut state = state_after(leaf());
    let elsewhere = FdbEntry { master: Some(77), ..bridged_of(78, mac(1)) };
    apply(&mut state, [remote(New, mac(1), "10.0.0.12"), Message::Fdb(New, elsewhere)]);
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
}

#[test]
fn local_macs_go_with_their_port() {
    let mut state = state_after(leaf());
    apply(&mut state, [remote(New, mac(1), "10.0.0.12"), bridged(New, HOST, mac(1))]);
    assert_eq!(behind(&state.build(), mac(1)), None);
    apply(&mut state, [Message::Link(Delete, port(ethernet(HOST, "hp1"), BRIDGE))]);
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
}

#[test]
fn zebras_entries_without_a_known_netdev_are_found_by_their_vni() {
    let mut state = state_after(leaf());
    let entry =
        FdbEntry { ifindex: 999, source_vni: Some(VNI), ..remote_of(999, mac(1), "10.0.0.12") };
    zebra(&mut state, [Message::Fdb(New, entry.clone())]);
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
    zebra(&mut state, [Message::Fdb(Delete, entry)]);
    assert_eq!(behind(&state.build(), mac(1)), None);
}

#[test]
fn entries_may_come_before_their_link() {
    let mut state = state_after([
        remote(New, mac(1), "10.0.0.12"),
        flood(New, "10.0.0.12"),
        bridged(New, HOST, mac(2)),
    ]);
    zebra(&mut state, [zebra_mac(New, mac(3), "10.0.0.13")]);
    assert!(state.build().plan.vnis.is_empty());
    apply(&mut state, leaf());
    let update = state.build();
    assert_eq!(behind(&update, mac(1)), Some(ip("10.0.0.12")));
    assert_eq!(behind(&update, mac(3)), Some(ip("10.0.0.13")));
    assert_eq!(flood_list(&update), [ip("10.0.0.12")]);
}

#[test]
fn a_dump_sweeps_what_it_does_not_have() {
    let mut state = state_after(leaf());
    apply(
        &mut state,
        [
            remote(New, mac(1), "10.0.0.12"),
            remote(New, mac(2), "10.0.0.12"),
            flood(New, "10.0.0.13"),
        ],
    );
    apply(&mut state, [bridged(New, HOST, mac(3)), remote(New, mac(3), "10.0.0.12")]);
    // zebra reported these in an earlier session. The kernel removed them while notifications were
    // lost.
    zebra(&mut state, [zebra_mac(New, mac(2), "10.0.0.12"), zebra_mac(New, mac(4), "10.0.0.12")]);
    state.build();
    let dump = vec![remote(New, mac(1), "10.0.0.14"), remote(New, mac(3), "10.0.0.12")];
    let resync = state.resync(Dump::Fdb, dump);
    assert_eq!((resync.dumped, resync.swept), (2, 4));
    let update = state.build();
    assert_eq!(behind(&update, mac(1)), Some(ip("10.0.0.14")));
    assert_eq!(behind(&update, mac(2)), None);
    assert_eq!(
        behind(&update, mac(3)),
        Some(ip("10.0.0.12")),
        "the bridge has it on no port any more"
    );
    assert_eq!(
        behind(&update, mac(4)),
        None,
        "the kernel has it no more, or zebra would not have told of it"
    );
    assert!(flood_list(&update).is_empty());
}

#[test]
fn after_a_reconnect_and_a_quiet_period_unconfirmed_macs_are_swept() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut state = state_after(leaf());
    assert_eq!(state.fpm_state(), SourceState::Disconnected);
    state.fpm_connected();
    assert_eq!(state.fpm_state(), SourceState::Syncing);
    state.apply_fpm(
        vec![zebra_mac(New, mac(1), "10.0.0.12"), zebra_mac(New, mac(2), "10.0.0.12")],
        at(0),
    );
    state.apply_fpm(vec![zebra_mac(New, mac(3), "10.0.0.12")], at(4));
    apply(&mut state, [remote(New, mac(3), "10.0.0.12")]);
    state.tick(at(8));
    assert_eq!(
        state.fpm_state(),
        SourceState::Syncing,
        "the last message is only four seconds old"
    );
    assert_eq!(state.wake_at(), Some(at(9)));
    state.tick(at(9));
    assert_eq!(state.fpm_state(), SourceState::Live);

    state.fpm_disconnected(at(20));
    assert_eq!(state.fpm_state(), SourceState::Stale { since: at(20) });
    state.tick(at(60));
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")), "what it said stays");
    state.fpm_connected();
    state.apply_fpm(vec![zebra_mac(New, mac(2), "10.0.0.12")], at(71));
    state.tick(at(75));
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
    state.tick(at(76));
    let update = state.build();
    assert_eq!(behind(&update, mac(1)), None);
    assert_eq!(behind(&update, mac(2)), Some(ip("10.0.0.12")), "said again");
    assert_eq!(behind(&update, mac(3)), Some(ip("10.0.0.12")), "confirmed by the kernel");
}

#[test]
fn what_a_zebra_that_stays_away_said_is_kept_for_its_time_and_no_longer() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let swept = |entries, returned| Some(FpmSweep { entries, returned });
    let settings =
        Settings { stale_time: StaleTime(Duration::from_secs(30)), ..Settings::default() };
    let mut state = state_with(settings);
    apply(&mut state, leaf());
    apply(&mut state, underlay());
    apply(&mut state, [remote(New, mac(2), "10.0.0.12"), flood(New, "10.0.0.12")]);
    state.fpm_connected();
    let ways = [via(UP1, "10.1.0.1"), via(UP2, "10.2.0.1")];
    let said = [
        add_route("10.0.0.0/24", &ways),
        zebra_mac(New, mac(1), "10.0.0.12"),
        zebra_mac(New, mac(2), "10.0.0.12"),
    ];
    state.apply_fpm(said.to_vec(), at(0));
    assert_eq!(state.tick(at(5)), swept(0, true));
    assert_eq!(
        (state.tick(at(60)), state.wake_at()),
        (None, None),
        "while it is there, nothing gets old"
    );

    state.fpm_disconnected(at(100));
    assert_eq!(state.wake_at(), Some(at(130)));
    // A client that sends nothing does not restart the stale time.
    state.fpm_connected();
    state.fpm_disconnected(at(120));
    assert_eq!(state.fpm_state(), SourceState::Stale { since: at(100) });
    state.fpm_connected();
    assert_eq!((state.tick(at(129)), state.fpm_forgotten()), (None, None));
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
    assert_eq!(state.tick(at(130)), swept(3, false));
    assert_eq!(state.fpm_forgotten(), Some(at(100)));
    assert_eq!((state.tick(at(200)), state.wake_at()), (None, None), "once is enough");
    state.fpm_disconnected(at(201));
    assert_eq!(state.fpm_state(), SourceState::Disconnected);
    let update = state.build();
    assert_eq!(behind(&update, mac(1)), None, "nobody has it any more");
    assert_eq!(behind(&update, mac(2)), Some(ip("10.0.0.12")), "the kernel has it");
    assert_eq!(interfaces(&update, "10.0.0.12"), [UP1, UP2], "the kernel has the route, too");

    // zebra returns too late, and the next time before the stale time is over.
    state.fpm_connected();
    state.apply_fpm(vec![zebra_mac(New, mac(1), "10.0.0.12")], at(300));
    assert_eq!(state.fpm_forgotten(), None);
    assert_eq!(state.tick(at(305)), swept(0, true));
    state.fpm_disconnected(at(310));
    state.fpm_connected();
    state.apply_fpm(vec![zebra_mac(New, mac(1), "10.0.0.12")], at(339));
    assert_eq!(state.tick(at(340)), None, "it speaks: the time does not count any more");
    assert_eq!(state.tick(at(344)), swept(0, true));
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
}

#[test]
fn an_entry_of_a_vlan_or_of_another_device_is_ignored() {
    let mut state = state_after(leaf());
    let vlan = FdbEntry { vlan: Some(7), ..bridged_of(HOST, mac(1)) };
    let device = FdbEntry {
        mac: MacAddr([0x33, 0x33, 0, 0, 0, 1]),
        destination: None,
        ..remote_of(UP1, mac(1), "10.0.0.12")
    };
    apply(
        &mut state,
        [remote(New, mac(1), "10.0.0.12"), Message::Fdb(New, vlan), Message::Fdb(New, device)],
    );
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.12")));
}

#[test]
fn an_index_stays_while_its_vtep_is_named() {
    let mut state = state_after(leaf());
    apply(&mut state, [remote(New, mac(1), "10.0.0.12"), remote(New, mac(2), "10.0.0.13")]);
    let update = state.build();
    let before = *table(&update).unwrap().fdb.get(&mac(2)).unwrap();
    apply(&mut state, [remote(Delete, mac(1), "10.0.0.12"), remote(New, mac(3), "10.0.0.14")]);
    apply(&mut state, [remote(New, mac(2), "10.0.0.15"), remote(New, mac(2), "10.0.0.13")]);
    let update = state.build();
    assert_eq!(*table(&update).unwrap().fdb.get(&mac(2)).unwrap(), before);
    assert_eq!(behind(&update, mac(2)), Some(ip("10.0.0.13")));
    assert_eq!(behind(&update, mac(3)), Some(ip("10.0.0.14")));
    assert_eq!(update.snapshot.vteps().count(), 2);
}

#[test]
fn a_table_is_built_again_only_where_something_was_said() {
    let mut state = state_after(leaf());
    apply(&mut state, [link(bridge(20, "br10020")), link(vxlan(21, 20, vxlan_of(10020)))]);
    apply(&mut state, [remote(New, mac(1), "10.0.0.12")]);
    let first = state.build();
    assert!(!state.is_dirty());
    apply(&mut state, [remote(New, mac(2), "10.0.0.12")]);
    assert!(state.is_dirty());
    let second = state.build();
    let of = |update: &control::Update, ifindex: u32| {
        let slot = update.plan.vnis[&Netdev(ifindex)].index.get();
        std::sync::Arc::clone(update.snapshot.vni(slot).unwrap())
    };
    assert!(std::sync::Arc::ptr_eq(&of(&first, 21), &of(&second, 21)));
    assert!(!std::sync::Arc::ptr_eq(&of(&first, VXLAN), &of(&second, VXLAN)));
    assert!(std::sync::Arc::ptr_eq(&first.plan, &second.plan));
    assert_eq!(second.snapshot.generation(), first.snapshot.generation() + 1);
}
