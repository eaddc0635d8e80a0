//! `lab web`: the live page of a fabric.

use std::error::Error;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fabric::Fabric;
use serde_json::{Value, json};
use study::RunError;
use study::run::Event;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::oneshot;
use web::{Access, Server, Stage};

use super::open::open;
use crate::fabric_arguments::Web;
use crate::output::{Outcome, Progress, interrupted, note, print};

/// The interval at which a signal is noticed, if the system tells of none.
const POLL: Duration = Duration::from_millis(50);
/// The time in which open pages learn how an experiment ended: three changes.
const LAST: Duration = Duration::from_millis(300);

pub(super) fn run(arguments: &Web) -> Outcome {
    match &arguments.replay {
        Some(path) => replay(path, arguments),
        None => serve(&open(arguments.name.as_ref())?, arguments.access(), arguments.port),
    }
}

/// Serves the page of a fabric until a signal.
pub(super) fn serve(fabric: &Fabric, access: Access, port: u16) -> Outcome {
    let program = std::env::current_exe()?;
    let described = lab::web::describe(fabric, program)?;
    let runtime = runtime()?;
    let server = runtime.block_on(Server::bind(described, access, port))?;
    until_signal(&runtime, server)
}

/// Shows a file of the page, or a directory of results.
fn replay(path: &Path, arguments: &Web) -> Outcome {
    let unreadable = |error: &dyn Display| format!("{}: {error}", path.display());
    let name = arguments.fabric.as_deref();
    let file = if path.is_dir() {
        let progress = Progress::new();
        let replay = lab::web::replay(path, name, &|text| progress.report(text))?;
        drop(progress);
        if !replay.others.is_empty() {
            let others = replay.others.join(", ");
            note(format_args!("results of one fabric are shown; --fabric shows those of {others}"));
        }
        replay.file
    } else {
        let text = experiment::input::read_text(path).map_err(|error| unreadable(&error))?;
        serde_json::from_str(&text).map_err(|error| unreadable(&error))?
    };
    let runtime = runtime()?;
    let server = runtime
        .block_on(Server::replay(file, arguments.port))
        .map_err(|error| unreadable(&error))?;
    until_signal(&runtime, server)
}

/// The page of an experiment, which a thread of its own serves.
#[derive(Debug)]
pub(super) struct RunPage {
    stage: Stage,
    program: PathBuf,
    /// The experiment as it is shown.
    shown: Mutex<Value>,
    /// Dropping it ends the server.
    running: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl RunPage {
    /// Serves the page, and prints its address on standard error.
    pub(super) fn start() -> Result<Self, Box<dyn Error>> {
        let program = std::env::current_exe()?;
        let runtime = runtime()?;
        let server = runtime.block_on(Server::bind(Default::default(), Access::ReadOnly, 0))?;
        let (stage, (running, ended)) = (server.stage(), oneshot::channel());
        note(format_args!("live page: {}", server.address()));
        let serve = move || {
            let end = async {
                // It is never sent, only dropped.
                let _ = ended.await;
            };
            if let Err(error) = runtime.block_on(server.run(end)) {
                note(format_args!("the live page: {error}"));
            }
        };
        let thread = thread::Builder::new().name("web".to_owned()).spawn(serve)?;
        Ok(Self { stage, program, shown: Mutex::default(), running, thread })
    }

    pub(super) fn progress(&self, text: &str) {
        self.stage.progress(text);
    }

    /// Shows what happens. A fabric that cannot be described is not shown: the runs count more.
    pub(super) fn event(&self, event: &Event<'_>) {
        match event {
            Event::Fabric(fabric) => match lab::web::describe(fabric, self.program.clone()) {
                Ok(described) => self.stage.fabric(described),
                Err(error) => note(format_args!("the live page: {error}")),
            },
            Event::Run { experiment, runs, left, key } => {
                let shown = lab::web::experiment(experiment, runs, Some((*left, key)));
                self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&shown);
                self.stage.experiment(shown);
                // How far it is says the same.
                self.stage.progress("");
            }
        }
    }

    /// Tells open pages how the experiment ended, and ends the server.
    pub(super) fn end(self, out: &Path, outcome: &Result<study::run::Outcome, RunError>) {
        let results = study::run::load(out).ok();
        let shown = results.map(|of| lab::web::experiment(&of.experiment, &of.runs, None));
        let kept = self.shown.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut shown = shown.unwrap_or(kept);
        let text = match outcome {
            Ok(outcome) => format!("Report: {}", outcome.report.display()),
            Err(error) => error.to_string(),
        };
        if let Some(shown) = shown.as_object_mut() {
            shown.insert("ended".to_owned(), json!({"ok": outcome.is_ok(), "text": text}));
        }
        self.stage.experiment(shown);
        thread::sleep(LAST);
        drop(self.running);
        // A thread that has panicked has said so.
        let _ = self.thread.join();
    }
}

/// The runtime of a server.
pub(super) fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

fn until_signal(runtime: &Runtime, server: Server) -> Outcome {
    print(server.address())?;
    runtime.block_on(server.run(signal()))?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for a signal that ends the program, without looking for it again and again: a server that
/// nobody asks does nothing.
pub(super) async fn signal() {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = kinds.map(unix::signal) else {
        while !interrupted() {
            tokio::time::sleep(POLL).await;
        }
        return;
    };
    // One that came before is noted there.
    if !interrupted() {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
