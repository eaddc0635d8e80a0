//! `docs/reference/drop-reasons.md`.

use std::fmt::Write as _;

use pipeline::DropReason;

use super::compare;

const HEAD: &str = "\
# Drop reasons

Every frame that a worker drops is counted with one reason. `vtepctl drops` shows the reasons that
occurred, `vtepctl drops --all` shows every one. The metric `vtepd_dropped_frames_total` has the
reason as its label.

`vtepctl drops --frames` shows the headers of the last frames, 128 bytes of each: at most 32 for
each reason and worker, and 32 that BPF programs dropped. These are `program_failed`, and with
`unknown_slot` those that a worker had sent into a bridge whose VNI was given back. The programs
tell at most 128 frames of a reason in a second, so that a flood of them costs little.

Not remembered are frames that no worker has read (`receive_overrun`, `waited_too_long`), that were
held (`shutdown`, and those for an unknown next hop or of a sprayed queue pair), that a port refused
to send, or of which several copies or segments were dropped.

This page is generated from the code (`crates/frame/src/drop_reason.rs`).

| reason | meaning |
|---|---|
";

#[test]
fn the_reference_of_drop_reasons_is_up_to_date() {
    let mut page = HEAD.to_owned();
    for reason in DropReason::ALL {
        writeln!(page, "| `{}` | {} |", reason.label(), reason.sentence().trim()).unwrap();
    }
    compare("docs/reference/drop-reasons.md", &page);
}
