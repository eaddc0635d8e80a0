//! *The kernel delivers N, vtepd delivers N*: a row for each knob of the leaf. `ROW=part-of-a-name` tries only some.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test may panic")]

mod routes;

use vtepd_tests::equivalence::leaf::Plan;
use vtepd_tests::equivalence::table::{Row, try_all};
use vtepd_tests::guard::can_run;

/// Tries a group with and without `learning` on the netdev.
fn both(name: &str, rows: &[Row]) {
    if !can_run(name) {
        return;
    }
    for vxlan in ["nolearning", "learning"] {
        try_all(name, &Plan { vxlan: vxlan.to_owned(), ..Plan::default() }, rows);
    }
}
