//! Cleans up after a vtepd that was killed. It may have left clsact filters, which pass everything
//! but would stay forever, and the `rcu_expedited` switch.

use std::io;

use aya::programs::TcAttachType;
use aya::programs::tc::qdisc_detach_program;
use netlink::{Direction, Requests};

use crate::hook::CLSACT_PRIORITY;
use crate::programs::is_own;
use crate::rcu_expedite;

/// Removes vtepd's filters from every interface of the calling thread's namespace. They are
/// recognised by priority and name. Also resets `rcu_expedited` if a dead vtepd left it on. Returns
/// the interfaces that had filters, and the path of the switch if it was on.
///
/// To be called while no other vtepd runs in the namespace.
///
/// # Errors
/// When the interfaces cannot be listed. A filter that cannot be removed passes everything, so that
/// is not an error.
pub fn remove() -> io::Result<Vec<String>> {
    let mut requests = Requests::open().map_err(io::Error::other)?;
    let interfaces = nix::net::if_::if_nameindex()?;
    let mut cleaned: Vec<String> =
        rcu_expedite::reset_stale().map(str::to_owned).into_iter().collect();
    for interface in &interfaces {
        let name = interface.name().to_string_lossy();
        let mut found = false;
        for (direction, attach_type) in
            [(Direction::Ingress, TcAttachType::Ingress), (Direction::Egress, TcAttachType::Egress)]
        {
            let filters = requests.filters(interface.index(), direction).unwrap_or_default();
            let ours = filters.into_iter().filter(|filter| filter.priority == CLSACT_PRIORITY);
            for program in ours.filter_map(|filter| filter.name).filter(|program| is_own(program)) {
                found |= qdisc_detach_program(&name, attach_type, &program).is_ok();
            }
        }
        if found {
            cleaned.push(name.into_owned());
        }
    }
    Ok(cleaned)
}
