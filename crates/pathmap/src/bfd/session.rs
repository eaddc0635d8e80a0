//! The state machine and the timers of a session (RFC 5880 sections 6.2 and 6.8).

use std::num::NonZeroU32;
use std::time::Duration;

use super::control::{Control, Diagnostic, State};
use crate::random::Random;

/// The shortest interval between packets while a session is not up (section 6.8.3).
pub const SLOW: Duration = Duration::from_secs(1);

/// Which end begins (section 6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It sends packets before it has received any.
    Active,
    /// It sends nothing before it has received a packet.
    Passive,
}

/// What one end wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timers {
    /// The shortest interval in which it sends and receives.
    pub interval: Duration,
    /// Missing packets after which the other end declares the session down. Not 0.
    pub multiplier: u8,
}

/// One end of a session. The caller looks it up by its discriminator.
#[derive(Debug, Clone)]
pub struct Session {
    role: Role,
    timers: Timers,
    my: NonZeroU32,
    /// The other end's discriminator; 0 if it is not known.
    your: u32,
    state: State,
    diagnostic: Diagnostic,
    remote_state: State,
    /// What the other end said: multiplier, desired interval of sending, required one of receiving.
    remote: (u8, Duration, Duration),
    remote_demand: bool,
    heard: Option<Duration>,
    sent: Option<Duration>,
    /// Packets sent.
    packets: usize,
    /// When the next periodic packet is sent.
    due: Duration,
    polling: bool,
    /// A packet is to be sent at once: the state has changed.
    changed: bool,
    /// A packet with the bit Final is to be sent at once.
    asked: bool,
}

impl Session {
    /// A session that is down. `my` is unique among the sessions of this VTEP.
    #[must_use]
    pub const fn new(role: Role, timers: Timers, my: NonZeroU32, now: Duration) -> Self {
        Self {
            role,
            timers,
            my,
            your: 0,
            state: State::Down,
            diagnostic: Diagnostic::NONE,
            remote_state: State::Down,
            // Section 6.8.1: one microsecond until the other end says something else.
            remote: (0, Duration::ZERO, Duration::from_micros(1)),
            remote_demand: false,
            heard: None,
            sent: None,
            packets: 0,
            due: now,
            polling: false,
            changed: false,
            asked: false,
        }
    }

    /// The state.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// This end's number of the session.
    #[must_use]
    pub const fn discriminator(&self) -> NonZeroU32 {
        self.my
    }

    /// The number of packets sent.
    #[must_use]
    pub const fn packets(&self) -> usize {
        self.packets
    }

    /// Whether it is down, and the other end has been silent for a detection time since.
    #[must_use]
    pub fn is_forgotten(&self) -> bool {
        self.heard.is_some() && self.your == 0 && self.state == State::Down
    }

    /// Why it left the state Up last.
    #[must_use]
    pub const fn diagnostic(&self) -> Diagnostic {
        self.diagnostic
    }

    /// When the last packet arrived.
    #[must_use]
    pub const fn heard(&self) -> Option<Duration> {
        self.heard
    }

    /// Stops the session, or lets it begin again.
    pub fn set_admin_down(&mut self, down: bool) {
        if down && self.state != State::AdminDown {
            self.go(State::AdminDown, Diagnostic::ADMIN_DOWN);
        } else if !down && self.state == State::AdminDown {
            self.go(State::Down, Diagnostic::NONE);
        }
    }

    fn go(&mut self, state: State, diagnostic: Diagnostic) {
        // A faster interval is announced by a poll sequence (section 6.8.3).
        self.polling = state == State::Up;
        (self.state, self.diagnostic, self.changed) = (state, diagnostic, true);
    }

    /// The shortest interval in which this end wants to send now.
    fn desired_min_tx(&self) -> Duration {
        if self.state == State::Up { self.timers.interval } else { self.timers.interval.max(SLOW) }
    }

    /// The interval in which this end sends, without jitter.
    #[must_use]
    pub fn transmit_interval(&self) -> Duration {
        self.desired_min_tx().max(self.remote.2)
    }

    /// The time without a packet after which the session is down. `None` before the first packet.
    #[must_use]
    pub fn detection_time(&self) -> Option<Duration> {
        let (multiplier, desired, _) = self.remote;
        self.heard.map(|_| self.timers.interval.max(desired) * u32::from(multiplier))
    }

    /// When the session goes down or, if it is down, when the other end's discriminator is
    /// forgotten. It is kept for one detection time, so that the other end can tell to which session
    /// the last packet belongs.
    fn expires(&self) -> Option<Duration> {
        let (heard, time) = (self.heard?, self.detection_time()?);
        match self.state {
            State::Init | State::Up => Some(heard + time),
            State::Down | State::AdminDown => (self.your != 0).then_some(heard + time * 2),
        }
    }

    fn sends(&self) -> bool {
        let is_silent = self.role == Role::Passive && self.your == 0;
        let is_up = self.state == State::Up && self.remote_state == State::Up;
        let on_demand = self.remote_demand && is_up && !self.polling;
        !is_silent && !self.remote.2.is_zero() && !on_demand
    }

    /// When [`Self::tick`] has something to do next.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        let due = self.sends().then_some(self.due);
        let at_once = (self.asked || self.changed && self.sends()).then_some(Duration::ZERO);
        [at_once, due, self.expires()].into_iter().flatten().min()
    }

    /// Takes a packet whose addresses and discriminator fit this session (section 6.8.6).
    pub fn receive(&mut self, control: &Control, now: Duration) {
        let before = self.transmit_interval();
        self.your = control.my.get();
        (self.remote_state, self.remote_demand) = (control.state, control.demand);
        let interval = |us: u32| Duration::from_micros(u64::from(us));
        self.remote = (
            control.multiplier,
            interval(control.desired_min_tx),
            interval(control.required_min_rx),
        );
        if control.is_final {
            self.polling = false;
        }
        self.asked |= control.poll;
        self.heard = Some(now);
        match (self.state, control.state) {
            (State::AdminDown, _) | (State::Down, State::AdminDown | State::Up) => {}
            (State::Down, State::Down) => self.go(State::Init, self.diagnostic),
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => {
                self.go(State::Up, Diagnostic::NONE);
            }
            (State::Init | State::Up, State::AdminDown) | (State::Up, State::Down) => {
                self.go(State::Down, Diagnostic::SIGNALED);
            }
            (State::Init, State::Down) | (State::Up, State::Init | State::Up) => {}
        }
        // A shorter interval counts at once.
        let after = self.transmit_interval();
        if let Some(sent) = self.sent.filter(|_| after < before) {
            self.due = self.due.min(sent + after);
        }
    }

    /// The packet to send now.
    pub fn tick(&mut self, now: Duration, random: &mut Random) -> Option<Control> {
        if self.expires().is_some_and(|at| at <= now) {
            match self.state {
                State::Init | State::Up => self.go(State::Down, Diagnostic::EXPIRED),
                State::Down | State::AdminDown => self.your = 0,
            }
        }
        let periodic = self.sends() && (self.due <= now || self.changed);
        if !periodic && !self.asked {
            return None;
        }
        let is_final = std::mem::take(&mut self.asked);
        self.changed = false;
        self.sent = Some(now);
        self.packets = self.packets.wrapping_add(1);
        self.due = now + self.jittered(random);
        Some(self.control(is_final))
    }

    /// The interval less 0 to 25 %, or 10 to 25 % with the multiplier 1 (section 6.8.7).
    fn jittered(&self, random: &mut Random) -> Duration {
        let least: usize = if self.timers.multiplier == 1 { 100 } else { 0 };
        let thousandths = (least + random.below(251 - least)) as u32;
        let interval = self.transmit_interval();
        interval - interval * thousandths / 1000
    }

    fn control(&self, is_final: bool) -> Control {
        let microseconds = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        Control {
            diagnostic: self.diagnostic,
            state: self.state,
            // Both bits must not be set in one packet (section 6.8.7).
            poll: self.polling && !is_final,
            is_final,
            independent: false,
            demand: false,
            multiplier: self.timers.multiplier,
            my: self.my,
            your: self.your,
            desired_min_tx: microseconds(self.desired_min_tx()),
            required_min_rx: microseconds(self.timers.interval),
            required_min_echo_rx: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const TIMERS: Timers = Timers { interval: Duration::from_millis(10), multiplier: 3 };

    fn session(role: Role, my: u32) -> Session {
        Session::new(role, TIMERS, NonZeroU32::new(my).unwrap(), Duration::ZERO)
    }

    /// Two ends and the packets between them.
    struct Ends {
        ends: [Session; 2],
        now: Duration,
        random: Random,
        /// Whether each end's packets arrive.
        passes: [bool; 2],
        /// When, by whom, and what.
        sent: Vec<(Duration, usize, Control)>,
    }

    impl Ends {
        fn new(roles: [Role; 2], seed: u64) -> Self {
            let ends = [session(roles[0], 17), session(roles[1], 34)];
            let random = Random::new(seed);
            Self { ends, now: Duration::ZERO, random, passes: [true; 2], sent: Vec::new() }
        }

        fn states(&self) -> [State; 2] {
            self.ends.each_ref().map(Session::state)
        }

        /// Goes on until `enough`, for ten seconds at most. Each packet takes 0.1 ms.
        fn run(&mut self, enough: impl Fn(&Self) -> bool) {
            let limit = self.now + Duration::from_secs(10);
            while !enough(self) && self.now < limit {
                for from in 0..2 {
                    while let Some(control) = self.ends[from].tick(self.now, &mut self.random) {
                        self.sent.push((self.now, from, control));
                        if self.passes[from] {
                            let control = Control::parse(&control.bytes()).unwrap();
                            self.ends[1 - from].receive(&control, self.now + MS / 10);
                        }
                    }
                }
                self.now += MS / 10;
            }
            assert!(enough(self), "{:?} after {:?}", self.states(), self.now);
        }

        fn run_for(&mut self, time: Duration) {
            let until = self.now + time;
            self.run(|ends| ends.now >= until);
        }

        fn up(seed: u64) -> Self {
            let mut ends = Self::new([Role::Active, Role::Passive], seed);
            ends.run(|ends| ends.states() == [State::Up; 2]);
            ends.run_for(MS * 100);
            ends.sent.clear();
            ends
        }
    }

    /// Section 6.2: Down, Init, Up at both ends.
    #[test]
    fn three_packets_bring_a_session_up() {
        for passive in [Role::Passive, Role::Active] {
            let mut ends = Ends::new([Role::Active, passive], 1);
            ends.run(|ends| ends.states() == [State::Up; 2]);
            assert!(ends.now < SLOW);
        }
        let mut ends = Ends::new([Role::Active, Role::Passive], 1);
        ends.run(|ends| ends.states() == [State::Up; 2]);
        let chart: Vec<_> = ends
            .sent
            .iter()
            .take(3)
            .map(|(_, from, sent)| (*from, sent.state, sent.your))
            .collect();
        assert_eq!(chart, [(0, State::Down, 0), (1, State::Init, 17), (0, State::Up, 34)]);
    }

    #[test]
    fn two_passive_ends_are_silent_and_an_active_end_is_slow_while_nobody_answers() {
        let mut ends = Ends::new([Role::Passive; 2], 2);
        ends.run_for(SLOW * 5);
        assert!(ends.sent.is_empty());
        let mut ends = Ends::new([Role::Active, Role::Passive], 2);
        ends.passes = [false; 2];
        ends.run_for(SLOW * 9);
        assert!((9..=13).contains(&ends.sent.len()), "{}", ends.sent.len());
        assert!(ends.sent.iter().all(|(_, _, sent)| sent.desired_min_tx == 1_000_000));
    }

    /// Section 6.8.3: the fast interval is announced by a poll sequence, which the final bit ends.
    #[test]
    fn a_poll_sequence_announces_the_interval_and_ends() {
        let mut ends = Ends::new([Role::Active, Role::Passive], 3);
        ends.run(|ends| ends.states() == [State::Up; 2]);
        ends.run_for(MS * 100);
        assert!(ends.sent.iter().any(|(_, _, sent)| sent.poll && sent.desired_min_tx == 10_000));
        assert!(ends.sent.iter().any(|(_, _, sent)| sent.is_final));
        assert!(ends.sent.iter().all(|(_, _, sent)| !(sent.poll && sent.is_final)));
        assert!(ends.sent.iter().rev().take(8).all(|(_, _, sent)| !sent.poll && !sent.is_final));
    }

    /// Section 6.8.7: 75 to 100 % of the greater interval.
    #[test]
    fn the_interval_is_negotiated_and_has_jitter() {
        let mut ends = Ends::up(4);
        ends.ends[1].timers.interval = MS * 40;
        ends.run_for(MS * 200);
        ends.sent.clear();
        ends.run_for(SLOW);
        let times = ends.sent.iter().filter(|(_, from, _)| *from == 0).map(|(at, ..)| *at);
        let times: Vec<Duration> = times.collect();
        let gaps: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.len() > 20);
        assert!(gaps.iter().all(|gap| (MS * 30..=MS * 40 + MS / 10).contains(gap)), "{gaps:?}");
        assert!(gaps.iter().max() > gaps.iter().min());
        assert_eq!(ends.ends[0].detection_time(), Some(MS * 120));
    }

    #[test]
    fn a_path_that_is_dead_in_one_direction_takes_down_both_ends() {
        for seed in 0..50 {
            let mut ends = Ends::up(seed);
            let (died, until) = (ends.now, |ends: &Ends| ends.states() == [State::Down; 2]);
            ends.passes = [false, true];
            ends.run(until);
            let took = ends.now - died;
            assert!(took > MS * 19 && took < MS * 31, "{took:?}");
            let codes = ends.ends.each_ref().map(Session::diagnostic);
            assert_eq!(codes, [Diagnostic::SIGNALED, Diagnostic::EXPIRED]);
            // The packet that says so names the session.
            let said =
                ends.sent.iter().find(|(_, from, sent)| *from == 1 && sent.state == State::Down);
            assert_eq!(said.unwrap().2.your, 17);
            ends.passes = [true; 2];
            ends.run(|ends| ends.states() == [State::Up; 2]);
        }
    }

    #[test]
    fn a_session_whose_other_end_is_gone_begins_again() {
        let mut ends = Ends::up(6);
        ends.passes = [false; 2];
        ends.run(|ends| ends.states() == [State::Down; 2]);
        ends.run_for(MS * 100);
        assert_eq!(ends.ends.each_ref().map(|end| end.your), [0; 2]);
        // The passive end is silent again.
        ends.sent.clear();
        ends.run_for(SLOW * 3);
        assert!(ends.sent.iter().all(|(_, from, _)| *from == 0) && !ends.sent.is_empty());
        ends.ends[1] = session(Role::Passive, 51);
        ends.passes = [true; 2];
        ends.run(|ends| ends.states() == [State::Up; 2]);
    }

    #[test]
    fn an_administrator_stops_a_session_at_both_ends() {
        let mut ends = Ends::up(7);
        ends.ends[0].set_admin_down(true);
        ends.run(|ends| ends.states() == [State::AdminDown, State::Down]);
        assert_eq!(ends.ends[1].diagnostic(), Diagnostic::SIGNALED);
        ends.ends[0].set_admin_down(false);
        ends.run(|ends| ends.states() == [State::Up; 2]);
    }

    /// All pairs of states of section 6.8.6.
    #[test]
    fn the_state_machine_is_that_of_the_rfc() {
        use State::{AdminDown, Down, Init, Up};
        let table = [
            (AdminDown, [AdminDown, AdminDown, AdminDown, AdminDown]),
            (Down, [Down, Init, Up, Down]),
            (Init, [Down, Init, Up, Up]),
            (Up, [Down, Down, Up, Up]),
        ];
        for (state, after) in table {
            for (received, after) in [AdminDown, Down, Init, Up].into_iter().zip(after) {
                let mut end = session(Role::Active, 1);
                end.state = state;
                let mut control = session(Role::Active, 2).control(false);
                (control.state, control.your) = (received, 1);
                end.receive(&control, MS);
                assert_eq!(end.state(), after, "{received:?} in {state:?}");
            }
        }
    }
}
