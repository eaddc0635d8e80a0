//! `lab capture`: packets of leaves and links in one file.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use api::v1::CaptureRequest;
use fabric::owner::create_for_user;
use lab::capture::{self, Wanted};
use study::leaves;

use super::open::open;
use crate::fabric_arguments::Capture;
use crate::output::{Outcome, interrupted, note};

pub(super) fn run(arguments: &Capture) -> Outcome {
    let fabric = open(arguments.which.name.as_ref())?;
    let mut chosen = arguments.leaf.clone();
    if chosen.is_empty() && arguments.link.is_empty() {
        chosen = leaves::with_vtepd(&fabric)?;
    }
    if chosen.is_empty() && arguments.link.is_empty() {
        return Err("vtepd runs on no leaf: start it with 'lab policy', or name a --link".into());
    }
    let request = CaptureRequest {
        vni: arguments.vni,
        queue_pair: arguments.qp,
        mac: arguments.mac.map(|mac| mac.to_string()),
        snap_length: arguments.snap_length,
    };
    let (interfaces, count) = (arguments.link.clone(), arguments.count);
    let wanted = Wanted { leaves: chosen, interfaces, request, count };
    let file = BufWriter::new(file(&arguments.write)?);
    let start = Instant::now();
    let over = || interrupted() || arguments.time.is_some_and(|time| start.elapsed() >= time);
    let begun = || note("capturing until Ctrl-C");
    let written = capture::capture(&fabric.deployed(), &wanted, file, begun, over)?;
    note(format_args!(
        "{} packets captured, {} lost because the file was written too slowly",
        written.packets, written.lost
    ));
    Ok(ExitCode::SUCCESS)
}

fn file(path: &Path) -> Result<Box<dyn Write>, Box<dyn std::error::Error>> {
    if path == Path::new("-") {
        if io::stdout().is_terminal() {
            return Err(
                "pcapng is not for a terminal: name a file, or pipe it into Wireshark".into()
            );
        }
        return Ok(Box::new(io::stdout()));
    }
    let created = create_for_user(path);
    Ok(Box::new(created.map_err(|error| format!("cannot write {}: {error}", path.display()))?))
}
