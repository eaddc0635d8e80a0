//! Merges the settings of a node with those of its group, its kind and the defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use experiment::units::Name;

use super::node::{Network, Settings, of_labels};
use super::value::{Result, expected, unsupported};
use super::{KINDS, env_file, supported};
use crate::error::TopologyError;
use crate::model::{Kind, Management, Node, Stage, StageSettings, is_vtepd};

/// What all nodes of a file have in common.
#[derive(Debug, Default)]
pub(super) struct Levels {
    /// The labels that ContainerLab gives to all containers.
    labels: BTreeMap<String, String>,
    /// The name of the fabric.
    lab: String,
    /// The directory of the lab.
    pub(super) directory: PathBuf,
    /// The management network, for the names of containers.
    management: Management,
    pub(super) defaults: Settings,
    pub(super) kinds: BTreeMap<String, Settings>,
    pub(super) groups: BTreeMap<String, Settings>,
}

impl Levels {
    /// Without settings.
    pub(super) fn new(
        lab: &Name,
        file: Option<&Path>,
        directory: PathBuf,
        management: Management,
    ) -> Self {
        let owner = ["SUDO_USER", "USER"].into_iter().find_map(|name| std::env::var(name).ok());
        let file = file.map(|file| file.display().to_string());
        let labels = [
            ("containerlab", Some(lab.to_string())),
            ("clab-owner", owner),
            ("clab-topo-file", file),
        ];
        let labels = labels.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let (labels, lab) = (labels.collect(), lab.to_string());
        Self { labels, lab, directory, management, ..Self::default() }
    }

    /// The name of a node's kind, and that of its group.
    fn kind_and_group(&self, own: &Settings) -> (Option<String>, Option<String>) {
        let of = |level: &Settings| (level.kind.clone(), level.node.group.clone());
        kind_and_group(
            of(own),
            of(&self.defaults),
            |group| self.groups.get(group)?.kind.clone(),
            |kind| self.kinds.get(kind)?.node.group.clone(),
        )
    }

    /// The labels that ContainerLab gives to the container of a node, by the names of its kind, its
    /// type and its group.
    fn labels(&self, name: &str, [kind, variant, group]: [&str; 3]) -> BTreeMap<String, String> {
        let directory = self.directory.join(name);
        let own = [
            ("clab-node-name", name),
            ("clab-node-longname", &self.management.container(&self.lab, name)),
            ("clab-node-kind", &kind.to_ascii_lowercase()),
            ("clab-node-type", variant),
            ("clab-node-group", group),
            ("clab-node-lab-dir", &directory.to_string_lossy()),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.labels.clone().into_iter().chain(own).collect()
    }

    /// The settings of a node with `links` ends of links. Also returns the keys that have no effect.
    pub(super) fn inherit(
        &self,
        name: &str,
        own: Settings,
        links: usize,
    ) -> Result<(Node, BTreeSet<&'static str>)> {
        let place = format!("topology.nodes.{name}.kind");
        let (kind_name, group_name) = self.kind_and_group(&own);
        let Some(kind_name) = kind_name else { return Err(TopologyError::Missing { place }) };
        let kind = supported(&kind_name).ok_or_else(|| unsupported(&place, KINDS))?;
        let group = group_name.as_ref().and_then(|name| self.groups.get(name));

        let mut all = Settings::default();
        let levels = [Some(&self.defaults), self.kinds.get(&kind_name), group];
        for level in levels.into_iter().flatten() {
            // As in ContainerLab, only a node's own count.
            if level.node.management.is_some() {
                all.missed.insert("mgmt-ipv4 of a kind, a group or the defaults");
            }
            if !level.node.aliases.is_empty() {
                all.missed.insert("aliases of a kind, a group or the defaults");
            }
            all.add(level.clone());
        }
        let (aliases, management) = (own.node.aliases.clone(), own.node.management);
        if kind == Kind::Bridge {
            all.missed.extend(own.of_containers());
        }
        all.add(own);
        all.node.group = group_name;
        if kind == Kind::Bridge {
            return Ok((bridge(all.node, all.network, all.startup_delay), all.missed));
        }
        let Settings { mut node, mut missed, mut labels, network, .. } = all;
        node.aliases = aliases;
        node.startup_delay = all.startup_delay.unwrap_or_default();
        // With `cap-add`, the file says what a container needs, and nothing is missed.
        if !all.privileged.unwrap_or(true) && !all.capabilities {
            missed.insert("privileged: false");
        }
        let has_eth0 = network.as_ref().is_none_or(|network| *network == Network::Bridge);
        node.management = has_eth0.then(|| management.unwrap_or(Ipv4Addr::UNSPECIFIED));
        if let Some(value) = node.sysctls.get_mut(NO_IPV6).filter(|value| *value != "0") {
            // ContainerLab switches IPv6 on in all nodes of kind linux.
            missed.insert("sysctls: net.ipv6.conf.all.disable_ipv6");
            "0".clone_into(value);
        }
        node.shares = network.and_then(Network::owner);
        let of_node = [Some(kind_name), all.variant, node.group.clone()];
        let of_node = of_node.map(Option::unwrap_or_default);
        labels.append(&mut self.labels(name, of_node.each_ref().map(String::as_str)));
        let mut env = env_file::read(&all.env_files)?;
        env.append(&mut node.env);
        env.extend(of_labels(labels));
        env.insert("CLAB_INTFS".to_owned(), links.to_string());
        node.env = env;
        let words: Vec<_> = all.entrypoint.iter().chain(&all.cmd).flatten().cloned().collect();
        node.vtepd = sidecar(name, &node, all.image.as_deref(), &words);
        if node.vtepd.is_none() {
            node.program = program(name, &node, all.entrypoint, all.cmd)?;
            if node.program.is_empty() && brings_program(&node, all.image.as_deref()) {
                missed.insert("image (lab starts no program of images; name it as cmd)");
            }
        }
        Ok((node, missed))
    }
}

/// The kind and the group of a node, from its own and from those of the defaults. As in ContainerLab, a
/// group may have the kind, and a kind the group.
pub(super) fn kind_and_group(
    own: (Option<String>, Option<String>),
    defaults: (Option<String>, Option<String>),
    of_group: impl Fn(&str) -> Option<String>,
    of_kind: impl Fn(&str) -> Option<String>,
) -> (Option<String>, Option<String>) {
    let of_group = |group: &Option<String>| of_group(group.as_ref()?);
    let kind = own.0.or_else(|| of_group(&own.1)).or_else(|| of_group(&defaults.1));
    let kind = kind.or(defaults.0);
    let group = own.1.or_else(|| of_kind(kind.as_ref()?)).or(defaults.1);
    (kind, group)
}

/// IPv6 is off with the value 1.
const NO_IPV6: &str = "net.ipv6.conf.all.disable_ipv6";

impl Settings {
    /// Adds the settings of the next level: lists and maps are joined, single values replaced.
    fn add(&mut self, level: Self) {
        self.network = level.network.or(self.network.take());
        self.entrypoint = level.entrypoint.or(self.entrypoint.take());
        self.cmd = level.cmd.or(self.cmd.take());
        self.image = level.image.or(self.image.take());
        self.variant = level.variant.or(self.variant.take());
        self.capabilities |= level.capabilities;
        self.privileged = level.privileged.or(self.privileged);
        self.startup_delay = level.startup_delay.or(self.startup_delay);
        self.env_files.extend(level.env_files);
        self.labels.extend(level.labels);
        self.missed.extend(level.missed);
        let (node, level) = (&mut self.node, level.node);
        node.hostname = level.hostname.or(node.hostname.take());
        for command in level.exec {
            // A command that two levels have runs once, as in ContainerLab.
            if !node.exec.contains(&command) {
                node.exec.push(command);
            }
        }
        node.env.extend(level.env);
        node.sysctls.extend(level.sysctls);
        for (stage, settings) in level.stages {
            node.stages.entry(stage).or_default().add(settings);
        }
        node.healthcheck = level.healthcheck.or(node.healthcheck.take());
        node.binds.retain(|bind| level.binds.iter().all(|newer| newer.target != bind.target));
        node.binds.extend(level.binds);
        node.tmpfs.extend(level.tmpfs);
        node.resolver = level.resolver.or(node.resolver.take());
        node.machine_pids |= level.machine_pids;
    }

    /// The keys that have an effect on containers only, of those that are set.
    fn of_containers(&self) -> impl Iterator<Item = &'static str> {
        let Self { entrypoint, cmd, env_files, node, .. } = self;
        let mut stages = node.stages.values();
        let keys = [
            ("entrypoint", entrypoint.is_some()),
            ("cmd", cmd.is_some()),
            ("env-files", !env_files.is_empty()),
            ("exec", !node.exec.is_empty()),
            ("binds", !node.binds.is_empty()),
            ("sysctls", !node.sysctls.is_empty()),
            ("tmpfs", !node.tmpfs.is_empty()),
            ("healthcheck", node.healthcheck.is_some()),
            ("stages (exec)", stages.any(StageSettings::has_commands)),
        ];
        keys.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key)
    }
}

/// A bridge: what it inherits for containers is not for it.
fn bridge(node: Node, network: Option<Network>, startup_delay: Option<u64>) -> Node {
    let without_commands = |(stage, settings): (Stage, StageSettings)| {
        (stage, StageSettings { wait_for: settings.wait_for, ..StageSettings::default() })
    };
    Node {
        kind: Kind::Bridge,
        group: node.group,
        shares: network.and_then(Network::owner),
        startup_delay: startup_delay.unwrap_or_default(),
        stages: node.stages.into_iter().map(without_commands).collect(),
        ..Node::default()
    }
}

/// Images of systems and tools, of which a node of `lab` needs no program; `any` stands for them.
const SYSTEMS: [&str; 14] = [
    "alpine",
    "almalinux",
    "any",
    "archlinux",
    "busybox",
    "centos",
    "debian",
    "fedora",
    "frr",
    "multitool",
    "netshoot",
    "network-multitool",
    "rockylinux",
    "ubuntu",
];

/// Whether the image of a node that is no router probably starts a program by itself.
fn brings_program(node: &Node, image: Option<&str>) -> bool {
    let is_router = node.binds.iter().any(|bind| bind.target.starts_with("/etc/frr"));
    let name = image.and_then(|image| image.rsplit('/').next()?.split([':', '@']).next());
    let is_own = node.kind == Kind::Linux && node.shares.is_none() && !is_router;
    is_own && name.is_some_and(|name| !name.is_empty() && !SYSTEMS.contains(&name))
}

/// The flags of vtepd, if the node runs it beside another node. `words` are its entry point and its
/// command.
fn sidecar(name: &str, node: &Node, image: Option<&str>, words: &[String]) -> Option<Vec<String>> {
    node.shares.as_ref()?;
    let named = image.is_some_and(is_vtepd)
        || name.starts_with("vtepd")
        || node.group.as_deref() == Some("vtepd");
    match words.split_first() {
        Some((program, flags)) if is_vtepd(program) => Some(flags.to_vec()),
        Some((first, _)) if !first.starts_with('-') => None,
        _ => named.then(|| words.to_vec()),
    }
}

/// The program of the node, from `entrypoint` and `cmd`.
fn program(
    name: &str,
    node: &Node,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
) -> Result<Vec<String>> {
    let options_only =
        cmd.as_ref().and_then(|words| words.first()).is_some_and(|word| word.starts_with('-'));
    if entrypoint.is_none() && options_only {
        // A node that shares a namespace needs no program of its own.
        if node.shares.is_some() {
            return Ok(Vec::new());
        }
        let why =
            "options of the program in the image, which lab does not know; name it as entrypoint";
        return Err(unsupported(&format!("topology.nodes.{name}.cmd"), why));
    }
    let key = if entrypoint.is_some() { "entrypoint" } else { "cmd" };
    let words: Vec<String> = entrypoint.into_iter().chain(cmd).flatten().collect();
    // Its log has the name of its file.
    if words.first().is_some_and(|program| Path::new(program).file_name().is_none()) {
        let place = format!("topology.nodes.{name}.{key}");
        return Err(expected(&place, "a program, as the name or the path of its file"));
    }
    Ok(words)
}
