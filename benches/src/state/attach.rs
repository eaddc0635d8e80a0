//! How long vtepd takes to take many VNIs over, and to give them back.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lab::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::ingest::batch;
use super::row;
use crate::rows::{Better, Row};

/// Measures with the vtepd that was built beside this program.
///
/// # Errors
/// When there is none, or it does not take over.
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
    for hook in ["tcx", "clsact"] {
        let [attach, detach] = one(&namespace, hook, vnis)?;
        let row = |what: &str, time: Duration, target| {
            row(&format!("{hook}: {vnis} VNIs {what}"), "s", time.as_secs_f64(), target, Better::Lower)
        };
        let target = Some(10.0);
        rows.extend([row("taken over", attach, target), row("given back", detach, target)]);
    }
    Ok(rows)
}

/// From the start to the log's word that so many are taken, and from SIGTERM to the end.
fn one(namespace: &Namespace, hook: &str, vnis: u32) -> Result<[Duration; 2], Box<dyn Error>> {
    let program = std::env::current_exe()?.with_file_name("vtepd");
    let start = Instant::now();
    let spawn = || {
        let mut command = Command::new(&program);
        command.args(["--hook", hook, "--no-fpm", "--metrics-listen", "127.0.0.1:0"]);
        command.env_remove("RUST_LOG").stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
    };
    let mut child = namespace.enter(spawn)?.map_err(|error| format!("{}: {error}", program.display()))?;
    let taken = until_taken(&mut child, vnis);
    let attached = start.elapsed();
    let start = Instant::now();
    kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGTERM)?;
    child.wait()?;
    taken?;
    Ok([attached, start.elapsed()])
}

fn until_taken(child: &mut Child, vnis: u32) -> Result<(), Box<dyn Error>> {
    let stderr = child.stderr.take().ok_or("vtepd has no log")?;
    let mut lines = BufReader::new(stderr).lines();
    let (word, mut last) = (format!("taken={vnis} "), String::new());
    for line in lines.by_ref() {
        last = line?;
        if last.contains(&word) {
            // What it says later goes nowhere, and must not stop it.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok(());
        }
    }
    Err(format!("vtepd ended before it had taken {vnis} VNIs: {last}").into())
}
