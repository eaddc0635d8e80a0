//! The steering programs in the object file: entry programs, which are attached to interfaces, and
//! the programs behind the kill switch.

use aya::Ebpf;
use aya::programs::{SchedClassifier, TcAttachType};

use crate::error::SteeringError;

/// An entry program and the direction of traffic that it is attached to.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) program: &'static str,
    pub(crate) direction: TcAttachType,
}

pub(crate) const UPLINK: Entry =
    Entry { program: "vtepd_uplink", direction: TcAttachType::Ingress };
pub(crate) const VXLAN: Entry = Entry { program: "vtepd_vxlan", direction: TcAttachType::Egress };
pub(crate) const PORT: Entry = Entry { program: "vtepd_port", direction: TcAttachType::Ingress };
pub(crate) const PUNT: Entry = Entry { program: "vtepd_punt", direction: TcAttachType::Ingress };
pub(crate) const FAR_END: Entry =
    Entry { program: "vtepd_far_end", direction: TcAttachType::Ingress };
pub(crate) const ACCESS: Entry =
    Entry { program: "vtepd_access", direction: TcAttachType::Ingress };
pub(crate) const ARRIVED: Entry =
    Entry { program: "vtepd_arrived", direction: TcAttachType::Ingress };
pub(crate) const SPLIT: Entry = Entry { program: "vtepd_split", direction: TcAttachType::Ingress };
pub(crate) const SPLIT_FAR: Entry =
    Entry { program: "vtepd_split_far", direction: TcAttachType::Ingress };
pub(crate) const ENTRIES: [Entry; 9] =
    [UPLINK, VXLAN, PORT, PUNT, FAR_END, ACCESS, ARRIVED, SPLIT, SPLIT_FAR];

/// Whether this is the name of one of vtepd's entry programs.
pub(crate) fn is_own(name: &str) -> bool {
    ENTRIES.iter().any(|entry| entry.program == name)
}

/// Programs behind the kill switch, with their index in the map.
pub(crate) const STEER_UPLINK: (u32, &str) = (0, "steer_uplink");
pub(crate) const STEER_VXLAN: (u32, &str) = (1, "steer_vxlan");
pub(crate) const STEER_PUNT: (u32, &str) = (2, "steer_punt");
pub(crate) const STEER_PORT: (u32, &str) = (3, "steer_port");
pub(crate) const STEER_ACCESS: (u32, &str) = (4, "steer_access");
/// The order in which the map is filled. The program for frames from the worker comes first, so
/// that redirected frames can return from the start.
pub(crate) const STEERS: [(u32, &str); 5] =
    [STEER_PUNT, STEER_UPLINK, STEER_VXLAN, STEER_PORT, STEER_ACCESS];

/// The indices that are cleared, in this order. `STEER_PUNT` stays, so that frames in the punt
/// pairs can still return.
pub(crate) const EMPTIED: [u32; 4] = [STEER_PORT.0, STEER_UPLINK.0, STEER_VXLAN.0, STEER_ACCESS.0];

/// Returns the heap's unused pages to the kernel, some megabytes once the object is parsed.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, from any thread (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}

/// A program of the object.
pub(crate) fn classifier<'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut SchedClassifier, SteeringError> {
    let program = ebpf.program_mut(name).ok_or(SteeringError::Missing(name))?;
    program.try_into().map_err(|error| SteeringError::Program(name, error))
}
