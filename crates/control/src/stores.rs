//! What the sources have reported, one store for each kind of fact.

mod crowded;
pub(crate) mod epoch_map;
pub(crate) mod intern;
pub(crate) mod links;
pub(crate) mod overlay;
pub mod packet_filters;
pub(crate) mod policies;
pub(crate) mod reverse_paths;
pub(crate) mod route_table;
pub(crate) mod vteps;
