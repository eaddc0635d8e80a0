//! Programs of other tools on the hooks that steering uses, so that vtepd can report them.
//!
//! An XDP program sees a received frame first, then tcx programs in the order in which they were
//! attached, then clsact filters by priority with vtepd's last. What an earlier program drops or
//! redirects does not reach vtepd. What it accepts for good goes to the kernel. What it passes on
//! is steered.
//!
//! The kernel runs all tcx programs before all clsact filters. Where another tool has clsact
//! filters, vtepd therefore attaches its own program by clsact as well, as long as they are there.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::programs::{SchedClassifier, TcAttachType};
use netlink::{Direction, Requests};
use tables::BypassPort;

use crate::hook::{CLSACT_PRIORITY, Hook};
use crate::programs::is_own;

/// A program of another tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// Name of the interface.
    pub interface: String,
    /// Where it is attached: `XDP`, `tcx ingress`, `clsact egress`, ….
    pub hook: &'static str,
    /// Its name, or its kind where it has none.
    pub program: String,
    /// Whether it runs after vtepd's program, so that it does not see what vtepd redirects.
    pub behind: bool,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, hook, program, behind } = self;
        let order = if *behind {
            "runs behind vtepd and does not see what vtepd takes"
        } else {
            "runs before vtepd, which gets what it passes on"
        };
        write!(f, "{program} on {interface} ({hook}) {order}")
    }
}

/// Identifiers of the programs that this process has loaded.
static OWN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn own_ids() -> MutexGuard<'static, BTreeSet<u32>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that this program is one of vtepd's own.
pub(crate) fn remember_own(program: &SchedClassifier) {
    own_ids().extend(program.info().map(|information| information.id()));
}

/// `BPF_PROG_QUERY` (`include/uapi/linux/bpf.h`), and the attach types of tcx.
const PROG_QUERY: libc::c_int = 16;
const TCX_INGRESS: u32 = 46;
const TCX_EGRESS: u32 = 47;
/// Room for the identifiers of one hook; the kernel allows 63 programs.
const MOST: usize = 64;

/// The part of `union bpf_attr` for `BPF_PROG_QUERY`.
#[repr(C)]
#[derive(Default)]
struct Query {
    target_ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    padding: u32,
    rest: [u64; 4],
}

/// The identifiers of the programs on tcx. Empty if the kernel has no tcx.
fn tcx_programs(ifindex: u32, direction: Direction) -> Vec<u32> {
    let mut ids = vec![0u32; MOST];
    let mut query = Query {
        target_ifindex: ifindex,
        attach_type: match direction {
            Direction::Ingress => TCX_INGRESS,
            Direction::Egress => TCX_EGRESS,
        },
        prog_ids: ids.as_mut_ptr() as u64,
        prog_cnt: MOST as u32,
        ..Query::default()
    };
    // SAFETY: the kernel reads and writes the structure, whose size is given, and writes at most
    // `prog_cnt` numbers.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, PROG_QUERY, &raw mut query, size_of::<Query>()) };
    ids.truncate(if done == 0 { query.prog_cnt as usize } else { 0 });
    ids
}

/// The programs of others among those of a hook, in the order in which they run, and whether each runs
/// behind vtepd's.
fn around<T>(
    programs: impl Iterator<Item = T>,
    is_own: impl Fn(&T) -> bool,
) -> impl Iterator<Item = (T, bool)> {
    let mut behind = false;
    programs.filter_map(move |program| {
        let own = is_own(&program);
        behind |= own;
        (!own).then_some((program, behind))
    })
}

/// Programs of other tools on an interface's ingress or egress, and whether they run before or
/// after vtepd's. Hooks that cannot be read (no tcx, no clsact) count as empty.
#[must_use]
pub fn find(ifindex: u32, direction: Direction) -> Vec<Foreign> {
    let Ok(name) = nix::net::if_::if_indextoname(ifindex) else { return Vec::new() };
    let interface = name.to_string_lossy().into_owned();
    let (attach_type, tcx, clsact) = match direction {
        Direction::Ingress => (TcAttachType::Ingress, "tcx ingress", "clsact ingress"),
        Direction::Egress => (TcAttachType::Egress, "tcx egress", "clsact egress"),
    };
    let mut found = Vec::new();
    if let Ok((_, programs)) = SchedClassifier::query_tcx(&interface, attach_type) {
        let names = programs.iter().map(|program| {
            let name = program.name_as_str().filter(|name| !name.is_empty());
            name.unwrap_or("a nameless program").to_owned()
        });
        found.extend(around(names, |name| is_own(name)).map(|(program, behind)| Foreign {
            interface: interface.clone(),
            hook: tcx,
            program,
            behind,
        }));
    } else {
        // Without CAP_SYS_ADMIN the kernel returns identifiers of programs, but no names.
        let own = own_ids();
        let ids = tcx_programs(ifindex, direction).into_iter();
        found.extend(around(ids, |id| own.contains(id)).map(|(id, behind)| Foreign {
            interface: interface.clone(),
            hook: tcx,
            program: format!("BPF program {id} (`bpftool prog show id {id}`)"),
            behind,
        }));
    }
    let Ok(mut requests) = Requests::open() else { return found };
    // The kernel reports that there is an XDP program, but not its name. vtepd has none of its own.
    let xdp = requests.link(&interface).is_ok_and(|link| link.is_some_and(|link| link.xdp));
    if xdp && matches!(direction, Direction::Ingress) {
        let program = "an XDP program".to_owned();
        found.push(Foreign { interface: interface.clone(), hook: "XDP", program, behind: false });
    }
    for filter in requests.filters(ifindex, direction).unwrap_or_default() {
        let program = filter.name.unwrap_or(filter.kind);
        if !is_own(&program) {
            let behind = filter.priority >= CLSACT_PRIORITY;
            found.push(Foreign { interface: interface.clone(), hook: clsact, program, behind });
        }
    }
    found
}

/// Why a port has no bypass although the bridge would allow it: a program of another tool is
/// attached. Checked are the port's ingress, and the vxlan netdev's egress and ingress. The result
/// is the end of a sentence. Sends netlink requests, which may wait for the RTNL lock.
#[must_use]
pub fn bypass_obstacle(port: &BypassPort) -> Option<String> {
    let places = [
        (port.ifindex, Direction::Ingress),
        (port.netdev, Direction::Egress),
        (port.netdev, Direction::Ingress),
    ];
    let program = places.into_iter().flat_map(|(at, direction)| find(at, direction)).next()?;
    Some(format!("{} is on {} of {}", program.program, program.hook, program.interface))
}

/// Whether a program of this process is attached to an interface's ingress or egress.
pub(crate) fn has_own(ifindex: u32, direction: Direction, hook: Hook) -> bool {
    if hook == Hook::Tcx {
        return tcx_programs(ifindex, direction).iter().any(|id| own_ids().contains(id));
    }
    let filters = Requests::open().and_then(|mut requests| requests.filters(ifindex, direction));
    let own = |filter: netlink::Filter| filter.name.is_some_and(|name| is_own(&name));
    filters.unwrap_or_default().into_iter().any(own)
}

/// The places, among these, in which no clsact filter of this process is left. Sends netlink
/// requests, which may wait for the RTNL lock.
#[must_use]
pub fn without_own(filters: Vec<(u32, Direction)>) -> Vec<(u32, Direction)> {
    let Ok(mut requests) = Requests::open() else { return filters };
    let with_clsact = requests.with_clsact().unwrap_or_default();
    let is_lost = |(ifindex, direction): &(u32, Direction)| {
        let there = requests.filters_at(*ifindex, *direction).unwrap_or_default();
        let has_hook = *direction == Direction::Ingress || with_clsact.contains(ifindex);
        !has_hook || !there.into_iter().any(|of| of.name.is_some_and(|name| is_own(&name)))
    };
    filters.into_iter().filter(is_lost).collect()
}

/// The hook by which vtepd's program has to be attached so that filters of other tools run first:
/// clsact if they use clsact.
#[must_use]
pub fn hook_behind(ifindex: u32, direction: Direction, own: Hook) -> Hook {
    if own == Hook::Clsact {
        return own;
    }
    let filters = Requests::open().and_then(|mut requests| requests.filters(ifindex, direction));
    let foreign = |filter: netlink::Filter| {
        filter.priority < CLSACT_PRIORITY && !is_own(&filter.name.unwrap_or(filter.kind))
    };
    if filters.unwrap_or_default().into_iter().any(foreign) { Hook::Clsact } else { own }
}
