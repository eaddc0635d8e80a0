//! Which reports of workers become entries of the kernel's FDB, by the kernel's rules and some
//! limits.

#![cfg(test)]

mod world;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use control::mac_mobility::WINDOW;
use control::{
    Flap, LearnCounts, LearnLimits, Namespace, Settings, State, UnsupportedEntry, VniSettings,
};
use netlink::{FdbChange, FdbEntry, FdbWrite, Message, Vxlan};
use tables::Learned;
use wire::MacAddr;
use world::*;

fn learning() -> Vxlan {
    Vxlan { learning: true, ageing: 300, ..vxlan_of(VNI) }
}

/// A leaf that learns, has been built, and knows one VTEP of its flood list.
fn learner(attributes: Vxlan) -> State {
    let mut state = state_after(leaf_with(attributes));
    apply(&mut state, underlay());
    apply(&mut state, [flood(New, "10.0.0.12")]);
    assert_eq!(why_left(&state.build(), VXLAN), None);
    state
}

fn heard(last: u8, vtep: &str) -> Learned {
    Learned { ifindex: VXLAN, mac: mac(last), vtep: ip(vtep) }
}

/// An entry as the kernel and vtepd learn it.
fn dynamic(last: u8, vtep: &str) -> Message {
    Message::Fdb(New, FdbEntry { state: 0x02, flags: 0x02, ..remote_of(VXLAN, mac(last), vtep) })
}

fn change(write: Option<FdbWrite>) -> Option<FdbChange> {
    write.map(|write| write.change)
}

#[test]
fn an_address_is_written_and_forwarded_by_when_the_kernel_says_so() {
    let mut state = learner(learning());
    let write = state.learn(&heard(1, "10.0.0.12")).expect("news");
    assert_eq!(
        write,
        FdbWrite {
            ifindex: VXLAN,
            mac: mac(1),
            vtep: ip("10.0.0.12"),
            change: FdbChange::New,
            flags: 0
        }
    );
    assert_eq!(behind(&state.build(), mac(1)), None, "the kernel has not said it yet");
    state.written(&write, 0);
    apply(&mut state, [dynamic(1, "10.0.0.12")]);
    let update = state.build();
    assert_eq!(behind(&update, mac(1)), Some(ip("10.0.0.12")));
    assert_eq!(change(state.learn(&heard(1, "10.0.0.12"))), Some(FdbChange::Refreshed));
    assert_eq!(change(state.learn(&heard(1, "10.0.0.13"))), Some(FdbChange::Moved));
    assert_eq!(state.learn_counts(), LearnCounts { new: 1, ..LearnCounts::default() });
    // Only the kernel ages entries.
    apply(&mut state, [remote(Delete, mac(1), "10.0.0.12")]);
    assert_eq!(behind(&state.build(), mac(1)), None);
    assert_eq!(change(state.learn(&heard(1, "10.0.0.12"))), Some(FdbChange::New));
}

#[test]
fn the_worker_is_told_what_to_learn_by() {
    let mut state = learner(learning());
    let static_entry =
        FdbEntry { state: 0x40, flags: 0x02, ..remote_of(VXLAN, mac(9), "10.0.0.12") };
    apply(&mut state, [Message::Fdb(New, static_entry.clone()), dynamic(1, "10.0.0.12")]);
    let update = state.build();
    let told = table(&update).unwrap().learning.clone().expect("it learns");
    assert_eq!((told.ifindex, told.ageing.map(|time| time.as_secs())), (VXLAN, Some(300)));
    assert_eq!(told.fixed.into_iter().collect::<Vec<_>>(), [(mac(9), ip("10.0.0.12"))]);
    assert_eq!(table(&update).unwrap().mac, ethernet(VXLAN, "").mac);
    // The same address at the same VTEP, but no longer static.
    apply(&mut state, [dynamic(9, "10.0.0.12")]);
    assert!(table(&state.build()).unwrap().learning.as_ref().unwrap().fixed.is_empty());
    let set = |state: &mut State, attributes| {
        apply(state, [link(vxlan(VXLAN, BRIDGE, attributes))]);
        table(&state.build()).unwrap().learning.clone()
    };
    let version = |state: &mut State| {
        let update = state.build();
        update.snapshot.settings_version(table(&update).unwrap().index)
    };
    let before = version(&mut state);
    assert_eq!(set(&mut state, Vxlan { ageing: 0, ..learning() }).unwrap().ageing, None);
    assert_ne!(version(&mut state), before, "programs follow the ageing time");
    assert_eq!(set(&mut state, vxlan_of(VNI)), None);
    // Static entries appear again when it learns again.
    apply(&mut state, [Message::Fdb(New, static_entry)]);
    assert_eq!(set(&mut state, learning()).unwrap().fixed.len(), 1);
}

#[test]
fn static_entries_and_netdevs_that_do_not_learn_stay_as_they_are() {
    let mut state = learner(learning());
    for (last, kind) in [(1, 0x40), (2, 0x80)] {
        let entry =
            FdbEntry { state: kind, flags: 0x02, ..remote_of(VXLAN, mac(last), "10.0.0.12") };
        apply(&mut state, [Message::Fdb(New, entry)]);
        assert_eq!(state.learn(&heard(last, "10.0.0.12")), None);
        assert_eq!(state.learn(&heard(last, "10.0.0.13")), None);
    }
    // Another program's entry that may be moved: it is moved with its flags, and never refreshed.
    let external = FdbEntry { state: 0x02, flags: 0x12, ..remote_of(VXLAN, mac(3), "10.0.0.12") };
    apply(&mut state, [Message::Fdb(New, external)]);
    assert_eq!(state.learn(&heard(3, "10.0.0.12")), None);
    assert_eq!(state.learn(&heard(3, "10.0.0.13")).map(|write| write.flags), Some(0x12));
    assert_eq!(state.learn(&Learned { ifindex: HOST, ..heard(4, "10.0.0.12") }), None);
    let mut evpn = learner(vxlan_of(VNI));
    assert_eq!(evpn.learn(&heard(4, "10.0.0.12")), None);
    // The kernel learns for a netdev that it forwards for.
    let mut left = learner(learning());
    apply(&mut left, [link(down(vxlan(VXLAN, BRIDGE, learning())))]);
    left.build();
    assert_eq!(left.learn(&heard(4, "10.0.0.12")), None);
}

#[test]
fn made_up_addresses_do_not_fill_the_memory() {
    let number = |n: u32| {
        let [_, b, c, d] = n.to_be_bytes();
        MacAddr([2, 1, 0, b, c, d])
    };
    let entry = |n| {
        let entry =
            FdbEntry { state: 0x02, flags: 0x02, ..remote_of(VXLAN, number(n), "10.0.0.12") };
        Message::Fdb(New, entry)
    };
    let default = VniSettings::default().addresses;
    // The flood list is one entry.
    for (limit, fits) in [(0, default - 1), (100, 99), (1_000_000, default - 1)] {
        let mut state = learner(Vxlan { limit, ..learning() });
        apply(&mut state, (1..fits as u32).map(entry));
        state.build();
        let next = |n| Learned { ifindex: VXLAN, mac: number(n), vtep: ip("10.0.0.12") };
        assert_eq!(change(state.learn(&next(100_000))), Some(FdbChange::New), "maxaddress {limit}");
        apply(&mut state, [entry(100_000)]);
        assert_eq!(state.learn(&next(100_001)), None, "maxaddress {limit}");
        assert_eq!(state.learn_counts().too_many_addresses, 1);
        // Known addresses are still refreshed and moved.
        assert_eq!(change(state.learn(&next(1))), Some(FdbChange::Refreshed));
        assert_eq!(
            change(state.learn(&Learned { vtep: ip("10.0.0.13"), ..next(1) })),
            Some(FdbChange::Moved)
        );
    }
}

/// The limits are settings: for one VNI, for all together, and for VTEPs.
#[test]
fn limits_follow_the_settings() {
    let own = VniSettings { addresses: 3, ..VniSettings::default() };
    let limits = LearnLimits { total: 5, vteps: 2, ..LearnLimits::default() };
    let mut settings =
        Settings { learning: limits, vnis: [(vni(VNI), own)].into(), ..Settings::default() };
    let mut state = state_with(settings.clone());
    apply(&mut state, leaf_with(learning()));
    apply(&mut state, underlay());
    let other = Vxlan { id: VNI + 1, destination_port: 4790, ..learning() };
    apply(
        &mut state,
        [flood(New, "10.0.0.12"), link(bridge(30, "br30")), link(vxlan(31, 30, other))],
    );
    let update = state.build();
    assert_eq!((why_left(&update, VXLAN), why_left(&update, 31)), (None, None));
    let entry = |ifindex, last| {
        Message::Fdb(
            New,
            FdbEntry { state: 0x02, flags: 0x02, ..remote_of(ifindex, mac(last), "10.0.0.12") },
        )
    };
    let elsewhere = |last| Learned { ifindex: 31, ..heard(last, "10.0.0.12") };
    let learns = |state: &mut State, learned: Learned| {
        let written = change(state.learn(&learned));
        if written.is_some() {
            apply(state, [entry(learned.ifindex, learned.mac.0[5])]);
            state.build();
        }
        written.is_some()
    };
    // The flood list is one entry.
    let fits: Vec<bool> =
        (1..=4).map(|last| learns(&mut state, heard(last, "10.0.0.12"))).collect();
    assert_eq!(fits, [true, true, false, false], "three of the VNI");
    let fits: Vec<bool> = (1..=4).map(|last| learns(&mut state, elsewhere(last))).collect();
    assert_eq!(fits, [true, true, false, false], "five of all");
    assert_eq!(state.learn_counts().too_many_addresses, 4);
    settings.learning.total = 6;
    settings.vnis.clear();
    state.reload(settings, control::Namespace::default());
    state.build();
    assert!(learns(&mut state, heard(3, "10.0.0.12")), "read again");
    assert!(!learns(&mut state, heard(4, "10.0.0.12")));
    // A second VTEP, but not a third.
    assert_eq!(change(state.learn(&heard(3, "10.0.0.13"))), Some(FdbChange::Moved));
    apply(&mut state, [dynamic(3, "10.0.0.13")]);
    state.build();
    assert_eq!(state.learn(&heard(3, "10.0.0.14")), None);
    assert_eq!(state.learn_counts().too_many_vteps, 1);
}

/// Two VTEPs claim an address. It is written a few times a second. The start and the end of the
/// flapping are reported.
#[test]
fn an_address_that_moves_too_often_is_moved_a_few_times_a_second() {
    let mut state = learner(learning());
    apply(&mut state, [dynamic(1, "10.0.0.12")]);
    state.build();
    let start = Instant::now();
    let (mut now, mut moved, mut flaps, mut told) = (start, 0, Vec::new(), 0);
    let mut turn = |state: &mut State, now: Instant, to: Option<&str>| {
        if let Some(to) = to
            && let Some(write) = state.learn(&heard(1, to))
        {
            assert_eq!(write.change, FdbChange::Moved);
            moved += 1;
            apply(state, [dynamic(1, to)]);
            state.build();
        }
        told += state.take_mac_changes(now).len();
        state.tick(now);
        flaps.extend(state.take_flaps(now));
    };
    turn(&mut state, now, None);
    for step in 0..300 {
        let known = behind(state.published(), mac(1)).unwrap();
        let other = ["10.0.0.12", "10.0.0.13"].into_iter().find(|vtep| ip(vtep) != known);
        turn(&mut state, now, other.filter(|_| step % 2 == 0));
        now += Duration::from_millis(10);
    }
    let wake = state.wake_at().expect("somebody flaps");
    assert!(wake <= now + WINDOW);
    for _ in 0..250 {
        now += Duration::from_millis(10);
        turn(&mut state, now, None);
    }
    let flap = |over| Flap { source: Netdev(VXLAN), mac: mac(1), over };
    assert_eq!(flaps, [flap(None), flap(Some(moved))]);
    // Three seconds, and a window starts only with a move.
    assert!((15..=20).contains(&moved), "{moved}");
    assert_eq!(told, 1 + 5, "when it came, and the moves before it was called flapping");
    assert_eq!(state.learn_counts().flapping, 150 - moved);
    assert_eq!(
        state.move_counts(),
        control::MoveCounts { followed: moved, coalesced: 0, flapping: 1 }
    );
    assert_eq!(
        change(state.learn(&heard(1, "10.0.0.14"))),
        Some(FdbChange::Moved),
        "at rest it moves again"
    );
}

/// Moves that are replaced before a publication are only counted.
#[test]
fn moves_between_two_publications_are_one() {
    let mut state = state_after(leaf());
    apply(&mut state, [remote(New, mac(1), "10.0.0.12")]);
    state.build();
    for vtep in ["10.0.0.13", "10.0.0.14", "10.0.0.12", "10.0.0.13"] {
        apply(&mut state, [remote(New, mac(1), vtep)]);
    }
    // The same entry again is no move.
    apply(&mut state, [remote(New, mac(1), "10.0.0.13")]);
    assert_eq!(behind(&state.build(), mac(1)), Some(ip("10.0.0.13")));
    let counts = control::MoveCounts { followed: 1, coalesced: 3, flapping: 0 };
    assert_eq!(state.move_counts(), counts);
    // Moved away and back: nothing has changed.
    apply(&mut state, ["10.0.0.12", "10.0.0.13"].map(|vtep| remote(New, mac(1), vtep)));
    state.build();
    assert_eq!(state.move_counts(), control::MoveCounts { coalesced: 5, ..counts });

    // Few publications hide no flapping: moves that they did not need count as well, five of a second
    // and one too many.
    let now = Instant::now();
    assert_eq!(state.take_flaps(now), []);
    apply(&mut state, [remote(New, mac(1), "10.0.0.14")]);
    state.build();
    assert_eq!(state.take_mac_changes(now).len(), 1);
    let flaps = state.take_flaps(now);
    assert_eq!(flaps.iter().map(|flap| flap.over).collect::<Vec<_>>(), [None], "{flaps:?}");
    let counts = control::MoveCounts { followed: 2, flapping: 1, ..counts };

    // Moves on a netdev that stays with the kernel do not count.
    apply(&mut state, [link(down(vxlan(VXLAN, BRIDGE, vxlan_of(VNI))))]);
    state.build();
    for vtep in ["10.0.0.12", "10.0.0.13"].into_iter().cycle().take(20) {
        apply(&mut state, [remote(New, mac(1), vtep)]);
        state.build();
        state.take_mac_changes(Instant::now());
    }
    assert_eq!(state.move_counts(), control::MoveCounts { coalesced: 5, ..counts });
    assert_eq!(state.take_flaps(Instant::now()), []);
}

#[test]
fn made_up_vteps_are_limited_and_take_no_vni_along() {
    let mut state = learner(learning());
    assert_eq!(state.learn(&heard(1, "10.0.0.11")), None, "the leaf's own address");
    assert_eq!(state.learn_counts().unreachable, 1);
    // Another netdev has an entry with such a VTEP. That does not make it acceptable here.
    let other = Vxlan { learning: false, ..vxlan_of(VNI + 1) };
    let via_bridge = FdbEntry { flags: 0x02, ..remote_of(31, mac(7), "172.16.0.5") };
    apply(
        &mut state,
        [
            link(bridge(30, "br30")),
            link(vxlan(31, 30, other)),
            add_route("172.16.0.0/16", &[via(30, "")]),
            Message::Fdb(New, via_bridge),
        ],
    );
    assert!(why_left(&state.build(), 31).is_some());
    assert_eq!(state.learn(&heard(1, "172.16.0.5")), None);
    assert_eq!(state.learn_counts().unreachable, 2);
    assert_eq!(why_left(&state.build(), VXLAN), None);

    let first = Ipv4Addr::new(10, 0, 0, 13).to_bits();
    let vtep = |n: usize| Ipv4Addr::from_bits(first + u32::try_from(n).unwrap());
    let mut known = 2;
    for n in 0.. {
        let learned = Learned { vtep: vtep(n).into(), ..heard(2, "10.0.0.12") };
        let Some(write) = state.learn(&learned) else { break };
        let mac = MacAddr([2, 9, 0, 0, (n >> 8) as u8, n as u8]);
        apply(
            &mut state,
            [Message::Fdb(
                New,
                FdbEntry { state: 0x02, ..remote_of(VXLAN, mac, &write.vtep.to_string()) },
            )],
        );
        state.build();
        known += 1;
    }
    assert_eq!(known, LearnLimits::default().vteps);
    assert_eq!(state.learn_counts().too_many_vteps, 1);
    assert_eq!(change(state.learn(&heard(2, "10.0.0.12"))), Some(FdbChange::New), "a known one");
}

/// A burst of reports does not pass the limits while the kernel has not told of the first entries.
#[test]
fn a_burst_of_addresses_does_not_exceed_the_limits() {
    let settings = |own, total, vteps| Settings {
        default: VniSettings { addresses: own, ..VniSettings::default() },
        learning: LearnLimits { total, vteps, ..LearnLimits::default() },
        ..Settings::default()
    };
    let written = |settings, vtep: fn(u8) -> String| {
        let mut state = learner(learning());
        state.reload(settings, Namespace::default());
        state.build();
        let burst = (1..=20).filter(|last| state.learn(&heard(*last, &vtep(*last))).is_some());
        burst.count()
    };
    let one = |_| "10.0.0.12".to_owned();
    let others = |last| format!("10.0.0.{}", 100 + last);
    // The flood list is one entry, and has one VTEP.
    assert_eq!(written(settings(8, 100, 100), one), 7);
    assert_eq!(written(settings(100, 8, 100), one), 7);
    assert_eq!(written(settings(100, 100, 5), others), 4);
    assert_eq!(written(settings(100, 100, 100), one), 20);
    // Known addresses that move.
    let mut state = learner(learning());
    apply(&mut state, (1..=20).map(|last| dynamic(last, "10.0.0.12")));
    state.reload(settings(100, 100, 5), Namespace::default());
    state.build();
    let moves = (1..=20).filter(|last| state.learn(&heard(*last, &others(*last))).is_some());
    assert_eq!(moves.count(), 4);
    // The kernel has told of the entries, and VTEPs are counted in the next publication.
    let mut state = learner(learning());
    state.reload(settings(100, 100, 5), Namespace::default());
    state.build();
    let told = (1..=20).filter(|last| {
        let write = state.learn(&heard(*last, &others(*last)));
        write.inspect(|_| apply(&mut state, [dynamic(*last, &others(*last))])).is_some()
    });
    assert_eq!(told.count(), 4);
    // What the kernel refuses takes no room. Nor does what it has told of, and forgotten.
    let mut state = learner(learning());
    state.reload(settings(2, 100, 100), Namespace::default());
    let write = state.learn(&heard(1, "10.0.0.12")).unwrap();
    assert_eq!(state.learn(&heard(2, "10.0.0.12")), None);
    state.written(&write, 17);
    let write = state.learn(&heard(2, "10.0.0.12")).unwrap();
    state.written(&write, 0);
    assert_eq!(state.learn(&heard(3, "10.0.0.12")), None);
    for operation in [New, Delete] {
        let entry = FdbEntry { state: 0x02, ..remote_of(VXLAN, mac(2), "10.0.0.12") };
        apply(&mut state, [Message::Fdb(operation, entry)]);
    }
    assert!(state.learn(&heard(3, "10.0.0.12")).is_some());
}

#[test]
fn what_the_kernel_refuses_is_counted() {
    let mut state = learner(learning());
    let write = state.learn(&heard(1, "10.0.0.12")).unwrap();
    for (errno, counts) in [
        (28, LearnCounts { too_many_addresses: 1, ..LearnCounts::default() }),
        (17, LearnCounts { too_many_addresses: 1, refused: 1, ..LearnCounts::default() }),
    ] {
        state.written(&write, errno);
        assert_eq!(state.learn_counts(), counts);
    }
    state.written(&FdbWrite { change: FdbChange::Moved, ..write }, 0);
    state.written(&FdbWrite { change: FdbChange::Refreshed, ..write }, 0);
    assert_eq!((state.learn_counts().moved, state.learn_counts().refreshed), (1, 1));
}

/// Before Linux 6.14 each write is announced twice, the second time without a destination.
#[test]
fn an_announcement_without_a_destination_says_nothing() {
    let mut state = learner(learning());
    let echo = FdbEntry {
        destination: None,
        state: 0x02,
        flags: 0x02,
        ..remote_of(VXLAN, mac(1), "10.0.0.12")
    };
    apply(&mut state, [dynamic(1, "10.0.0.12"), Message::Fdb(New, echo)]);
    let update = state.build();
    assert_eq!(why_left(&update, VXLAN), None);
    assert_eq!(behind(&update, mac(1)), Some(ip("10.0.0.12")));
    let nowhere =
        FdbEntry { destination: Some(ip("0.0.0.0")), ..remote_of(VXLAN, mac(1), "10.0.0.12") };
    apply(&mut state, [Message::Fdb(New, nowhere)]);
    let oddity = UnsupportedEntry::NoDestination;
    let left = control::KernelOnlyReason::FdbEntry { mac: mac(1), oddity };
    assert_eq!(why_left(&state.build(), VXLAN), Some(left));
}
