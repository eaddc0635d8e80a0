//! `lab wan`: runs circuits until a signal arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wan::{self, Impairment, Settings};

use crate::arguments::Output;
use crate::fabric_arguments::Wan;
use crate::output::{Outcome, interrupted, note, show};

pub(super) fn run(arguments: &Wan, output: Output) -> Outcome {
    if arguments.jitter > arguments.delay {
        return Err(
            "--jitter is larger than --delay: a frame cannot leave before it arrives".into()
        );
    }
    let report_wanted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&report_wanted))?;
    let mut wan = wan::Wan::new(&Settings {
        circuits: arguments.circuits.clone(),
        impairment: Impairment {
            delay: arguments.delay,
            jitter: arguments.jitter,
            loss: arguments.loss,
            rate: (arguments.rate > 0).then_some(arguments.rate),
            queue: arguments.queue,
            ecn: arguments.ecn,
        },
        seed: arguments.seed,
        carrier: arguments.carrier,
    })?;
    let mut missing = None;
    while !interrupted() {
        let now = wan.missing().join(", ");
        if missing.as_ref() != Some(&now) {
            match now.as_str() {
                "" => note("all circuits are connected"),
                names => note(format_args!("waiting for {names}")),
            }
            missing = Some(now);
        }
        if report_wanted.swap(false, Ordering::Relaxed) {
            show(&wan.report(), output)?;
        }
        wan.poll()?;
    }
    if wan.strangers() > 0 {
        note(format_args!("{} messages of other users were ignored", wan.strangers()));
    }
    show(&wan.report(), output)
}
