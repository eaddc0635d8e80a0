//! Attaches entry programs, by tcx or clsact.

use std::io;

use aya::Ebpf;
use aya::programs::links::LinkOrder;
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle};

use crate::error::SteeringError;
use crate::hook::{CLSACT_PRIORITY, Hook};
use crate::programs::{Entry, classifier};

/// Attaches an entry program to the interface with this index.
pub(crate) fn attach_by_index(
    ebpf: &mut Ebpf,
    hook: Hook,
    ifindex: u32,
    entry: Entry,
) -> Result<SchedClassifierLink, SteeringError> {
    let name =
        nix::net::if_::if_indextoname(ifindex).map_err(|_| SteeringError::NoInterface(ifindex))?;
    attach(ebpf, hook, &name.to_string_lossy(), entry)
}

/// Attaches an entry program to the interface of this name.
pub(crate) fn attach(
    ebpf: &mut Ebpf,
    hook: Hook,
    interface: &str,
    entry: Entry,
) -> Result<SchedClassifierLink, SteeringError> {
    let failed = |source| SteeringError::Attach {
        program: entry.program,
        interface: interface.to_owned(),
        hook,
        source,
    };
    let options = match hook {
        Hook::Tcx => TcAttachOptions::TcxOrder(LinkOrder::last()),
        Hook::Clsact => {
            add_clsact(interface)?;
            TcAttachOptions::Netlink(NlOptions {
                priority: CLSACT_PRIORITY,
                handle: TcHandle::new(0, 1),
                classid: None,
            })
        }
    };
    let program = classifier(ebpf, entry.program)?;
    let id = program.attach_with_options(interface, entry.direction, options).map_err(failed)?;
    program.take_link(id).map_err(failed)
}

/// Adds the clsact qdisc, unless there is one.
fn add_clsact(interface: &str) -> Result<(), SteeringError> {
    match aya::programs::tc::qdisc_add_clsact(interface) {
        Ok(()) | Err(TcError::AlreadyAttached) => Ok(()),
        Err(error) if already_there(&error) => Ok(()),
        Err(source) => Err(SteeringError::Clsact { interface: interface.to_owned(), source }),
    }
}

fn already_there(error: &TcError) -> bool {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = source {
        if error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) == Some(libc::EEXIST)
        {
            return true;
        }
        source = error.source();
    }
    false
}

/// Whether the interface exists.
pub(crate) fn exists(ifindex: u32) -> bool {
    nix::net::if_::if_indextoname(ifindex).is_ok()
}
