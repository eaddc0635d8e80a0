//! *The kernel delivers N, vtepd delivers N*: a row for each knob of the leaf. `ROW=part-of-a-name` tries only some.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test may panic")]

mod bridge;
mod filters;
mod frames;
mod netdev;
mod routes;

use vtepd_tests::equivalence::leaf::Plan;
use vtepd_tests::equivalence::table::{Row, try_all};
use vtepd_tests::guard::can_run;

/// Tries a group with and without `learning` on the netdev, which has these further options.
fn both(name: &str, options: &str, rows: &[Row]) {
    if !can_run(name) {
        return;
    }
    // Both at once: most of the time is spent on waiting.
    std::thread::scope(|scope| {
        for learning in ["nolearning", "learning"] {
            let plan = Plan { vxlan: format!("{learning} {options}"), ..Plan::default() };
            scope.spawn(move || try_all(name, &plan, rows));
        }
    });
}
