//! Selects the fabric that a command applies to.

use std::error::Error;

use experiment::units::Name;
use fabric::Fabric;
use traffic::completions::Teller;

/// Opens the fabric of this name; without a name, the only one that is running.
pub(super) fn open(name: Option<&Name>) -> Result<Fabric, Box<dyn Error>> {
    if let Some(name) = name {
        return Ok(Fabric::open(name)?);
    }
    match Fabric::list().as_slice() {
        [] => Err("no fabric is running; start one with 'lab up FILE'".into()),
        [name] => Ok(Fabric::open(name)?),
        names => {
            let names: Vec<&str> = names.iter().map(Name::as_str).collect();
            Err(format!("several fabrics are running ({}): name one of them", names.join(", "))
                .into())
        }
    }
}

/// What tells live pages how long traffic from a node of the fabric took.
pub(super) fn teller(node: Option<&String>, name: Option<&Name>) -> Option<Teller> {
    let fabric = node.and_then(|_| open(name).ok())?;
    Some(Teller::of(fabric.name()))
}
