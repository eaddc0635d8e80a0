//! `lab allreduce`: adds vectors of hosts, for a program that trains.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::process::ExitCode;
use std::time::Duration;

use traffic::allreduce::{AllReduce, AllReduceError, Member};

use crate::output::{Outcome, interrupt, print};
use crate::workload_arguments::AllReduce as Arguments;

pub(super) fn run(arguments: &Arguments) -> Outcome {
    let path = arguments.memory.display();
    let memory = File::options().read(true).write(true).open(&arguments.memory);
    let memory = memory.map_err(|error| format!("cannot open '{path}': {error}"))?;
    let capacity = usize::try_from(memory.metadata()?.len())?;
    let member = Member {
        rank: arguments.rank,
        addresses: arguments.addresses.clone(),
        interface: arguments.interface.clone(),
        queue_pairs: arguments.transport.queue_pairs,
        settings: arguments.transport.settings(),
        source_port: arguments.transport.source_port(),
        seed: arguments.transport.seed,
        limit: Duration::try_from_secs_f64(arguments.limit)?,
    };
    let mut own = AllReduce::open(member, capacity)?;
    print("ready")?;
    let mut requests = BufReader::new(File::from(std::io::stdin().as_fd().try_clone_to_owned()?));
    let (mut line, mut vector) = (String::new(), Vec::new());
    loop {
        if requests.buffer().is_empty() {
            let input = requests.get_ref().try_clone()?;
            if !own.serve(input.as_fd(), interrupt())? {
                return Err(AllReduceError::Interrupted.into());
            }
        }
        line.clear();
        if requests.read_line(&mut line)? == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        vector.resize(length(&line, capacity)?, 0);
        memory.read_exact_at(&mut vector, 0)?;
        own.sum(&mut vector, interrupt())?;
        memory.write_all_at(&vector, 0)?;
        print("done")?;
    }
}

/// Reads a request: a number of bytes that the memory has.
fn length(line: &str, capacity: usize) -> Result<usize, Box<dyn Error>> {
    let length = line.trim().parse().ok().filter(|length| *length <= capacity);
    let expected = "expected a number of bytes up to";
    length.ok_or_else(|| format!("a request is '{}': {expected} {capacity}", line.trim()).into())
}
