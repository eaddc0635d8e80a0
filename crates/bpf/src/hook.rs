//! How programs are attached: by tcx or clsact.

use std::io;

use aya::programs::{ProgramError, SchedClassifier, TcAttachType};

/// How the steering programs are attached to interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// tcx links (Linux 6.6). The kernel removes them when the process ends.
    Tcx,
    /// Filters of a clsact qdisc. After a kill they remain but pass every frame, because the kill
    /// switch is empty. The next start removes them. A qdisc that vtepd added is never deleted:
    /// adding or deleting one stops the interface for a moment (`qdisc_graft()` in
    /// net/sched/sch_api.c).
    Clsact,
}

impl std::fmt::Display for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        })
    }
}

/// Queries the programs on a tcx hook, which fails without tcx. Loading a program for the hook
/// would succeed on any kernel.
///
/// # Errors
/// When a privilege is missing (CAP_BPF or CAP_NET_ADMIN).
pub fn has_tcx() -> io::Result<bool> {
    match SchedClassifier::query_tcx("lo", TcAttachType::Ingress) {
        Ok(_) => Ok(true),
        Err(ProgramError::SyscallError(error))
            if error.io_error.kind() == io::ErrorKind::PermissionDenied =>
        {
            Err(error.io_error)
        }
        Err(_) => Ok(false),
    }
}

/// Priority of vtepd's clsact filters. Filters of other tools have lower numbers and run first.
pub(crate) const CLSACT_PRIORITY: u16 = 65_000;
