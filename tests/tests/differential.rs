//! A few runs of the differential fuzzing with fixed seeds. `tests/differential` runs more.

use vtepd_tests::equivalence::differential::{Limits, run};
use vtepd_tests::guard::can_run;

#[test]
fn kernel_vxlan_and_vtepd_forward_alike() {
    if !can_run("kernel_vxlan_and_vtepd_forward_alike") {
        return;
    }
    let summary = run(1, 20, &Limits::default());
    assert!(
        summary.unsteady.len() <= 2,
        "kernel VXLAN is not steady with seeds {:?}",
        summary.unsteady
    );
    let differences: Vec<u64> = summary.differences.iter().map(|(seed, _)| *seed).collect();
    assert!(differences.is_empty(), "seeds that differ: {differences:?}");
}
