//! Changes while the daemon runs, and their state after the configuration is read again.

#![cfg(test)]

mod world;

use std::collections::BTreeSet;

use control::events::MacChange;
use control::{Change, KernelOnlyReason, Namespace, Settings};
use path::{Bins, Policy, SourcePortRange};
use world::*;

fn policy_of(
    policy: Option<Policy>,
    bins: Option<u16>,
    source_ports: Option<(u16, u16)>,
) -> Change {
    let bins = bins.map(|bins| Bins::try_from(bins).unwrap());
    let source_ports = source_ports.map(|range| SourcePortRange::try_from(range).unwrap());
    Change::Policy { vni: vni(VNI), policy, bins, source_ports }
}

#[test]
fn a_policy_is_followed_at_once_until_the_configuration_is_read_again() {
    let mut state = state_after(leaf());
    let slot = table(&state.build()).unwrap().index;
    state.change(&policy_of(Some(Policy::QpBins), Some(8), None)).unwrap();
    let update = state.build();
    let entropy = table(&update).unwrap().entropy;
    assert_eq!((entropy.policy(), entropy.bins().map(Bins::get)), (Policy::QpBins, Some(8)));
    assert_eq!(table(&update).unwrap().index, slot, "still the same VNI");
    // Absent fields keep their values.
    state.change(&policy_of(None, None, Some((50_000, 50_007)))).unwrap();
    let entropy = table(&state.build()).unwrap().entropy;
    assert_eq!(
        (entropy.bins().map(Bins::get), entropy.range().to_string()),
        (Some(8), "50000-50007".into())
    );
    // Contradictory settings change nothing.
    let error = state.change(&policy_of(None, Some(9), None)).unwrap_err();
    assert!(error.to_string().contains("9 bins do not fit"), "{error}");
    assert_eq!(table(&state.build()).unwrap().entropy, entropy);

    state.reload(Settings::default(), Namespace::default());
    assert_eq!(table(&state.build()).unwrap().entropy.policy(), Policy::QpHash);
}

#[test]
fn a_detached_vni_stays_with_the_kernel_until_it_is_attached() {
    let mut state = state_after(leaf());
    assert!(table(&state.build()).is_some());
    state.change(&Change::Detach(vni(VNI))).unwrap();
    assert_eq!(why_left(&state.build(), VXLAN), Some(KernelOnlyReason::Detached));
    state.reload(Settings::default(), Namespace::default());
    assert_eq!(
        why_left(&state.build(), VXLAN),
        Some(KernelOnlyReason::Detached),
        "a reload is no attach"
    );
    state.change(&Change::Attach(vni(VNI))).unwrap();
    assert!(table(&state.build()).is_some());
}

#[test]
fn attach_overrides_configuration_until_reload() {
    let excluded = Settings { exclude: BTreeSet::from([vni(VNI)]), ..Settings::default() };
    let others = Settings { include: Some(BTreeSet::from([vni(5)])), ..Settings::default() };
    for (settings, reason) in
        [(excluded, KernelOnlyReason::Excluded), (others, KernelOnlyReason::NotIncluded)]
    {
        let mut state = state_with(settings.clone());
        apply(&mut state, leaf());
        assert_eq!(why_left(&state.build(), VXLAN), Some(reason.clone()));
        state.change(&Change::Attach(vni(VNI))).unwrap();
        assert!(table(&state.build()).is_some());
        state.reload(settings, Namespace::default());
        assert_eq!(why_left(&state.build(), VXLAN), Some(reason));
    }
}

#[test]
fn each_build_says_which_mac_addresses_it_moved() {
    let mut state = state_after(leaf());
    state.build();
    let [one, two] = ["10.0.0.12", "10.0.0.13"];
    let mut moved = |messages: Vec<netlink::Message>| {
        apply(&mut state, messages);
        state.build();
        state.take_mac_changes(std::time::Instant::now())
    };
    let change = |from: Option<&str>, to: Option<&str>| {
        vec![(
            Netdev(VXLAN),
            MacChange { mac: mac(0x77), from: from.map(ip), to: to.map(ip), local: false },
        )]
    };
    assert_eq!(moved(vec![remote(New, mac(0x77), one)]), change(None, Some(one)));
    assert_eq!(moved(vec![remote(New, mac(0x77), one)]), []);
    assert_eq!(moved(vec![remote(New, mac(0x77), two)]), change(Some(one), Some(two)));
    assert_eq!(moved(vec![remote(Delete, mac(0x77), two)]), change(Some(two), None));
    assert_eq!(moved(Vec::new()), []);
}
