//! The state of the screen: figures, events, the selected VNI, and what the user is asked.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use api::v1;

use super::sample::{Figures, Sample, VniRow};

/// Number of events that are kept.
pub(super) const EVENTS: usize = 500;
/// Rates over a shorter time would jump: the sample before the last is used instead.
const SHORTEST: Duration = Duration::from_millis(150);

/// The policies that a key can set.
pub(super) const POLICIES: [&str; 4] = ["five-tuple", "qp-hash", "qp-bins", "qp-pin"];

/// News for the screen.
#[derive(Debug)]
pub(super) enum Update {
    /// Answers of vtepd.
    Sample(Box<Sample>),
    /// An event of vtepd.
    Event(Box<v1::Event>),
    /// There is no connection to vtepd, with the reason.
    Disconnected(String),
    /// A change is in force.
    Changed(String),
    /// A change was refused, with the reason.
    Refused(String),
}

/// A change of a VNI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Its policy.
    Policy {
        /// The VNI.
        vni: u32,
        /// One of [`POLICIES`].
        policy: &'static str,
    },
    /// Gives it back to the kernel.
    Detach {
        /// The VNI.
        vni: u32,
    },
    /// Takes it over.
    Attach {
        /// The VNI.
        vni: u32,
    },
}

/// What the keys mean at present.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// The screen without a dialog.
    #[default]
    Normal,
    /// The keys are shown.
    Help,
    /// A policy is chosen.
    Policy {
        /// For this VNI.
        vni: u32,
        /// Index in [`POLICIES`].
        selected: usize,
    },
    /// Whether to detach is asked.
    Detach {
        /// The VNI.
        vni: u32,
        /// Whether nobody forwards it then.
        standalone: bool,
    },
}

/// The last answer to a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    /// A sentence.
    pub text: String,
    /// Whether it says why something was not done.
    pub is_error: bool,
}

/// The state of the screen.
#[derive(Debug, Default)]
pub(super) struct Screen {
    /// The figures of the last sample; absent before the first.
    pub figures: Option<Figures>,
    /// The last events, oldest first; at most [`EVENTS`].
    pub events: VecDeque<v1::Event>,
    /// Why there is no connection; absent while there is one.
    pub disconnected: Option<String>,
    /// The answer to the last change, until the next key.
    pub message: Option<Message>,
    /// What the keys mean.
    pub mode: Mode,
    /// VNI and netdev of the selected row.
    selected: Option<(u32, String)>,
    last: Option<Sample>,
    previous: Option<Sample>,
}

impl Screen {
    /// Takes news in.
    pub(super) fn apply(&mut self, update: Update) {
        match update {
            Update::Sample(sample) => self.sample(*sample),
            Update::Event(event) => self.event(*event),
            Update::Disconnected(reason) => self.disconnected = Some(reason),
            Update::Changed(text) => self.message = Some(Message { text, is_error: false }),
            Update::Refused(text) => self.message = Some(Message { text, is_error: true }),
        }
    }

    fn sample(&mut self, sample: Sample) {
        self.disconnected = None;
        let at = |last: &Sample| -> Instant { last.at };
        let since = self.last.as_ref().map(at);
        if since.is_some_and(|since| sample.at.saturating_duration_since(since) >= SHORTEST) {
            self.previous = self.last.take();
        }
        self.figures = Some(Figures::of(self.previous.as_ref(), &sample));
        self.last = Some(sample);
        if self.selected_index().is_none() {
            self.select(0);
        }
    }

    fn event(&mut self, event: v1::Event) {
        while self.events.len() >= EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// The VNIs of the last sample.
    #[must_use]
    pub(super) fn vnis(&self) -> &[VniRow] {
        self.figures.as_ref().map_or(&[], |figures| &figures.vnis)
    }

    /// Index of the selected VNI, if it still exists.
    #[must_use]
    pub(super) fn selected_index(&self) -> Option<usize> {
        let (vni, netdev) = self.selected.as_ref()?;
        self.vnis().iter().position(|row| row.vni == *vni && row.netdev == *netdev)
    }

    /// The selected VNI, if it still exists.
    #[must_use]
    pub(super) fn selected(&self) -> Option<&VniRow> {
        self.vnis().get(self.selected_index()?)
    }

    /// Selects the VNI with this index, or the last one.
    pub(super) fn select(&mut self, index: usize) {
        let rows = self.vnis();
        let row = rows.get(index).or(rows.last());
        self.selected = row.map(|row| (row.vni, row.netdev.clone()));
    }

    /// Shows why a key has no effect.
    pub(super) fn refuse(&mut self, text: impl Into<String>) {
        self.message = Some(Message { text: text.into(), is_error: true });
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{sample, vni};
    use super::*;

    fn event(sequence: u64) -> Update {
        Update::Event(Box::new(v1::Event { sequence, ..v1::Event::default() }))
    }

    #[test]
    fn the_oldest_events_are_forgotten() {
        let mut screen = Screen::default();
        (1..=EVENTS as u64 + 7).for_each(|sequence| screen.apply(event(sequence)));
        assert_eq!(screen.events.len(), EVENTS);
        assert_eq!(screen.events.front().unwrap().sequence, 8);
        assert_eq!(screen.events.back().unwrap().sequence, EVENTS as u64 + 7);
    }

    /// A sample right after a change does not make rates of a few milliseconds.
    #[test]
    fn a_sample_soon_after_another_is_compared_with_the_one_before() {
        let (start, mut screen) = (Instant::now(), Screen::default());
        let mut rate_after = |milliseconds: u64, frames| {
            let at = start + Duration::from_millis(milliseconds);
            screen.apply(Update::Sample(Box::new(sample(at, frames))));
            screen.figures.as_ref().unwrap().next_hops[0].rate.map(|rate| rate.frames_per_second)
        };
        assert_eq!(rate_after(0, 0), None);
        assert_eq!(rate_after(1000, 1000), Some(1000.0));
        assert_eq!(rate_after(1100, 3200), Some(3200.0 / 1.1));
        assert_eq!(rate_after(2000, 4000), Some(800.0 / 0.9));
    }

    #[test]
    fn the_selected_vni_stays_selected_as_others_come_and_go() {
        let mut screen = Screen::default();
        let mut show = |vnis: &[u32]| {
            let mut sample = sample(Instant::now(), 0);
            sample.status.taken = vnis.iter().map(|number| vni(*number, "qp-hash")).collect();
            screen.apply(Update::Sample(Box::new(sample)));
            if vnis.len() == 2 {
                screen.select(1);
            }
            screen.selected().map(|row| row.vni)
        };
        assert_eq!(show(&[10]), Some(10), "the first");
        assert_eq!(show(&[10, 20]), Some(20));
        assert_eq!(show(&[5, 7, 10, 20]), Some(20));
        assert_eq!(show(&[5, 7, 10]), Some(5), "the first again");
        assert_eq!(show(&[]), None);
    }

    #[test]
    fn a_lost_connection_is_said_until_there_is_an_answer() {
        let mut screen = Screen::default();
        screen.apply(Update::Disconnected("no process listens".to_owned()));
        assert_eq!(screen.disconnected.as_deref(), Some("no process listens"));
        screen.apply(Update::Sample(Box::new(sample(Instant::now(), 0))));
        assert_eq!(screen.disconnected, None);
    }
}
