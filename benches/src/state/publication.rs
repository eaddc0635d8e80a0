//! The time from an event to a new snapshot, including the release of old snapshots.

use std::time::{Duration, Instant};

use control::{State, Update};
use netlink::Message;

use super::fabric::{LARGE, Scale, neighbour, route, uplink};
use super::{median_and_worst, row};
use crate::table::{Better, Row};

/// The target in µs for one publication. With it, 1,000 changes per second use at most one core.
const TARGET: f64 = 1000.0;

/// Measures a publication after each kind of event.
#[must_use]
pub fn measure(quick: bool) -> Vec<Row> {
    let count = if quick { 200 } else { 2000 };
    let mut rows = Vec::new();
    let one = Scale { vnis: 1, ..LARGE };
    for (scale, where_) in [(LARGE, "100000 in 4000 VNIs"), (one, "100000 in one VNI")] {
        let mut state = scale.state();
        scale.tell_macs(&mut state);
        let mut last = state.build();
        let mut moves =
            |number: u32| scale.remote(number, (scale.home(number) + 1) % scale.vteps).to_vec();
        rows.extend(case(
            &mut state,
            &mut last,
            &format!("one of {where_} moves"),
            count,
            &mut moves,
        ));
        if scale.vnis == 1 {
            continue;
        }
        let mut appear = |number| scale.remote(scale.macs + number, scale.vteps + number).to_vec();
        rows.extend(case(&mut state, &mut last, "a MAC of a new VTEP appears", count, &mut appear));
        let mut routes =
            |number| vec![route(number % scale.vteps, scale.uplinks - 1 - number / scale.vteps)];
        rows.extend(case(&mut state, &mut last, "the route to a VTEP changes", count, &mut routes));
        let mut gateway = |number: u32| {
            let mac = wire::MacAddr([0xee, 1, 0, 0, (number >> 8) as u8, number as u8]);
            vec![neighbour(number % scale.uplinks, mac)]
        };
        rows.extend(case(
            &mut state,
            &mut last,
            "a gateway's MAC address changes",
            count / 10,
            &mut gateway,
        ));
        let mut flap = |number: u32| vec![uplink(number / 2 % scale.uplinks, number % 2 == 1)];
        rows.extend(case(&mut state, &mut last, "a link goes or comes", count / 10, &mut flap));
    }
    rows
}

/// The mean and maximum time of `count` publications, each after one event.
fn case(
    state: &mut State,
    last: &mut Update,
    what: &str,
    count: u32,
    event: &mut dyn FnMut(u32) -> Vec<Message>,
) -> [Row; 2] {
    let mut publish = |number| {
        let messages = event(number);
        let start = Instant::now();
        messages.into_iter().for_each(|message| state.apply_kernel(message));
        *last = state.build();
        start.elapsed()
    };
    let times: Vec<Duration> = (0..count).map(&mut publish).collect();
    let mean = times.iter().sum::<Duration>().as_secs_f64() * 1e6 / f64::from(count.max(1));
    let (_, worst) = median_and_worst(times);
    [
        row(&format!("publish: {what}, mean"), "µs", mean, Some(TARGET), Better::Lower),
        row(&format!("publish: {what}, worst"), "µs", worst, None, Better::Lower),
    ]
}
