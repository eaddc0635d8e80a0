//! Short grace periods while many hooks are attached or detached.
//!
//! A tcx link waits for an RCU grace period under the RTNL, both when it is attached and when it is detached
//! (`tcx_entry_sync()`, `include/net/tcx.h`): 7 to 31 ms each, strictly one after the other, more than a minute for 4,000
//! VNIs. Threads do not help, the lock is one. The kernel has a switch for exactly this: `rcu_expedited` has it interrupt
//! the other CPUs instead of waiting until they pass by, and a hook takes less than 1 ms. The switch is the whole machine's, so it
//! is set for a few seconds only, and only where there are many.

use std::fs;
use std::io;

const SWITCH: &str = "/sys/kernel/rcu_expedited";
/// Hooks that are worth it: fewer take less than half a second.
const MANY: usize = 16;

/// While this lives, grace periods are short, if the kernel allowed it.
#[derive(Debug)]
pub(crate) struct Haste(&'static str);

impl Haste {
    /// For so many hooks. `None` if those are few, somebody else has hurried the kernel already, or it does not let itself be hurried
    /// (in a container, `/sys` may be read-only).
    pub(crate) fn for_hooks(hooks: usize) -> Option<Self> {
        if hooks < MANY {
            return None;
        }
        Self::begin(SWITCH).ok().flatten()
    }

    fn begin(switch: &'static str) -> io::Result<Option<Self>> {
        if fs::read_to_string(switch)?.trim() != "0" {
            return Ok(None);
        }
        fs::write(switch, "1")?;
        Ok(Some(Self(switch)))
    }
}

impl Drop for Haste {
    fn drop(&mut self) {
        // It could be written before. If it stays 1, grace periods are short for everybody, which harms nothing but idle CPUs.
        let _ = fs::write(self.0, "0");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_is_set_back_by_who_set_it() {
        let path = std::env::temp_dir().join(format!("vtepd-haste-{}", std::process::id()));
        let switch: &'static str = Box::leak(path.to_string_lossy().into_owned().into_boxed_str());
        let reads = || fs::read_to_string(switch).unwrap();
        fs::write(switch, "0\n").unwrap();
        let haste = Haste::begin(switch).unwrap().unwrap();
        assert_eq!(reads(), "1");
        assert!(Haste::begin(switch).unwrap().is_none(), "somebody else's");
        drop(haste);
        assert_eq!(reads(), "0");
        fs::remove_file(switch).unwrap();
        assert!(Haste::begin(switch).is_err(), "a kernel without it");
        assert!(Haste::for_hooks(MANY - 1).is_none());
    }
}
