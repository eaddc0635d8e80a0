//! The configuration of vtepd: a TOML file, and flags that override it.
//!
//! - `arguments`, `file`: the command line and the file, as they are written
//! - `probing`, `standalone`: parts of the configuration
//! - [`diff`]: what differs between two configurations, for a reload
//! - `words`: errors of the TOML reader in the words of this program

pub mod diff;

mod arguments;
mod file;
mod probing;
mod standalone;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::Address;
use bpf::MOST_WORKERS;
use control::{
    Datapath, FlowLabelSource, FpmListener, LearnLimits, Settings, StaleTime, VniSettings,
};
use path::Bins;
use tables::Rebalance;
use wire::Vni;
use worker::WorkerOptions;

use arguments::vni;
pub use arguments::{Arguments, DatapathChoice, HookChoice, Output};
use file::{File, LearningSection, VniSection};
pub use probing::Probing;
pub use standalone::{Access, AccessError, Owner, PortSummary, Standalone};

/// The complete configuration of a run of the daemon.
#[derive(Debug, Clone)]
pub struct Configuration {
    /// Settings of the control task.
    pub settings: Settings,
    /// VNIs with access ports of their own.
    pub standalone: Standalone,
    /// How programs are attached.
    pub hook: HookChoice,
    /// Whether RCU grace periods may be shortened while many programs are attached.
    pub expedited_rcu: bool,
    /// How long frames may wait for a worker that hangs before the kernel forwards later frames.
    pub stall_limit: Duration,
    /// Options of the workers.
    pub worker: WorkerOptions,
    /// The CPU of each worker. Empty if vtepd chooses them.
    pub cpus: Vec<usize>,
    /// The address and the permitted peers of the FPM listener.
    pub fpm: FpmListener,
    /// How paths are probed; `None` without a key.
    pub probing: Option<Probing>,
    /// The address on which metrics are served.
    pub metrics: SocketAddr,
    /// The address of the API; `None` turns it off.
    pub api: Option<Address>,
}

/// An error in the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The file cannot be read.
    #[error("the configuration file {path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not TOML, or has keys or values that are unknown.
    #[error("the configuration file {path} is wrong: {}", words::of(source))]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A value is out of its range.
    #[error("{place}: {problem}")]
    Value {
        /// The flag, or the file and the key in it.
        place: String,
        /// What is wrong with the value.
        problem: String,
    },
}

/// Default address of the metrics.
pub(crate) const METRICS_DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9472);

/// Default stall limit: how long frames may wait for a worker that hangs. On a busy machine a
/// thread may have to wait for tens of milliseconds.
pub(crate) const STALL_LIMIT: Duration = Duration::from_millis(200);
/// The stall limit of standalone VNIs, for which the kernel cannot forward instead. It is
/// effectively infinite.
const NOBODY_ELSE: Duration = Duration::from_secs(1 << 32);
const STALL_LIMITS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_secs(10);

/// How long routes of a lost FPM connection may be kept, in seconds. The upper bound is what FRR
/// allows for its own restart.
const STALE_TIMES: std::ops::RangeInclusive<u64> = 0..=3600;

impl Configuration {
    /// Reads the file, if there is one. Flags override it.
    ///
    /// # Errors
    /// When the file cannot be read or has an invalid value.
    pub fn load(arguments: &Arguments) -> Result<Self, ConfigurationError> {
        let file = arguments.config.as_deref().map_or_else(|| Ok(File::default()), read)?;
        let default = default_settings(&file, arguments)?;
        let learning = learning(&file)?;
        let vnis = vni_settings(&file, &default, arguments)?;
        check(&file, "entropy", &default, arguments)?;
        probing::check(&file, vnis.values().chain([&default]))?;
        let (include, exclude) = selection(&file, arguments)?;
        let seed = arguments.seed.or(file.entropy.seed).unwrap_or(0);
        let api_enabled = !arguments.no_api
            && (file.api.enabled.unwrap_or(true) || arguments.api_listen.is_some());
        let rebalance = match file.underlay.rebalance {
            Some(false) => Rebalance::Off,
            Some(true) | None => Rebalance::On,
        };
        let bypass = arguments.bridge_bypass
            || (file.takeover.bridge_bypass.unwrap_or(true) && !arguments.no_bridge_bypass);
        let standalone = Standalone::parse(&file.standalone).map_err(|(key, problem)| {
            ConfigurationError::Value { place: file.place(&key), problem }
        })?;
        // Without netdevs, FPM has nothing to announce.
        let fpm_enabled = standalone.is_empty()
            && !arguments.no_fpm
            && (file.fpm.enabled.unwrap_or(true) || arguments.fpm_listen.is_some());
        Ok(Self {
            settings: Settings {
                include,
                exclude,
                detached: BTreeSet::new(),
                seed,
                rebalance,
                bypass,
                route_per_frame: arguments
                    .route_per_frame
                    .unwrap_or(file.takeover.route_per_frame)
                    .into(),
                stale_time: stale_time(&file)?,
                learning,
                standalone: standalone.vnis.clone(),
                default,
                vnis,
            },
            stall_limit: if standalone.is_empty() { stall_limit(&file)? } else { NOBODY_ELSE },
            standalone,
            hook: arguments.hook.or(file.takeover.hook).unwrap_or_default(),
            expedited_rcu: arguments.expedited_rcu || file.takeover.expedited_rcu,
            cpus: cpus(arguments, &file, workers(arguments, &file)?)?,
            worker: WorkerOptions {
                workers: workers(arguments, &file)?,
                realtime: file.takeover.realtime.unwrap_or(true),
                gso: arguments.gso || (!arguments.no_gso && file.takeover.gso.unwrap_or(true)),
                busy_poll: arguments.busy_poll || file.takeover.busy_poll,
            },
            fpm: FpmListener {
                address: fpm_enabled.then(|| {
                    arguments.fpm_listen.or(file.fpm.listen).unwrap_or(fpm::DEFAULT_ADDRESS)
                }),
                accept_hazard: arguments.fpm_unsafe || file.fpm.accept_hazard,
                users: fpm_users(&file, arguments)?,
                ..FpmListener::default()
            },
            probing: probing::probing(&file)?,
            metrics: arguments.metrics_listen.or(file.metrics.listen).unwrap_or(METRICS_DEFAULT),
            api: api_enabled
                .then(|| arguments.api_listen.clone().or(file.api.listen).unwrap_or_default()),
        })
    }
}

/// The settings of VNIs that have no table of their own.
fn default_settings(file: &File, arguments: &Arguments) -> Result<VniSettings, ConfigurationError> {
    let mut default = VniSettings::default();
    let entropy = &file.entropy;
    apply(
        &mut default,
        &file.place("entropy"),
        entropy.policy.as_deref(),
        entropy.bins,
        entropy.source_ports.as_deref(),
    )?;
    default.flow_label = entropy.flow_label.map_or(default.flow_label, FlowLabelSource::from);
    default.datapath = file.takeover.datapath.map_or(default.datapath, Datapath::from);
    default.strict_vtep = file.takeover.strict_vtep || arguments.strict_vtep;
    default.addresses =
        limit(file, "learning.addresses", file.learning.addresses, default.addresses)?;
    override_by_flags(&mut default, arguments);
    Ok(default)
}

/// The settings of the tables `[vni.N]`.
fn vni_settings(
    file: &File,
    default: &VniSettings,
    arguments: &Arguments,
) -> Result<BTreeMap<Vni, VniSettings>, ConfigurationError> {
    let mut vnis = BTreeMap::new();
    for (number, section) in &file.vni {
        let key = format!("vni.{number}");
        let place = file.place(&key);
        let vni = vni(number)
            .map_err(|problem| ConfigurationError::Value { place: place.clone(), problem })?;
        let mut settings = default.clone();
        let VniSection {
            datapath,
            policy,
            bins,
            source_ports,
            flow_label,
            ttl,
            strict_vtep,
            addresses,
        } = section;
        apply(&mut settings, &place, policy.as_deref(), *bins, source_ports.as_deref())?;
        if *ttl == Some(0) {
            return Err(ConfigurationError::Value {
                place: format!("{place}.ttl"),
                problem: "a TTL is 1 to 255".to_owned(),
            });
        }
        settings.ttl = *ttl;
        settings.flow_label = flow_label.map_or(settings.flow_label, FlowLabelSource::from);
        settings.datapath = datapath.map_or(settings.datapath, Datapath::from);
        settings.strict_vtep = strict_vtep.unwrap_or(settings.strict_vtep);
        settings.addresses =
            limit(file, &format!("{key}.addresses"), *addresses, settings.addresses)?;
        override_by_flags(&mut settings, arguments);
        check(file, &key, &settings, arguments)?;
        if vnis.insert(vni, settings).is_some() {
            let problem = format!("another table has VNI {vni} already");
            return Err(ConfigurationError::Value { place, problem });
        }
    }
    Ok(vnis)
}

/// The VNIs to take over, `None` for all, and those to leave to the kernel.
fn selection(
    file: &File,
    arguments: &Arguments,
) -> Result<(Option<BTreeSet<Vni>>, BTreeSet<Vni>), ConfigurationError> {
    let mut include = match &file.takeover.vnis {
        Some(list) => Some(numbers(&file.place("takeover.vnis"), list)?),
        None => None,
    };
    if !arguments.vnis.is_empty() {
        include = Some(arguments.vnis.iter().copied().collect());
    }
    let mut exclude = numbers(&file.place("takeover.exclude"), &file.takeover.exclude)?;
    exclude.extend(&arguments.exclude);
    if let Some(both) = include.iter().flatten().find(|vni| exclude.contains(vni)) {
        return Err(ConfigurationError::Value {
            place: file.place("takeover.vnis (--vni) and takeover.exclude (--exclude)"),
            problem: format!("both name VNI {both}; take it out of one of them"),
        });
    }
    Ok((include, exclude))
}

fn read(path: &Path) -> Result<File, ConfigurationError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigurationError::Read { path: path.to_owned(), source })?;
    let file: File = toml::from_str(&text).map_err(|source| ConfigurationError::Parse {
        path: path.to_owned(),
        source: Box::new(source),
    })?;
    Ok(File { path: Some(path.to_owned()), ..file })
}

impl File {
    /// A key of the file, with the file's name.
    fn place(&self, key: &str) -> String {
        self.path
            .as_ref()
            .map_or_else(|| key.to_owned(), |path| format!("{}: {key}", path.display()))
    }
}

fn workers(arguments: &Arguments, file: &File) -> Result<usize, ConfigurationError> {
    let (place, given) = match arguments.workers {
        Some(given) => ("--workers".to_owned(), given),
        None => (file.place("takeover.workers"), file.takeover.workers.unwrap_or(1)),
    };
    if (1..=MOST_WORKERS).contains(&given) {
        return Ok(given);
    }
    Err(ConfigurationError::Value {
        place,
        problem: format!("there may be 1 to {MOST_WORKERS} workers"),
    })
}

/// The CPUs of this many workers, if they are given.
fn cpus(
    arguments: &Arguments,
    file: &File,
    workers: usize,
) -> Result<Vec<usize>, ConfigurationError> {
    let (place, given) = match arguments.cpus.as_slice() {
        [] => (file.place("takeover.cpus"), &file.takeover.cpus),
        _ => ("--cpus".to_owned(), &arguments.cpus),
    };
    if given.is_empty() || given.len() == workers {
        return Ok(given.clone());
    }
    let problem = format!("{} CPU(s) are given for {workers} worker(s)", given.len());
    Err(ConfigurationError::Value { place, problem })
}

fn stall_limit(file: &File) -> Result<Duration, ConfigurationError> {
    let limit = file.takeover.stall_limit_ms.map_or(STALL_LIMIT, Duration::from_millis);
    if STALL_LIMITS.contains(&limit) {
        return Ok(limit);
    }
    let (low, high) = (STALL_LIMITS.start().as_millis(), STALL_LIMITS.end().as_millis());
    let problem = format!("frames may wait for {low} to {high} ms");
    Err(ConfigurationError::Value { place: file.place("takeover.stall-limit-ms"), problem })
}

fn stale_time(file: &File) -> Result<StaleTime, ConfigurationError> {
    let Some(seconds) = file.fpm.stale_time else { return Ok(StaleTime::default()) };
    if STALE_TIMES.contains(&seconds) {
        return Ok(StaleTime(Duration::from_secs(seconds)));
    }
    let (low, high) = (STALE_TIMES.start(), STALE_TIMES.end());
    let problem = format!("what zebra said is kept for {low} to {high} s");
    Err(ConfigurationError::Value { place: file.place("fpm.stale-time"), problem })
}

/// The user that FRR's packages create.
const FRR: &str = "frr";
/// Stands for all users, and for other hosts.
const ANYBODY: &str = "anybody";

/// Which users may connect by FPM: root, and those that the flags or the file name. By default FRR's
/// user, which may not exist here.
fn fpm_users(file: &File, arguments: &Arguments) -> Result<fpm::Users, ConfigurationError> {
    let mut users = fpm::Users::default();
    let (place, named) = match (arguments.fpm_users.as_slice(), &file.fpm.users) {
        ([], None) => {
            users.named.extend(Owner::Name(FRR.to_owned()).id());
            return Ok(users);
        }
        ([], Some(named)) => (file.place("fpm.users"), named.as_slice()),
        (named, _) => ("--fpm-user".to_owned(), named),
    };
    for user in named {
        if matches!(user, Owner::Name(name) if name == ANYBODY) {
            users.anybody = true;
            continue;
        }
        let wrong = |problem| ConfigurationError::Value { place: place.clone(), problem };
        users.named.insert(user.id().map_err(wrong)?);
    }
    Ok(users)
}

/// Checks a limit on learned addresses or VTEPs.
fn limit(
    file: &File,
    key: &str,
    given: Option<usize>,
    default: usize,
) -> Result<usize, ConfigurationError> {
    let limit = given.unwrap_or(default);
    if limit <= LearnLimits::MAX {
        return Ok(limit);
    }
    let problem = format!("at most {} can be learned", LearnLimits::MAX);
    Err(ConfigurationError::Value { place: file.place(key), problem })
}

fn learning(file: &File) -> Result<LearnLimits, ConfigurationError> {
    let LearningSection { total, vteps, moves, .. } = file.learning;
    let default = LearnLimits::default();
    let limits = LearnLimits {
        total: limit(file, "learning.total", total, default.total)?,
        vteps: limit(file, "learning.vteps", vteps, default.vteps)?,
        moves: moves.unwrap_or(default.moves),
    };
    if limits.moves == 0 {
        let problem = "an address may move at least once in a second".to_owned();
        return Err(ConfigurationError::Value { place: file.place("learning.moves"), problem });
    }
    Ok(limits)
}

fn numbers(place: &str, list: &[u32]) -> Result<BTreeSet<Vni>, ConfigurationError> {
    let parse = |&number| {
        Vni::try_from(number).map_err(|error: wire::TypeError| ConfigurationError::Value {
            place: place.to_owned(),
            problem: error.to_string(),
        })
    };
    list.iter().map(parse).collect()
}

fn apply(
    settings: &mut VniSettings,
    place: &str,
    policy: Option<&str>,
    bins: Option<u16>,
    source_ports: Option<&str>,
) -> Result<(), ConfigurationError> {
    let wrong = |name: &str, problem: String| ConfigurationError::Value {
        place: format!("{place}.{name}"),
        problem,
    };
    if let Some(policy) = policy {
        settings.policy = policy
            .parse()
            .map_err(|error: path::UnknownPolicy| wrong("policy", error.to_string()))?;
    }
    if let Some(bins) = bins {
        settings.bins = Bins::try_from(bins).map_err(|error| wrong("bins", error.to_string()))?;
    }
    if let Some(ports) = source_ports {
        settings.source_ports = ports
            .parse()
            .map_err(|error: path::RangeError| wrong("source-ports", error.to_string()))?;
    }
    Ok(())
}

fn override_by_flags(settings: &mut VniSettings, arguments: &Arguments) {
    settings.policy = arguments.policy.unwrap_or(settings.policy);
    settings.bins = arguments.bins.unwrap_or(settings.bins);
    settings.source_ports = arguments.source_ports.unwrap_or(settings.source_ports);
    settings.flow_label = arguments.flow_label.map_or(settings.flow_label, FlowLabelSource::from);
    settings.datapath = arguments.datapath.map_or(settings.datapath, Datapath::from);
    settings.strict_vtep |= arguments.strict_vtep;
}

/// Checks that policy, bins and source ports fit together, before anything is attached.
fn check(
    file: &File,
    section: &str,
    settings: &VniSettings,
    arguments: &Arguments,
) -> Result<(), ConfigurationError> {
    let VniSettings { policy, bins, source_ports, .. } = *settings;
    let together =
        path::Settings { policy, bins, range: source_ports, ..path::Settings::default() };
    let Err(error) = path::Entropy::new(together) else { return Ok(()) };
    let flags = [
        ("--policy", arguments.policy.is_some()),
        ("--bins", arguments.bins.is_some()),
        ("--source-ports", arguments.source_ports.is_some()),
    ];
    let given: Vec<&str> =
        flags.iter().filter(|(_, given)| *given).map(|(flag, _)| *flag).collect();
    let key = file.place(&format!("{section}.bins"));
    let place = match (given.is_empty(), &file.path) {
        (true, _) => key,
        (false, Some(_)) => format!("{} with {key}", given.join(" ")),
        (false, None) => given.join(" "),
    };
    Err(ConfigurationError::Value { place, problem: error.to_string() })
}

#[cfg(test)]
mod reference;
#[cfg(test)]
pub(crate) mod tests;
