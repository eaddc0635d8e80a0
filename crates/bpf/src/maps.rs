//! Access to the maps of the steering programs.

use aya::Ebpf;
use aya::maps::{Map, MapError};

use crate::error::SteeringError;

/// A map of the object.
pub(crate) fn map<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<T, SteeringError>
where
    T: TryFrom<&'a mut Map, Error = MapError>,
{
    let map = ebpf.map_mut(name).ok_or(SteeringError::Missing(name))?;
    map.try_into().map_err(|error| SteeringError::Map(name, error))
}

/// Treats a missing entry as success when a map entry is removed.
pub(crate) fn absent(error: MapError) -> Result<(), MapError> {
    match error {
        MapError::KeyNotFound | MapError::ElementNotFound => Ok(()),
        MapError::SyscallError(error) if error.io_error.raw_os_error() == Some(libc::ENOENT) => {
            Ok(())
        }
        error => Err(error),
    }
}
