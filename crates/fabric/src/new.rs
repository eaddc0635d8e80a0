//! Writes the files of a leaf-spine fabric: a ContainerLab topology, and FRR's configuration of each
//! router. They have the form of the topologies in `deploy/containerlab`.
//!
//! - [`Plan`]: what is asked for
//! - `layout`: names, addresses and links of the nodes
//! - `routers`: the configuration of FRR; `yaml`: the topology file

mod layout;
mod plan;
mod routers;
mod yaml;

use std::io;
use std::path::{Path, PathBuf};

use experiment::units::Name;
use serde::Serialize;

use crate::owner::Folder;
use layout::Layout;

pub use plan::Plan;

/// The most leaves, spines or hosts in all sites together. Each has a number in one byte of its
/// address.
pub const MOST: usize = 250;
/// The most routers. Each runs four processes of FRR on this machine.
pub const MOST_ROUTERS: usize = 128;
/// The most sites.
pub const MOST_SITES: usize = 8;

/// A fabric could not be written.
#[derive(Debug, thiserror::Error)]
pub enum NewError {
    /// The fabric would be too large.
    #[error("{what}: {number} is more than {most}")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How many.
        number: usize,
        /// The limit.
        most: usize,
    },
    /// Something has to be there at least once.
    #[error("a fabric needs at least {least} {what}")]
    TooSmall {
        /// What there is too little of.
        what: &'static str,
        /// The limit.
        least: usize,
    },
    /// The directory has files.
    #[error("{} is not empty: name another directory, or empty it", .0.display())]
    NotEmpty(PathBuf),
    /// A file could not be written.
    #[error("cannot write {}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Written {
    /// The name of the fabric.
    pub name: Name,
    /// The topology file.
    pub topology: PathBuf,
    /// The number of leaves, spines and hosts, and of links between them.
    pub leaves: usize,
    /// The number of spines.
    pub spines: usize,
    /// The number of hosts.
    pub hosts: usize,
    /// The number of links; a circuit between sites is one.
    pub links: usize,
    /// The number of equal paths between two leaves of a site, and of different sites.
    pub paths: Vec<usize>,
}

impl Plan {
    /// Checks the numbers.
    fn check(&self) -> Result<(), NewError> {
        let least = [
            ("sites", self.sites, 1),
            ("spines", self.spines, 1),
            ("hosts at each leaf", self.hosts, 1),
            ("leaves", self.leaves.saturating_mul(self.sites), 2),
        ];
        for (what, number, least) in least {
            if number < least {
                return Err(NewError::TooSmall { what, least });
            }
        }
        let routers = self.leaves.saturating_add(self.spines).saturating_mul(self.sites);
        let hosts = self.leaves.saturating_mul(self.sites).saturating_mul(self.hosts);
        let most = [
            ("sites", self.sites, MOST_SITES),
            ("leaves and spines", routers, MOST_ROUTERS),
            ("hosts", hosts, MOST),
        ];
        for (what, number, most) in most {
            if number > most {
                return Err(NewError::TooLarge { what, number, most });
            }
        }
        Ok(())
    }

    /// The files, by their paths below the directory.
    ///
    /// # Errors
    /// [`NewError::TooLarge`], [`NewError::TooSmall`].
    pub fn files(&self) -> Result<Vec<(PathBuf, String)>, NewError> {
        self.check()?;
        let layout = Layout::new(self);
        let mut files = vec![
            (self.topology_file(), yaml::topology(self, &layout)),
            ("daemons".into(), routers::daemons(false)),
            ("daemons.fpm".into(), routers::daemons(true)),
            ("vtysh.conf".into(), "service integrated-vtysh-config\n".to_owned()),
        ];
        for router in &layout.routers {
            files.push((format!("{}.conf", router.name).into(), routers::frr(self, router)));
        }
        Ok(files)
    }

    /// Writes the files into a directory, which is made if it does not exist.
    ///
    /// # Errors
    /// [`NewError`]. Nothing is overwritten.
    pub fn write(&self, directory: &Path) -> Result<Written, NewError> {
        let files = self.files()?;
        let write_error = |path: &Path| {
            let path = path.to_owned();
            |source| NewError::Write { path, source }
        };
        let folder = Folder::open(directory).map_err(write_error(directory))?;
        if !folder.is_empty().map_err(write_error(directory))? {
            return Err(NewError::NotEmpty(directory.to_owned()));
        }
        for (name, text) in files {
            folder.write(&name, text.as_bytes()).map_err(write_error(&directory.join(name)))?;
        }
        let layout = Layout::new(self);
        let mut paths = vec![self.spines];
        if self.sites > 1 {
            paths.push(self.spines * self.spines);
        }
        Ok(Written {
            name: self.name.clone(),
            topology: directory.join(self.topology_file()),
            leaves: self.sites * self.leaves,
            spines: self.sites * self.spines,
            hosts: layout.hosts.len(),
            links: layout.links(),
            paths,
        })
    }

    fn topology_file(&self) -> PathBuf {
        format!("{}.clab.yml", self.name).into()
    }
}

#[cfg(test)]
mod tests;
