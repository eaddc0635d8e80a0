//! `docs/reference/left-to-kernel.md` and `docs/reference/events.md`.

use std::fmt::Write as _;

use control::{Event, KernelOnlyReason};

use super::compare;

const HEAD: &str = "\
# What stays with the kernel

vtepd takes over a VNI only where it forwards as kernel VXLAN would. Every other VNI stays in the
`kernel` datapath: kernel VXLAN forwards it. vtepd checks the reason again whenever something
changes, and takes a VNI over as soon as no reason is left.

Four things differ by design for VNIs that are taken over:

- the outer UDP source port, and with it the path of a flow: the [policy](../guide/policies.md)
  chooses
- over IPv6, the [flow label](../design/underlay.md#ipv6); `flow-label = \"netdev\"` restores it
- over IPv4, the outer UDP checksum of super-frames of hosts and of frames of more than 10,240
  bytes, which is 0 in the datapath `offload`
- netfilter on the leaf [does not see](../guide/operations.md#what-changes-for-you) the packets

`vtepctl status`, `vtepctl vni` and `vtepd --dry-run` show the slug and a sentence with the details.
The metric `vtepd_left_to_kernel` has the slug as its label `reason`.

*Source ports* says who chooses the outer UDP source port of these VNIs: vtepd by the VNI's policy,
or the kernel by its own hash.

This page is generated from the code (`crates/control/src/eligibility/slug.rs`).

| slug | reason | source ports |
|---|---|---|
";

#[test]
fn the_page_of_reasons_is_up_to_date() {
    let mut page = HEAD.to_owned();
    for (slug, sentence) in KernelOnlyReason::ALL {
        let ports = if KernelOnlyReason::UNTOUCHED.contains(slug) { "kernel" } else { "vtepd" };
        writeln!(page, "| `{slug}` | {sentence} | {ports} |").unwrap();
    }
    compare("docs/reference/left-to-kernel.md", &page);
}

const EVENTS: &str = "\
# Events

`vtepctl events` shows what happened, `vtepctl events -f` follows, `--since 10m` and `--after N`
choose. Events are numbered from 1 without gaps. The last 8,192 are remembered. A reader that is too
slow gets one event of kind `lost` with the number of events that it missed.

This page is generated from the code (`crates/control/src/events/event.rs`).

| kind | when |
|---|---|
";

#[test]
fn the_reference_of_events_is_up_to_date() {
    let mut page = EVENTS.to_owned();
    for (kind, when) in Event::KINDS {
        writeln!(page, "| `{kind}` | {when} |").unwrap();
    }
    compare("docs/reference/events.md", &page);
}
