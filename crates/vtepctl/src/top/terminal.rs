//! The screen on a terminal: keys, signals, and the terminal as it was before.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use api::Address;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::keys::{Action, press};
use super::model::{Change, Screen, Update};
use super::{link, view};
use crate::output::Failure;

/// News that are taken in before the screen is drawn again.
const BATCH: usize = 1024;

/// Gives the terminal back as it was when it is dropped. If the program panics, ratatui's hook has
/// done so before the message is printed; a second time would move the cursor over the message.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            ratatui::restore();
        }
    }
}

/// Whether there is a terminal to draw on and to read keys from.
#[must_use]
pub(super) fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Shows the screen until the user or a signal ends it.
///
/// # Errors
/// When the terminal cannot be used.
pub(super) async fn show(address: &Address, interval: Duration) -> Result<(), Failure> {
    let signals = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt()];
    let [terminate, hangup, interrupt] = signals.map(signal);
    let signals = Signals { terminate: terminate?, hangup: hangup?, interrupt: interrupt? };
    let _restore = Restore;
    let terminal = ratatui::try_init()?;
    let (changes, requested) = unbounded_channel();
    let (updates, news) = unbounded_channel();
    // Both run in this task, so a panic in either ends the program.
    tokio::select! {
        ended = draw(terminal, news, changes, signals) => ended,
        () = link::follow(address, interval, requested, updates) => Ok(()),
    }
}

/// The signals that end the command.
struct Signals {
    terminate: Signal,
    hangup: Signal,
    interrupt: Signal,
}

impl Signals {
    async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Reads keys in a thread, because reading blocks. The thread ends with the process.
fn inputs() -> UnboundedReceiver<io::Result<Event>> {
    let (send, inputs) = unbounded_channel();
    std::thread::spawn(move || {
        loop {
            let input = event::read();
            let is_last = input.is_err();
            if send.send(input).is_err() || is_last {
                return;
            }
        }
    });
    inputs
}

/// Draws the screen after each key and after news.
async fn draw(
    mut terminal: DefaultTerminal,
    mut news: UnboundedReceiver<Update>,
    changes: UnboundedSender<Change>,
    mut signals: Signals,
) -> Result<(), Failure> {
    let (mut screen, mut inputs, mut batch) = (Screen::default(), inputs(), Vec::new());
    loop {
        terminal.draw(|frame| view::draw(&screen, frame.area(), frame.buffer_mut()))?;
        tokio::select! {
            input = inputs.recv() => {
                let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
                if let Event::Key(key) = input.ok_or_else(ended)?? {
                    match press(&mut screen, key) {
                        Some(Action::Quit) => return Ok(()),
                        // The other end lives as long as this one.
                        Some(Action::Change(change)) => drop(changes.send(change)),
                        None => {}
                    }
                }
            }
            _ = news.recv_many(&mut batch, BATCH) => {
                batch.drain(..).for_each(|update| screen.apply(update));
            }
            () = signals.any() => return Ok(()),
        }
    }
}
