//! A BPF map that is shared memory: an array with `BPF_F_MMAPABLE`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::Ebpf;
use aya::maps::{Map, MapData};

use crate::error::SteeringError;

/// An array of 64-bit words, or of structs of them, that the programs and this process share.
#[derive(Debug)]
pub(crate) struct MappedWords {
    first: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: shared memory that is only touched by atomic operations, from whatever thread.
unsafe impl Send for MappedWords {}
// SAFETY: as above.
unsafe impl Sync for MappedWords {}

impl Drop for MappedWords {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and not used after.
        let _ = unsafe { libc::munmap(self.first.as_ptr().cast(), self.count * WORD) };
    }
}

const WORD: usize = size_of::<u64>();

impl MappedWords {
    /// Maps the words of an array.
    ///
    /// # Errors
    /// When the map has no `BPF_F_MMAPABLE`, or the kernel refuses.
    pub(crate) fn new(map: &MapData) -> io::Result<Self> {
        let information = map.info().map_err(io::Error::other)?;
        let size = information.value_size() as usize;
        if !size.is_multiple_of(WORD) {
            return Err(io::Error::other("its values are not 64-bit words"));
        }
        let count = information.max_entries() as usize * (size / WORD);
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let fd = map.fd().as_fd().as_raw_fd();
        // SAFETY: a fresh mapping of all words of the map; it is unmapped when dropped, and keeps
        // the map for as long. The kernel rounds the length up to whole pages.
        let first =
            unsafe { libc::mmap(std::ptr::null_mut(), count * WORD, access, shared, fd, 0) };
        if first == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(first.cast());
        let first = first.ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { first, count })
    }

    /// The word at an index; `None` behind the end.
    pub(crate) fn get(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: within the mapping, which lives as long as `self`. Words of arrays are aligned.
        (index < self.count).then(|| unsafe { self.first.add(index).as_ref() })
    }

    /// `N` words from an index on; `None` behind the end.
    pub(crate) fn array<const N: usize>(&self, index: usize) -> Option<&[AtomicU64; N]> {
        let is_within = index.checked_add(N).is_some_and(|end| end <= self.count);
        // SAFETY: within the mapping, as in `get`. An array has no padding.
        is_within.then(|| unsafe { self.first.add(index).cast().as_ref() })
    }

    /// Sets a word. What was written before is visible to a program that sees it.
    pub(crate) fn set(&self, index: usize, value: u64) {
        if let Some(word) = self.get(index) {
            word.store(value, Ordering::Release);
        }
    }
}

/// Maps the words of an array of the object.
pub(crate) fn mapped(ebpf: &Ebpf, name: &'static str) -> Result<MappedWords, SteeringError> {
    let Some(Map::Array(data)) = ebpf.map(name) else {
        return Err(SteeringError::Missing(name));
    };
    MappedWords::new(data).map_err(|error| SteeringError::Mapped(name, error))
}
