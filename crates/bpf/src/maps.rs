//! Access to the maps of the steering programs.

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, PerCpuValues};
use aya::{Ebpf, Pod};

use crate::error::SteeringError;

/// A map of the object.
pub(crate) fn map<'a, T>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<T, SteeringError>
where
    T: TryFrom<&'a mut Map, Error = MapError>,
{
    let map = ebpf.map_mut(name).ok_or(SteeringError::Missing(name))?;
    map.try_into().map_err(|error| SteeringError::Map(name, error))
}

/// Sets an entry of an array.
pub(crate) fn set<V: Pod>(
    ebpf: &mut Ebpf,
    name: &'static str,
    index: u32,
    value: V,
) -> Result<(), SteeringError> {
    let mut entries: Array<&mut MapData, V> = map(ebpf, name)?;
    entries.set(index, value, 0).map_err(|error| SteeringError::Map(name, error))
}

/// Adds or changes an entry of a hash table.
pub(crate) fn insert<K: Pod, V: Pod>(
    ebpf: &mut Ebpf,
    name: &'static str,
    key: K,
    value: V,
) -> Result<(), SteeringError> {
    let mut entries: HashMap<&mut MapData, K, V> = map(ebpf, name)?;
    entries.insert(key, value, 0).map_err(|error| SteeringError::Map(name, error))
}

/// Removes an entry of a hash table, which may be absent.
pub(crate) fn remove<K: Pod, V: Pod>(
    ebpf: &mut Ebpf,
    name: &'static str,
    key: &K,
) -> Result<(), SteeringError> {
    let mut entries: HashMap<&mut MapData, K, V> = map(ebpf, name)?;
    entries.remove(key).or_else(absent).map_err(|error| SteeringError::Map(name, error))
}

/// The values of all CPUs at an index.
pub(crate) fn per_cpu<T: Pod>(
    ebpf: &Ebpf,
    name: &'static str,
    index: u32,
) -> Result<PerCpuValues<T>, SteeringError> {
    let failed = |error| SteeringError::Map(name, error);
    let map = ebpf.map(name).ok_or(SteeringError::Missing(name))?;
    let values: PerCpuArray<_, T> = map.try_into().map_err(failed)?;
    values.get(&index, 0).map_err(failed)
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
