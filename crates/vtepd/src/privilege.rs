//! Whether another process may change vtepd's state. It needs CAP_NET_ADMIN, as for `ip link`. User
//! 0 without that capability, as in a restricted container, is not enough.

use std::fs;

/// `CAP_NET_ADMIN` (`include/uapi/linux/capability.h`).
const NET_ADMIN: u32 = 12;

/// Checks whether the process with this id may change vtepd's state.
///
/// # Errors
/// Why it may not: it lacks the capability, or it is not visible from this PID namespace.
pub fn check(pid: Option<i32>) -> Result<(), String> {
    let Some(pid) = pid.filter(|pid| *pid > 0) else {
        return Err("the process that asks is in another PID namespace, so its capabilities cannot be seen; ask from \
                    vtepd's own container or from the host of vtepd"
            .to_owned());
    };
    let read = |process: &str, file: &str| {
        let path = format!("/proc/{process}/{file}");
        fs::read_to_string(&path).map_err(|error| format!("{path} cannot be read: {error}"))
    };
    let pid = pid.to_string();
    // In a user namespace of its own, a process has all capabilities, but they do not apply here.
    if read(&pid, "uid_map")? != read("self", "uid_map")? {
        return Err(format!("process {pid} is in another user namespace"));
    }
    let status = read(&pid, "status")?;
    if effective(&status).is_some_and(|set| set >> NET_ADMIN & 1 == 1) {
        Ok(())
    } else {
        Err(format!("process {pid} has not the capability CAP_NET_ADMIN"))
    }
}

/// The effective capabilities in a status file of proc(5).
fn effective(status: &str) -> Option<u64> {
    let text = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(text.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_is_read_from_the_status_file() {
        let text =
            |set: &str| format!("Name:\tvtepctl\nCapPrm:\t000001ffffffffff\nCapEff:\t{set}\n");
        assert_eq!(effective(&text("0000000000001000")), Some(1 << NET_ADMIN));
        assert_eq!(effective("Name:\tvtepctl\n"), None);
        assert!(check(Some(0)).is_err() && check(None).is_err() && check(Some(i32::MAX)).is_err());
    }
}
