//! File descriptors of the steering programs: raises the limit for one descriptor at each hook, and
//! moves the kill switch's above all others.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use aya::Ebpf;
use aya::maps::{Map, MapData, ProgramArray};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::error::SteeringError;

/// Descriptors that may be opened below the kill switch's, where the limit allows as many: two hooks of
/// each of 4,094 netdevs, those of 4,096 ports, and everything else.
const ROOM: u64 = 32_768;

/// Takes the kill switch map out of the object and gives it a descriptor above all others.
///
/// A dying process releases its descriptors in reverse order of their numbers: `exit_files()`
/// queues them, and `task_work_run()` takes the last one first. Closing AF_PACKET sockets takes
/// milliseconds, so the kill switch has to come first. For the same reason the map must have only
/// one descriptor.
pub(super) fn take_kill_switch(ebpf: &mut Ebpf) -> Result<ProgramArray<MapData>, SteeringError> {
    let name = "kill_switch";
    let Some(Map::ProgramArray(original)) = ebpf.take_map(name) else {
        return Err(SteeringError::Missing(name));
    };
    let (soft, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).map_err(SteeringError::DescriptorLimit)?;
    let above = kill_switch_descriptor(highest_descriptor(), soft);
    // SAFETY: fcntl(2) with an integer argument; a non-negative result is a new descriptor that has
    // no other owner.
    let high = unsafe {
        let fd = libc::fcntl(original.fd().as_fd().as_raw_fd(), libc::F_DUPFD_CLOEXEC, above);
        if fd < 0 {
            return Err(SteeringError::Descriptor(io::Error::last_os_error()));
        }
        OwnedFd::from_raw_fd(fd)
    };
    // The limit keeps other descriptors below it.
    let limit = u64::try_from(high.as_raw_fd()).unwrap_or_default() + 1;
    if limit < soft {
        // Without the lower limit, a higher descriptor would need more than `ROOM` open ones.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, limit, hard);
    }
    let data = MapData::from_fd(high).map_err(|error| SteeringError::Map(name, error))?;
    Map::ProgramArray(data).try_into().map_err(|error| SteeringError::Map(name, error))
}

/// The lowest acceptable number of the kill switch's descriptor: above all open and future ones. It
/// is not just below the limit, because the kernel's table grows to the highest number. With a
/// limit of 2^30, as in some containers, that is 8 GiB.
fn kill_switch_descriptor(highest: u64, limit: u64) -> libc::c_int {
    // A few numbers above it stay free, in case the lowest of them is taken.
    let place = (highest + ROOM).min(limit.saturating_sub(8)).max(64);
    libc::c_int::try_from(place).unwrap_or(libc::c_int::MAX)
}

/// The highest descriptor of the process, or 1,024 if `/proc` cannot be read.
fn highest_descriptor() -> u64 {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max().unwrap_or(1024)
}

/// Raises the limit of descriptors. Many systems start with a limit of 1,024.
pub(super) fn allow_descriptors() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < ROOM
    {
        // If this fails, attaching reports which hook failed.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, ROOM.min(hard), hard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kill_switch_is_above_all_others_and_not_at_the_limit() {
        // (highest open descriptor, limit) and the expected number.
        for (highest, limit, place) in [
            (20, 1 << 30, 20 + ROOM),
            (20, u64::MAX, 20 + ROOM),
            (70_000, 1 << 20, 70_000 + ROOM),
            (20, ROOM, ROOM - 8),
            (20, 64, 64),
        ] {
            assert_eq!(
                u64::try_from(kill_switch_descriptor(highest, limit)).unwrap(),
                place,
                "{highest} of {limit}"
            );
        }
    }

    #[test]
    fn the_highest_descriptor_is_found() {
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: fcntl(2) with an integer argument; a non-negative result is a new descriptor that
        // has no other owner.
        let high = unsafe {
            let fd = libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 700);
            assert!(fd >= 700);
            OwnedFd::from_raw_fd(fd)
        };
        assert!(highest_descriptor() >= u64::try_from(high.as_raw_fd()).unwrap());
    }
}
