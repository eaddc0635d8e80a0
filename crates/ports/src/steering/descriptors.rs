//! File descriptors of the steering programs: room for one at each hook, and the kill switch's
//! above all others.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use aya::Ebpf;
use aya::maps::{Map, MapData, ProgramArray};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::SteeringError;

/// Descriptors for 4,094 hooks and for everything else.
const DESCRIPTORS: u64 = 8192;
/// Descriptors that may be opened below the kill switch's, where the limit allows so many: hooks of
/// netdevs, uplinks and ports.
const ROOM: u64 = 4 * DESCRIPTORS;

/// Takes the kill switch out of the object under a descriptor above all others. A dying process's
/// descriptors are released in the reverse order of their numbers (`exit_files` queues them,
/// `task_work_run` takes the last first), and closing AF_PACKET sockets takes milliseconds: the
/// switch has to be first. For the same reason there must be no second descriptor of it.
pub(super) fn kill_switch(ebpf: &mut Ebpf) -> Result<ProgramArray<MapData>, SteeringError> {
    let name = "kill_switch";
    let Some(Map::ProgramArray(original)) = ebpf.take_map(name) else {
        return Err(SteeringError::Missing(name));
    };
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)
        .map_err(|error| SteeringError::KillSwitch(error.into()))?;
    let above = kill_switch_place(highest_descriptor(), soft);
    // SAFETY: fcntl(2) with an integer argument; a non-negative result is a new descriptor that
    // nobody else owns.
    let high = unsafe {
        let fd = libc::fcntl(original.fd().as_fd().as_raw_fd(), libc::F_DUPFD_CLOEXEC, above);
        if fd < 0 {
            return Err(SteeringError::KillSwitch(io::Error::last_os_error()));
        }
        OwnedFd::from_raw_fd(fd)
    };
    // No other descriptor comes above it.
    let limit = u64::try_from(high.as_raw_fd()).unwrap_or_default() + 1;
    if limit < soft {
        // Where that is not allowed, nobody is known to need that many.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, limit, hard);
    }
    let data = MapData::from_fd(high).map_err(|error| SteeringError::Map(name, error))?;
    Map::ProgramArray(data).try_into().map_err(|error| SteeringError::Map(name, error))
}

/// The least number of the kill switch's descriptor: above all that are open and that come later.
/// Not just below the limit, because the kernel's table has room for all numbers up to it: with a
/// limit of 2^30, as some containers have, that is 8 GiB.
fn kill_switch_place(highest: u64, limit: u64) -> libc::c_int {
    // Not the very last: some leave no room above for their own.
    let place = (highest + ROOM).min(limit.saturating_sub(8)).max(64);
    libc::c_int::try_from(place).unwrap_or(libc::c_int::MAX)
}

/// The highest descriptor of the process; as if it were a high one where that cannot be told.
fn highest_descriptor() -> u64 {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max().unwrap_or(1024)
}

/// Each hook has a descriptor, and there may be one for each of 4,094 VNIs; many systems start with
/// 1,024.
pub(super) fn allow_descriptors() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < DESCRIPTORS
    {
        // Where that is not allowed, what cannot be attached is named.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS.min(hard), hard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kill_switch_is_above_all_others_and_not_at_the_limit() {
        // (highest open descriptor, limit) and the place.
        for (highest, limit, place) in [
            (20, 1 << 30, 20 + ROOM),
            (20, u64::MAX, 20 + ROOM),
            (70_000, 1 << 20, 70_000 + ROOM),
            (20, 8192, 8184),
            (20, 64, 64),
        ] {
            assert_eq!(
                u64::try_from(kill_switch_place(highest, limit)).unwrap(),
                place,
                "{highest} of {limit}"
            );
        }
    }

    #[test]
    fn the_highest_descriptor_is_found() {
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: fcntl(2) with an integer argument; a non-negative result is a new descriptor that
        // nobody else owns.
        let high = unsafe {
            let fd = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 700);
            assert!(fd >= 700);
            OwnedFd::from_raw_fd(fd)
        };
        assert!(highest_descriptor() >= u64::try_from(high.as_raw_fd()).unwrap());
    }
}
