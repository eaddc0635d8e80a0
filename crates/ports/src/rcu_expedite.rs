//! Short grace periods while many hooks are attached or detached.
//!
//! A tcx link waits for an RCU grace period under the RTNL, both when it is attached and when it is
//! detached (`tcx_entry_sync()`, `include/net/tcx.h`): 7 to 31 ms each, strictly one after the
//! other, more than a minute for 4,000 VNIs. Threads do not help, the lock is one. The kernel has a
//! switch for exactly this: `rcu_expedited` has it interrupt the other CPUs instead of waiting
//! until they pass by, and a hook takes less than 1 ms. The switch is the whole machine's, so it is
//! set for a few seconds only, and only where there are many or nothing is to wait for them (host
//! ports). Any value but 0 is "on" to the kernel: this one says whose it is, so that what a killed
//! vtepd has left on the next one switches off.

use std::fs;
use std::io;
use std::path::Path;

/// See the module's description.
pub(crate) const SWITCH: &str = "/sys/kernel/rcu_expedited";
/// Hooks that are worth it: fewer take less than half a second.
const MANY: usize = 16;
/// What vtepd writes, above the number of its process, which has 22 bits at most (`PID_MAX_LIMIT`,
/// `include/linux/threads.h`).
const MARK: u32 = 0x76 << 24;

/// While this lives, grace periods are short, if the kernel allowed it.
#[derive(Debug)]
pub(crate) struct ExpeditedRcu(&'static str);

impl ExpeditedRcu {
    /// For so many hooks. `None` if those are few, somebody else has hurried the kernel already, or
    /// it does not let itself be hurried (in a container, `/sys` may be read-only).
    pub(crate) fn for_hooks(hooks: usize) -> Option<Self> {
        if hooks < MANY {
            return None;
        }
        Self::begin(SWITCH).ok().flatten()
    }

    /// For so many hooks on host ports, whose addresses are not followed meanwhile: a host that has
    /// just come here is to be known here. `None` if there are none, and as [`Self::for_hooks`].
    pub(crate) fn for_ports(hooks: usize) -> Option<Self> {
        if hooks == 0 {
            return None;
        }
        Self::begin(SWITCH).ok().flatten()
    }

    fn begin(switch: &'static str) -> io::Result<Option<Self>> {
        end_of_the_dead(switch)?;
        if read(switch)? != 0 {
            return Ok(None);
        }
        fs::write(switch, (MARK | std::process::id()).to_string())?;
        Ok(Some(Self(switch)))
    }
}

impl Drop for ExpeditedRcu {
    fn drop(&mut self) {
        // It could be written before. If it stays on, grace periods are short for everybody, which
        // harms nothing but idle CPUs.
        let _ = fs::write(self.0, "0");
    }
}

/// Switches off what a vtepd that was killed has left on. Returns the switch, if one had.
pub(crate) fn clean() -> Option<&'static str> {
    end_of_the_dead(SWITCH).is_ok_and(|had| had).then_some(SWITCH)
}

fn end_of_the_dead(switch: &str) -> io::Result<bool> {
    let value = read(switch)?;
    // One in another PID namespace is taken for dead: then it ends later, no more.
    let dead =
        value & (0xff << 24) == MARK && !Path::new(&format!("/proc/{}", value & !MARK)).exists();
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
        let path = std::env::temp_dir().join(format!("vtepd-haste-{}", std::process::id()));
        let switch: &'static str = Box::leak(path.to_string_lossy().into_owned().into_boxed_str());
        let reads = || fs::read_to_string(switch).unwrap().trim().parse::<u32>().unwrap();
        fs::write(switch, "0\n").unwrap();
        let haste = ExpeditedRcu::begin(switch).unwrap().unwrap();
        assert_eq!(reads(), MARK | std::process::id());
        assert!(ExpeditedRcu::begin(switch).unwrap().is_none(), "somebody else's, who lives");
        drop(haste);
        assert_eq!(reads(), 0);
        // One that was killed meanwhile; and somebody who is no vtepd.
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        for begins in [false, true] {
            fs::write(switch, (MARK | dead.id()).to_string()).unwrap();
            assert!(if begins {
                ExpeditedRcu::begin(switch).unwrap().is_some()
            } else {
                end_of_the_dead(switch).unwrap()
            });
            assert_eq!(reads(), 0);
        }
        fs::write(switch, "1").unwrap();
        assert!(
            !end_of_the_dead(switch).unwrap() && ExpeditedRcu::begin(switch).unwrap().is_none()
        );
        assert_eq!(reads(), 1);
        fs::remove_file(switch).unwrap();
        assert!(ExpeditedRcu::begin(switch).is_err(), "a kernel without it");
        assert!(ExpeditedRcu::for_hooks(MANY - 1).is_none());
    }
}
