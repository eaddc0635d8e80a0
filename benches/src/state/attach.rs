//! The time that vtepd needs to take over many VNIs and to give them back.

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use fabric::Namespace;
use testbed::Daemon;
use testbed::daemon::beside_this_program;

use super::fixture::batch;
use super::row;
use crate::table::{Better, Row};

/// The number of VNIs that are attached without expedited RCU.
const FEW: u32 = 100;

/// Measures the vtepd executable beside this program.
///
/// # Errors
/// If there is none, or it does not take over.
pub fn measure(quick: bool) -> Result<Vec<Row>, Box<dyn Error>> {
    let vnis = if quick { 400 } else { 4000 };
    let namespace = Namespace::create(format!("vtb-attach-{}", std::process::id()))?;
    let mut lines = "addr add 10.0.0.1/32 dev lo\n".to_owned();
    for vni in 1..=vnis {
        writeln!(
            lines,
            "link add br{vni} type bridge\n\
             link add vx{vni} type vxlan id {vni} local 10.0.0.1 dstport 4789 nolearning\n\
             link set vx{vni} master br{vni} up\n\
             link set br{vni} up"
        )?;
    }
    batch(&namespace, "ip", &lines)?;
    let mut rows = Vec::new();
    // Without expedited RCU, attaching takes a grace period for each VNI.
    for (hook, vnis, flag) in
        [("tcx", FEW, None), ("tcx", vnis, Some("--expedited-rcu")), ("clsact", vnis, None)]
    {
        let [attach, detach] = one(&namespace, hook, vnis, flag)?;
        let options = flag.unwrap_or_default();
        let row = |what: &str, time: Duration, target| {
            row(
                &format!("{hook} {options}: {vnis} VNIs {what}").replace(" :", ":"),
                "s",
                time.as_secs_f64(),
                target,
                Better::Lower,
            )
        };
        let target = Some(10.0);
        rows.extend([row("taken over", attach, target), row("given back", detach, target)]);
    }
    Ok(rows)
}

/// The time from the start until the log reports that many VNIs, and from SIGTERM to the end.
fn one(
    namespace: &Namespace,
    hook: &str,
    vnis: u32,
    flag: Option<&str>,
) -> Result<[Duration; 2], Box<dyn Error>> {
    let numbers: Vec<String> = (1..=vnis).map(|vni| format!("--vni={vni}")).collect();
    let arguments = ["--hook", hook, "--no-fpm"].into_iter().chain(flag);
    let arguments: Vec<&str> = arguments.chain(numbers.iter().map(String::as_str)).collect();
    let mut daemon = Daemon::start(&beside_this_program()?, namespace, &arguments)?;
    let taken = daemon.await_offloaded(vnis);
    let stopped = daemon.stop()?;
    Ok([taken?, stopped])
}
