//! Changes circuits while they run. `lab wan` listens on a socket with an abstract name, which
//! belongs to its network namespace. A message is a JSON list of [`Change`]s. The answer is the list
//! of what they replaced, or an error as a JSON text. The answer to the JSON text `counts` is a
//! [`Report`]. Both ends believe only root and their own user. Others get no answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::socket::UnixAddr;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::schedule::Impairment;
use super::{Direction, POLL_INTERVAL, Report, Wan};
use fabric::abstract_socket::{Datagrams, LONGEST, Message, Peer};
use fabric::netns::{Namespace, NetnsError};

/// The abstract name of the socket.
const NAME: &str = "lab-wan";
/// The message that asks for the counters.
const COUNTS: &[u8] = b"\"counts\"";
/// The most messages that are read before frames are served again.
const MESSAGES: usize = 16;
/// How long `lab wan` may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// New properties of one direction of a circuit, or of all. What is missing stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Change {
    /// The interface at which the frames arrive; `None` for all directions of all circuits.
    pub from: Option<String>,
    /// The delay in nanoseconds.
    pub delay: Option<u64>,
    /// The maximum deviation from the delay in nanoseconds. It is lowered to the delay.
    pub jitter: Option<u64>,
    /// The share of the frames that is lost, 0 to 1.
    pub loss: Option<f64>,
    /// The rate in bits per second; 0 for no limit.
    pub rate: Option<u64>,
    /// The queue of the rate limit in bytes.
    pub queue: Option<u64>,
    /// The time in nanoseconds after which the earlier properties come back; `None` for good.
    pub time: Option<u64>,
}

impl Change {
    /// Those of these properties that `change` changes.
    pub fn named_by(&self, change: &Self) -> Self {
        self.part(change, true)
    }

    /// Those of these properties that `change` does not change.
    pub(super) fn not_named_by(&self, change: &Self) -> Self {
        self.part(change, false)
    }

    /// A shorter delay may lower the jitter, so a change of the delay changes both.
    fn part(&self, change: &Self, named: bool) -> Self {
        let has_jitter = change.jitter.is_some() || change.delay.is_some();
        Self {
            from: self.from.clone(),
            delay: self.delay.filter(|_| change.delay.is_some() == named),
            jitter: self.jitter.filter(|_| has_jitter == named),
            loss: self.loss.filter(|_| change.loss.is_some() == named),
            rate: self.rate.filter(|_| change.rate.is_some() == named),
            queue: self.queue.filter(|_| change.queue.is_some() == named),
            time: None,
        }
    }

    /// These properties, and those of another change that are missing.
    pub(super) fn or(self, other: &Self) -> Self {
        Self {
            from: self.from.or_else(|| other.from.clone()),
            delay: self.delay.or(other.delay),
            jitter: self.jitter.or(other.jitter),
            loss: self.loss.or(other.loss),
            rate: self.rate.or(other.rate),
            queue: self.queue.or(other.queue),
            time: self.time.or(other.time),
        }
    }

    /// Whether it changes nothing.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self { from: self.from.clone(), ..Self::default() }
    }

    /// All properties of a direction.
    pub(super) fn of(from: &str, impairment: &Impairment) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            from: Some(from.to_owned()),
            delay: Some(nanoseconds(impairment.delay)),
            jitter: Some(nanoseconds(impairment.jitter)),
            loss: Some(impairment.loss),
            rate: Some(impairment.rate.unwrap_or_default()),
            queue: Some(impairment.queue),
            time: None,
        }
    }

    /// The properties after the change.
    pub(super) fn apply(&self, before: &Impairment) -> Impairment {
        let delay = self.delay.map_or(before.delay, Duration::from_nanos);
        let jitter = self.jitter.map_or(before.jitter, Duration::from_nanos);
        Impairment {
            delay,
            jitter: jitter.min(delay),
            loss: self.loss.unwrap_or(before.loss).clamp(0.0, 1.0),
            rate: self.rate.map_or(before.rate, |rate| (rate > 0).then_some(rate)),
            queue: self.queue.unwrap_or(before.queue),
            ecn: before.ecn,
        }
    }
}

/// The circuits of a namespace could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The namespace cannot be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// `lab wan` does not answer.
    #[error("no 'lab wan' answers in {namespace}: is it running?")]
    NoAnswer {
        /// The namespace.
        namespace: String,
        /// The cause.
        source: io::Error,
    },
    /// Another user's process answers.
    #[error("@{NAME} in {namespace} belongs to {peer}, not to 'lab wan': end that process")]
    Foreign {
        /// The namespace.
        namespace: String,
        /// The process.
        peer: String,
    },
    /// `lab wan` refused the change.
    #[error("lab wan: {0}")]
    Refused(String),
}

/// Changes circuits of the `lab wan` that runs in a namespace. Returns what undoes it. A change
/// without properties changes nothing; what undoes it has the properties.
///
/// # Errors
/// [`ChangeError`]. Nothing has changed then.
pub fn change(namespace: &Namespace, changes: &[Change]) -> Result<Vec<Change>, ChangeError> {
    // Changes always have a form in JSON.
    exchange(namespace, &serde_json::to_vec(changes).unwrap_or_default())
}

/// The counters of the circuits of the `lab wan` that runs in a namespace, since its start.
///
/// # Errors
/// [`ChangeError`].
pub fn counts(namespace: &Namespace) -> Result<Report, ChangeError> {
    exchange(namespace, COUNTS)
}

/// Sends a message to `lab wan`, and reads its answer.
fn exchange<T: DeserializeOwned>(namespace: &Namespace, message: &[u8]) -> Result<T, ChangeError> {
    let name = || namespace.name().to_owned();
    let foreign = |peer: Peer| ChangeError::Foreign { namespace: name(), peer: peer.to_string() };
    let (answer, holder) = namespace.enter(|| match ask(message) {
        Ok(answer) => (Ok(answer), None),
        Err(error) => (Err(error), Peer::holding(NAME)),
    })?;
    if let Some(peer) = holder.filter(|peer| !peer.is_trusted()) {
        return Err(foreign(peer));
    }
    let answer = answer.map_err(|source| ChangeError::NoAnswer { namespace: name(), source })?;
    if !answer.from.is_trusted() {
        return Err(foreign(answer.from));
    }
    serde_json::from_slice(&answer.bytes).map_err(|_| {
        let text = String::from_utf8_lossy(&answer.bytes);
        ChangeError::Refused(text.trim_matches('"').to_owned())
    })
}

fn ask(message: &[u8]) -> io::Result<Message> {
    let socket = Datagrams::open()?;
    socket.set_timeout(TIMEOUT)?;
    socket.send(message, &UnixAddr::new_abstract(NAME.as_bytes())?)?;
    socket.receive(LONGEST)
}

impl Wan {
    pub(super) fn set_poll_interval(&mut self) {
        let impairments = self.directions.iter().map(|direction| direction.schedule.impairment());
        let least = impairments.map(|of| of.delay.saturating_sub(of.jitter)).min();
        self.poll_interval = POLL_INTERVAL.min(least.unwrap_or_default() / 4);
    }

    /// Ends the changes whose time has passed.
    pub(super) fn end_changes(&mut self) {
        let now = self.start.elapsed();
        let ended = self.temporary.ended(now);
        for (index, undo) in &ended {
            let Some(direction) = self.directions.get_mut(*index) else { continue };
            direction.set(now, undo.apply(direction.schedule.impairment()));
        }
        if !ended.is_empty() {
            self.set_poll_interval();
        }
    }

    /// Changes directions, and returns what they were. Frames that wait for the rate limiter get a
    /// new rate; others in transit keep their time.
    ///
    /// # Errors
    /// A message if no circuit has such an interface. Nothing has changed then.
    pub fn change(&mut self, changes: &[Change]) -> Result<Vec<Change>, String> {
        let now = self.start.elapsed();
        let Self { ports, directions, temporary, .. } = self;
        let name = |direction: &Direction| ports.get(direction.from).map(|port| &port.name);
        for from in changes.iter().filter_map(|change| change.from.as_ref()) {
            if !directions.iter().any(|direction| name(direction) == Some(from)) {
                let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
                return Err(format!("no circuit at '{from}': expected {}", names.join(", ")));
            }
        }
        let mut before = Vec::new();
        for change in changes {
            for (index, direction) in directions.iter_mut().enumerate() {
                let Some(from) = name(direction) else { continue };
                if change.from.as_ref().is_some_and(|wanted| wanted != from) {
                    continue;
                }
                let impairment = direction.schedule.impairment();
                let current = Change::of(from, impairment);
                before.push(temporary.changed(now, index, change, &current));
                let after = change.apply(impairment);
                // A question alone must not draw a new delay.
                if after != *impairment {
                    direction.set(now, after);
                }
            }
        }
        self.set_poll_interval();
        // The last change of a direction is undone first.
        before.reverse();
        Ok(before)
    }

    /// The answer to a message of a process that may make changes, in JSON.
    fn answer(&mut self, message: &[u8]) -> Vec<u8> {
        let answer = if message == COUNTS {
            serde_json::to_vec(&self.report())
        } else {
            let changes = serde_json::from_slice::<Vec<Change>>(message);
            let changes = changes.map_err(|error| error.to_string());
            match changes.and_then(|changes| self.change(&changes)) {
                Ok(before) => serde_json::to_vec(&before),
                Err(error) => serde_json::to_vec(&error),
            }
        };
        answer.unwrap_or_default()
    }

    /// The messages so far of users that may not change circuits.
    #[must_use]
    pub const fn strangers(&self) -> u64 {
        self.strangers
    }

    /// Follows messages of other processes, [`MESSAGES`] at most: frames do not wait for those who
    /// send without end.
    pub(super) fn follow(&mut self) {
        for _ in 0..MESSAGES {
            let Some(message) = self.control.as_ref().and_then(Control::receive) else { return };
            if !message.from.is_trusted() {
                self.strangers += 1;
                continue;
            }
            let answer = self.answer(&message.bytes);
            if let (Some(control), Some(address)) = (&self.control, &message.address) {
                control.answer(address, &answer);
            }
        }
    }
}

/// The socket of `lab wan`.
#[derive(Debug)]
pub(super) struct Control(Datagrams);

impl Control {
    /// Opens the socket in the namespace of the calling thread. `None` if another `lab wan` has it.
    ///
    /// # Errors
    /// If a process of another user has its name.
    pub(super) fn open() -> io::Result<Option<Self>> {
        match Datagrams::bound(NAME) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match Peer::holding(NAME) {
                Some(peer) if !peer.is_trusted() => {
                    let text = format!("@{NAME} belongs to {peer}: end that process");
                    Err(io::Error::new(error.kind(), text))
                }
                _ => Ok(None),
            },
            opened => Ok(Some(Self(opened?))),
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Takes a message, if there is one.
    pub(super) fn receive(&self) -> Option<Message> {
        self.0.receive(LONGEST).ok()
    }

    /// Answers a message. A sender that is gone gets none.
    pub(super) fn answer(&self, to: &UnixAddr, answer: &[u8]) {
        let _ = self.0.send(answer, to);
    }
}
