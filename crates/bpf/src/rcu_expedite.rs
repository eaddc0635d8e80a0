//! Shortens RCU grace periods while many hooks are attached or detached, if the configuration
//! allows it.
//!
//! Attaching or detaching a tcx link waits for an RCU grace period under the RTNL lock
//! (`tcx_entry_sync()`, `include/net/tcx.h`), so threads cannot do it in parallel. With
//! `rcu_expedited`, the kernel interrupts the other CPUs instead of waiting for them. Figures:
//! docs/adr/0013-expedited-rcu.md.
//!
//! The switch belongs to the whole machine. It is therefore off by default. If it is allowed, it is
//! set only for many hooks or for host ports, and for a few seconds at most.
//!
//! The kernel takes every value but 0 as "on". The value that vtepd writes contains its process
//! identifier, so that a later start can reset a switch that a killed vtepd left on.

use std::fs;
use std::io;
use std::path::Path;

/// Path of the kernel's switch for expedited grace periods.
pub(crate) const SWITCH: &str = "/sys/kernel/rcu_expedited";
/// Number of hooks from which on the switch is used.
const HOOKS_MIN: usize = 16;
/// Upper byte of the value that vtepd writes. The lower bytes are its process identifier, which has
/// at most 22 bits (`PID_MAX_LIMIT`, `include/linux/threads.h`).
const OWNER_MARK: u32 = 0x76 << 24;

/// Whether grace periods may be shortened. By default not.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GracePeriods {
    /// Whether the configuration allows it.
    pub(crate) expedite: bool,
}

impl GracePeriods {
    /// Shortens them for changes of this many hooks. `None` if that is not allowed, if the hooks
    /// are few, if the switch is already on, or if it cannot be written (in a container, `/sys` may
    /// be read-only).
    pub(crate) fn for_hooks(self, hooks: usize) -> Option<ExpeditedRcu> {
        self.shorten(hooks >= HOOKS_MIN)
    }

    /// Shortens them for changes of this many hooks on host ports. Until they are attached, moves of
    /// hosts on these ports are seen late. `None` if there are no hooks, and as in
    /// [`Self::for_hooks`].
    pub(crate) fn for_ports(self, hooks: usize) -> Option<ExpeditedRcu> {
        self.shorten(hooks > 0)
    }

    fn shorten(self, wanted: bool) -> Option<ExpeditedRcu> {
        if !self.expedite || !wanted {
            return None;
        }
        ExpeditedRcu::begin(SWITCH).ok().flatten()
    }
}

/// Grace periods are short while this value lives.
#[derive(Debug)]
pub(crate) struct ExpeditedRcu(&'static str);

impl ExpeditedRcu {
    fn begin(switch: &'static str) -> io::Result<Option<Self>> {
        reset_if_owner_is_gone(switch)?;
        if read(switch)? != 0 {
            return Ok(None);
        }
        fs::write(switch, (OWNER_MARK | std::process::id()).to_string())?;
        Ok(Some(Self(switch)))
    }
}

impl Drop for ExpeditedRcu {
    fn drop(&mut self) {
        // It could be written before. If it stays on, grace periods stay short, which only disturbs
        // idle CPUs.
        let _ = fs::write(self.0, "0");
    }
}

/// Resets the switch if a killed vtepd left it on. Returns the switch's path if so.
pub(crate) fn reset_stale() -> Option<&'static str> {
    reset_if_owner_is_gone(SWITCH).is_ok_and(|had| had).then_some(SWITCH)
}

fn reset_if_owner_is_gone(switch: &str) -> io::Result<bool> {
    let value = read(switch)?;
    // A vtepd in another PID namespace may be mistaken for dead. Its grace periods then become long
    // again.
    let dead = value & (0xff << 24) == OWNER_MARK
        && !Path::new(&format!("/proc/{}", value & !OWNER_MARK)).exists();
    if dead {
        fs::write(switch, "0")?;
    }
    Ok(dead)
}

fn read(switch: &str) -> io::Result<u32> {
    fs::read_to_string(switch)?.trim().parse().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_is_set_back_by_who_set_it() {
        let path = std::env::temp_dir().join(format!("vtepd-rcu-{}", std::process::id()));
        let switch: &'static str = Box::leak(path.to_string_lossy().into_owned().into_boxed_str());
        let reads = || fs::read_to_string(switch).unwrap().trim().parse::<u32>().unwrap();
        fs::write(switch, "0\n").unwrap();
        let expedited = ExpeditedRcu::begin(switch).unwrap().unwrap();
        assert_eq!(reads(), OWNER_MARK | std::process::id());
        assert!(ExpeditedRcu::begin(switch).unwrap().is_none(), "somebody else's, who lives");
        drop(expedited);
        assert_eq!(reads(), 0);
        // One that was killed meanwhile, and a value that vtepd did not write.
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        for begins in [false, true] {
            fs::write(switch, (OWNER_MARK | dead.id()).to_string()).unwrap();
            assert!(if begins {
                ExpeditedRcu::begin(switch).unwrap().is_some()
            } else {
                reset_if_owner_is_gone(switch).unwrap()
            });
            assert_eq!(reads(), 0);
        }
        fs::write(switch, "1").unwrap();
        assert!(
            !reset_if_owner_is_gone(switch).unwrap()
                && ExpeditedRcu::begin(switch).unwrap().is_none()
        );
        assert_eq!(reads(), 1);
        fs::remove_file(switch).unwrap();
        assert!(ExpeditedRcu::begin(switch).is_err(), "a kernel without it");
        assert!(GracePeriods { expedite: true }.for_hooks(HOOKS_MIN - 1).is_none());
        assert!(GracePeriods::default().for_hooks(HOOKS_MIN).is_none(), "it is opt-in");
    }
}
