//! A few runs of the differential fuzzing with fixed seeds. `tests/differential` runs more.

use root_test::root_test;
use vtepd_tests::equivalence::differential::{Limits, run};

#[root_test]
fn kernel_vxlan_and_vtepd_forward_alike() {
    let summary = run(1, 20, &Limits::default());
    assert!(
        summary.unsteady.len() <= 2,
        "kernel VXLAN is not steady with seeds {:?}",
        summary.unsteady
    );
    let differences: Vec<u64> = summary.differences.iter().map(|(seed, _)| *seed).collect();
    assert!(differences.is_empty(), "seeds that differ: {differences:?}");
}
