//! The vtepd that was built beside this program, as a child in a namespace.

use std::error::Error;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lab::Namespace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A running vtepd. Dropped, it is killed.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    started: Instant,
}

impl Daemon {
    /// Starts it. Its metrics are nowhere that is known.
    ///
    /// # Errors
    /// When there is none beside this program.
    pub fn start(namespace: &Namespace, arguments: &[&str]) -> Result<Self, Box<dyn Error>> {
        let program = std::env::current_exe()?.with_file_name("vtepd");
        let started = Instant::now();
        let spawn = || {
            let mut command = Command::new(&program);
            command.args(["--metrics-listen", "127.0.0.1:0"]).args(arguments);
            command.env_remove("RUST_LOG").stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
        };
        let child = namespace.enter(spawn)?.map_err(|error| format!("{}: {error}", program.display()))?;
        Ok(Self { child, started })
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the log's word that so many VNIs are taken over. Returns the time since the start.
    ///
    /// # Errors
    /// When it ends before.
    pub fn until_taken(&mut self, vnis: u32) -> Result<Duration, Box<dyn Error>> {
        let stderr = self.child.stderr.take().ok_or("vtepd has no log")?;
        let mut lines = BufReader::new(stderr).lines();
        let (word, mut last) = (format!("taken={vnis} "), String::new());
        for line in lines.by_ref() {
            last = line?;
            if last.contains(&word) {
                let time = self.started.elapsed();
                // What it says later goes nowhere, and must not stop it.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(time);
            }
        }
        Err(format!("vtepd ended before it had taken {vnis} VNIs: {last}").into())
    }

    /// Ends it. Returns how long that takes.
    ///
    /// # Errors
    /// When it cannot be told to.
    pub fn stop(mut self) -> Result<Duration, Box<dyn Error>> {
        let start = Instant::now();
        kill(Pid::from_raw(i32::try_from(self.child.id())?), Signal::SIGTERM)?;
        self.child.wait()?;
        Ok(start.elapsed())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // One that has ended already needs nothing more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
