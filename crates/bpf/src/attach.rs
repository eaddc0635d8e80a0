//! Attaches entry programs, by tcx or clsact.

use std::io;

use aya::Ebpf;
use aya::programs::TcAttachType;
use aya::programs::links::LinkOrder;
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle};

use netlink::Requests;

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
            add_clsact(interface, entry.direction)?;
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

/// Adds the clsact qdisc, unless there is one. A qdisc `ingress` in its place suffices for ingress. For
/// egress it would attach the program there, too, without an error.
fn add_clsact(interface: &str, direction: TcAttachType) -> Result<(), SteeringError> {
    let failed = |source| SteeringError::Clsact { interface: interface.to_owned(), source };
    match aya::programs::tc::qdisc_add_clsact(interface) {
        Ok(()) => return Ok(()),
        Err(TcError::AlreadyAttached) => {}
        Err(error) if already_there(&error) => {}
        Err(source) => return Err(failed(source)),
    }
    let ifindex = nix::net::if_::if_nametoindex(interface).unwrap_or_default();
    let has_clsact = || {
        let with_clsact = Requests::open().and_then(|mut requests| requests.with_clsact());
        with_clsact.is_ok_and(|with| with.contains(&ifindex))
    };
    match direction {
        TcAttachType::Egress if !has_clsact() => Err(SteeringError::NoEgress(interface.to_owned())),
        _ => Ok(()),
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
