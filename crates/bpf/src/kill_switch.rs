//! The kill switch: the map of programs that all attached programs call through.
//!
//! The kernel empties the map when its last descriptor is closed, so also when the process dies.
//! The map therefore has exactly one descriptor, which the threads of this process share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use aya::maps::{MapData, ProgramArray};
use aya::programs::ProgramFd;

use crate::error::SteeringError;
use crate::maps::absent;

/// How long [`KillSwitch::suspend`] waits for another thread that fills or empties the map.
const BUSY: Duration = Duration::from_millis(20);

/// Whether frames are redirected, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not engaged yet, or released again.
    Released,
    /// The map is filled, and frames are redirected.
    Engaged,
    /// Emptied because the control task hangs; [`KillSwitch::resume`] fills it again.
    Suspended,
}

/// The kill switch map and the programs that fill it. A clone refers to the same map.
#[derive(Debug, Clone)]
pub struct KillSwitch(Arc<Mutex<Inner>>);

struct Inner {
    map: ProgramArray<MapData>,
    /// Index and program, in the order in which the map is filled.
    programs: Vec<(u32, ProgramFd)>,
    /// The indices that are cleared, in this order.
    emptied: &'static [u32],
    state: State,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Inner {
    fn fill(&mut self) -> Result<(), SteeringError> {
        for (place, program) in &self.programs {
            self.map
                .set(*place, program, 0)
                .map_err(|error| SteeringError::Map("kill_switch", error))?;
        }
        self.state = State::Engaged;
        Ok(())
    }

    fn empty(&mut self, state: State) -> Result<(), SteeringError> {
        for place in self.emptied {
            self.map
                .clear_index(place)
                .or_else(absent)
                .map_err(|error| SteeringError::Map("kill_switch", error))?;
        }
        self.state = state;
        Ok(())
    }
}

impl KillSwitch {
    pub(crate) fn new(
        map: ProgramArray<MapData>,
        programs: Vec<(u32, ProgramFd)>,
        emptied: &'static [u32],
    ) -> Self {
        Self(Arc::new(Mutex::new(Inner { map, programs, emptied, state: State::Released })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn engage(&self) -> Result<(), SteeringError> {
        let mut inner = self.inner();
        // Only the thread that suspended it resumes it.
        if inner.state == State::Suspended { Ok(()) } else { inner.fill() }
    }

    pub(crate) fn release(&self) -> Result<(), SteeringError> {
        self.inner().empty(State::Released)
    }

    /// Whether the map is filled.
    #[must_use]
    pub fn is_engaged(&self) -> bool {
        self.inner().state == State::Engaged
    }

    /// Whether [`Self::suspend`] emptied the map and [`Self::resume`] has not filled it again.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.inner().state == State::Suspended
    }

    /// Empties the map until [`Self::resume`]. Any thread may call this, because it does not wait
    /// long for a thread that hangs. Returns whether the map was filled.
    ///
    /// # Errors
    /// When the kernel refuses, or when another thread hangs while it fills or empties the map.
    /// Then only the end of the process gives everything back to the kernel.
    pub fn suspend(&self) -> Result<bool, SteeringError> {
        let until = Instant::now() + BUSY;
        let mut inner = loop {
            match self.0.try_lock() {
                Ok(inner) => break inner,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(SteeringError::KillSwitchBusy);
                }
            }
        };
        if inner.state != State::Engaged {
            return Ok(false);
        }
        inner.empty(State::Suspended).map(|()| true)
    }

    /// Fills the map again if [`Self::suspend`] emptied it. Returns whether it did.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn resume(&self) -> Result<bool, SteeringError> {
        let mut inner = self.inner();
        if inner.state != State::Suspended {
            return Ok(false);
        }
        inner.fill().map(|()| true)
    }
}
