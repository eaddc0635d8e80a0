//! One run of the daemon: from reading the namespace to giving everything back to the kernel.

use std::error::Error;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use ::api::Address;
use bpf::Hook;
use bpf::foreign_programs::{self, Foreign};
use configuration::{Arguments, Configuration, HookChoice, Output, diff};
use control::{
    ByDefault, Event, Journal, Namespace, NoNetdev, Request, Settings, State, Status, Update,
};
use netlink::{Direction, Kernel};
use pipeline::Pins;
use sd_notify::NotifyState;
use tables::SteeringPlan;
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use worker::{Features, affinity};

use crate::applier::Applier;
use crate::guard::{self, Guarded, Watched};
use crate::handle::Handle;
use crate::instance::{self, Instance};
use crate::packet_rules::PacketRules;
use crate::pinning::Shared;
use crate::probing::Opened;
use crate::takeover::{SteeringOptions, Takeover, TakeoverError};
use crate::{access_ports, api, dry_run, filter_watch, listeners, own_links};

/// The error that ended the daemon. Its text is shown to the user.
pub(crate) type Failure = Box<dyn Error>;

/// Capacity of the queue of requests from workers and signals to the control task.
const REQUESTS: usize = 1024;

/// Runs until SIGTERM or SIGINT, or until another vtepd replaces this one.
///
/// # Errors
/// When something is missing at the start, or fails later. Everything that was taken over is given
/// back to the kernel in any case.
pub(crate) async fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut successor = None;
    let ended = run_until_replaced(arguments, &mut successor).await;
    // The successor waits for this connection to close. By now everything that it needs is free.
    drop(successor);
    ended
}

async fn run_until_replaced(
    arguments: &Arguments,
    successor: &mut Option<UnixStream>,
) -> Result<(), Failure> {
    let configuration = Configuration::load(arguments)?;
    let (features, untried) = probe(arguments.dry_run)?;
    let hook = hook(configuration.hook, features)?;
    let kernel = Kernel::open()?;
    hide_hash()?;
    let mut state = State::new(configuration.settings.clone(), Namespace::read());
    let rules = PacketRules::read();
    state.set_packet_filters(rules.filters());
    if arguments.dry_run {
        let update = control::survey(&mut state, &kernel).await?;
        return dry_run(&configuration, &update, (hook, features), untried, arguments.output);
    }
    lacks(features).for_each(|lack| tracing::warn!("{lack}"));
    let sources = Sources { kernel, state, rules };
    forward(arguments, configuration, (hook, features), sources, successor).await
}

/// Hosts choose keys of tables, so their hash has a secret.
fn hide_hash() -> Result<(), Failure> {
    let random = || {
        getrandom::u64()
            .map_err(|error| format!("the kernel has no random numbers for tables: {error}"))
    };
    tables::hash::set_key([random()?, random()?]);
    Ok(())
}

/// The features of the kernel. In a dry run without privileges, all features and a note.
fn probe(dry_run: bool) -> Result<(Features, Option<String>), Failure> {
    match Features::probe() {
        Ok(features) => Ok((features, None)),
        Err(error) if dry_run => {
            let note = format!(
                "what this kernel can do could not be tried ({error}): this supposes that it can do everything"
            );
            Ok((Features::ALL, Some(note)))
        }
        Err(error) => Err(format!(
            "what this kernel can do cannot be found out: {error}; vtepd needs CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW and \
             CAP_SYS_ADMIN (root), and /proc"
        )
        .into()),
    }
}

/// Prints what would be taken over, and why the rest would not.
fn dry_run(
    configuration: &Configuration,
    update: &Update,
    (hook, features): (Hook, Features),
    untried: Option<String>,
    output: Output,
) -> Result<(), Failure> {
    let running = instance::running().map(|pid| {
        format!(
            "a vtepd ({}) runs in this network namespace already, by settings of its own: this is what another one \
             would do once that is stopped",
            instance::process(pid)
        )
    });
    // A running vtepd occupies what these checks test, so they would fail.
    let (mut obstacles, mut closed): (Vec<String>, Vec<String>) = Default::default();
    if running.is_none() {
        obstacles.extend(configuration.standalone.obstacles().iter().map(ToString::to_string));
        closed.extend(closed_listeners(configuration));
    }
    let would_not_start = obstacles.len();
    let obstacles = obstacles.into_iter().map(|obstacle| format!("it would not start: {obstacle}"));
    let closed =
        closed.into_iter().map(|reason| format!("it would forward all the same: {reason}"));
    let missing = update.missing.iter().map(|vni| NoNetdev(*vni).to_string());
    let foreign = foreign(&update.plan);
    let by_default = ByDefault::of(&update.by_default).map(|warning| warning.to_string());
    let notes = running
        .into_iter()
        .chain(untried)
        .chain(obstacles)
        .chain(closed)
        .chain(missing)
        .chain(by_default)
        .chain(lacks(features))
        .chain(foreign.iter().map(ToString::to_string));
    print(&dry_run::report(update, hook, notes.collect(), output))?;
    match would_not_start {
        0 => Ok(()),
        _ => Err("it would not start: the notes say why".into()),
    }
}

/// What the control task reads, and what it has read so far.
struct Sources {
    kernel: Kernel,
    state: State,
    rules: PacketRules,
}

/// Sets up everything that forwards. `ended` is notified when a worker ends.
fn take_over(
    configuration: &Configuration,
    (hook, features): (Hook, Features),
    requests: &mpsc::Sender<Request>,
    ended: mpsc::Sender<()>,
    pinning: Option<&Arc<Shared>>,
) -> Result<Takeover, Failure> {
    let (stall_limit, mut worker) = (configuration.stall_limit, configuration.worker);
    let access = configuration.standalone.open(&configuration.settings, worker.workers)?;
    let (workers, available) =
        (access.shares.len(), std::thread::available_parallelism().map_or(1, usize::from));
    if workers > available {
        tracing::warn!(
            "{workers} workers have {available} CPU(s): they take each other's time, and run as ordinary threads"
        );
        // At real-time priority, workers that share a CPU would leave no time to other threads.
        worker.realtime = false;
    }
    let cpus = affinity::choose(workers, &configuration.cpus)?;
    tracing::debug!(?cpus, "each worker stays on a CPU");
    let socket = configuration.api.clone();
    let expedited_rcu = configuration.expedited_rcu;
    let pins = Pins::new(pinning.cloned().map(|shared| shared as _));
    let takeover = Takeover::prepare(
        SteeringOptions { hook, features, stall_limit, expedited_rcu },
        (worker, &pins),
        &cpus,
        access,
        requests,
        move || confine(socket.as_ref(), expedited_rcu),
        // The end of any worker ends the daemon.
        move || {
            let _ = ended.try_send(());
        },
    )?;
    if let Some(shared) = pinning {
        shared.add_offloaded(takeover.steering().pinned_usage().map_err(TakeoverError::Steering)?);
    }
    Ok(takeover)
}

async fn forward(
    arguments: &Arguments,
    mut configuration: Configuration,
    (hook, features): (Hook, Features),
    Sources { kernel, state, rules }: Sources,
    successor: &mut Option<UnixStream>,
) -> Result<(), Failure> {
    let guarded = Arc::new(Guarded::default());
    let mut stop_requested = guard::answer_signals(Arc::clone(&guarded))?;
    let instance =
        if arguments.replace { Instance::replace().await? } else { Instance::lock().await? };
    let metrics_address = configuration.metrics;
    let metrics = listeners::metrics(metrics_address);
    let api_socket = configuration.api.as_ref().map(listeners::api);
    let mut hangup = signal(SignalKind::hangup())?;

    let (requests, wanted) = mpsc::channel(REQUESTS);
    let (worker_ends, mut worker_ended) = mpsc::channel::<()>(1);
    let probing = configuration.probing.as_ref().map(Opened::open).transpose()?;
    let shared = probing.as_ref().map(|opened| Arc::clone(&opened.shared));
    let takeover =
        take_over(&configuration, (hook, features), &requests, worker_ends, shared.as_ref())?;
    let (status, seen) = watch::channel(Status::default());
    let (ports, gso) = (configuration.standalone.port_summaries(), configuration.worker.gso);
    let handle = Arc::new(Handle::new(
        takeover,
        ports,
        hook,
        features,
        (gso, shared),
        seen,
        Arc::clone(&guarded),
    ));
    let realtime = configuration.worker.realtime;
    let _probing = probing.map(|opened| opened.start(Arc::clone(&handle), realtime)).transpose()?;

    let (refused, mut refusal) = mpsc::channel(1);
    let journal = Journal::default();
    if configuration.fpm.address.is_none() {
        tracing::info!("FPM is off: everything comes from rtnetlink");
    }
    watch_control(&handle, &guarded, &kernel, (&requests, &journal), configuration.stall_limit)?;
    let mut applier = Applier::new(Arc::clone(&handle), journal.clone(), metrics_address, refused);
    let (fpm, log) = (configuration.fpm.clone(), journal.clone());
    let control = control::run(state, kernel, fpm, wanted, status, log, |update, diff| {
        applier.apply(update, diff);
    });
    // Dropped at the end of this function, before the successor is notified: the address is free by
    // then.
    let _metrics = listeners::serve_metrics(metrics_address, metrics, &handle)?;
    let api_address = configuration.api.clone();
    let api =
        api::serve(api_address, api_socket, Arc::clone(&handle), requests.clone(), journal.clone());
    let filters = filter_watch::watch(Arc::clone(&handle), requests.clone(), rules);
    let own_links = own_links::watch(Arc::clone(&handle), journal.clone());
    let access_ports =
        access_ports::watch(Arc::clone(&handle), configuration.standalone.clone(), journal.clone());
    tokio::pin!(control, api, filters, own_links, access_ports);
    let ended: Result<(), Failure> = loop {
        tokio::select! {
            result = &mut control => break result.map_err(Into::into),
            result = &mut api => break result,
            () = &mut filters => {}
            () = &mut access_ports => {}
            error = &mut own_links => break Err(error.into()),
            error = refusal.recv() => break error.map_or(Ok(()), |error| Err(error.into())),
            _ = worker_ended.recv() => break Ok(()),
            _ = stop_requested.recv() => break Ok(()),
            stream = instance.successor() => {
                tracing::info!("another vtepd takes over from this one");
                *successor = Some(stream);
                break Ok(());
            }
            () = hung_up(&mut hangup) => {
                apply_reload(arguments, &mut configuration, &handle, &requests, &journal).await;
            }
        }
    };
    ended.and(stop(&handle))
}

/// Has a guard give everything to the kernel while the control task hangs.
fn watch_control(
    handle: &Handle,
    guarded: &Arc<Guarded>,
    kernel: &Kernel,
    (requests, journal): (&mpsc::Sender<Request>, &Journal),
    stall_limit: Duration,
) -> Result<(), Failure> {
    let Some(kill_switch) = handle.kill_switch() else { return Ok(()) };
    let watched = Watched {
        events: kernel.waiting()?,
        requests: requests.clone(),
        status: handle.status.clone(),
        runtime: tokio::runtime::Handle::current(),
        journal: journal.clone(),
    };
    guard::watch_control(guarded, kill_switch, watched, stall_limit)?;
    Ok(())
}

/// Reads the configuration again, and has the control task use the new settings.
async fn apply_reload(
    arguments: &Arguments,
    configuration: &mut Configuration,
    handle: &Handle,
    requests: &mpsc::Sender<Request>,
    journal: &Journal,
) {
    match reload(arguments, configuration) {
        Ok(settings) => {
            handle.configured();
            let _ = requests.send(Request::Reload(Box::new(settings))).await;
        }
        Err(reason) => {
            tracing::error!("{reason}");
            journal.write(Event::Warning(reason.clone()));
            handle.set_not_configured(Some(reason));
        }
    }
}

/// Gives everything back to the kernel.
fn stop(handle: &Handle) -> Result<(), Failure> {
    notify_service_manager(&[NotifyState::Stopping]);
    if handle.is_engaged() {
        tracing::info!(
            "{}",
            if handle.access.is_empty() {
                "everything goes back to the kernel"
            } else {
                "the access ports are let go"
            }
        );
    }
    handle.stop().map_err(Into::into)
}

/// Drops privileges that are not needed after the start. What this kernel cannot restrict is logged
/// and stays.
fn confine(api: Option<&Address>, expedited_rcu: bool) {
    let socket = match api {
        Some(Address::Path(path)) => Some(path.as_path()),
        Some(Address::Abstract(_)) | None => None,
    };
    for (what, given_up) in [
        ("capabilities", bpf::confine::capabilities()),
        ("changes of files (landlock)", bpf::confine::files(socket, expedited_rcu)),
        ("system calls (seccomp)", bpf::confine::system_calls()),
    ] {
        match given_up {
            Ok(()) => tracing::debug!("given up: {what} that are not needed"),
            Err(error) => tracing::info!("this kernel does not let vtepd give up {what}: {error}"),
        }
    }
}

/// Why listeners could not be opened. Listeners that could be opened are closed again.
fn closed_listeners(configuration: &Configuration) -> Vec<String> {
    let metrics = listeners::metrics(configuration.metrics).err();
    let api = configuration.api.as_ref().map(listeners::api).and_then(Result::err);
    let fpm = configuration.fpm.address;
    let fpm =
        fpm.map(|address| fpm::Server::bind(address, fpm::Users::default())).and_then(Result::err);
    [metrics, api, fpm.map(|error| error.to_string())].into_iter().flatten().collect()
}

/// Notifies the service manager. Without `NOTIFY_SOCKET` this does nothing (sd_notify(3)).
pub(crate) fn notify_service_manager(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("the service manager was not notified: {error}");
    }
}

/// Prints to standard output. A closed pipe (`vtepd --dry-run | head -1`) is no error.
fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(terminal::escape_lines(text).as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

async fn hung_up(signal: &mut Signal) {
    if signal.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

fn hook(choice: HookChoice, features: Features) -> Result<Hook, Failure> {
    match choice {
        HookChoice::Tcx if !features.tcx => {
            Err("this kernel has no tcx links (Linux 6.6 brought them); use --hook clsact or --hook auto"
                .into())
        }
        HookChoice::Auto if !features.tcx => Ok(Hook::Clsact),
        HookChoice::Tcx | HookChoice::Auto => Ok(Hook::Tcx),
        HookChoice::Clsact => Ok(Hook::Clsact),
    }
}

fn lacks(features: Features) -> impl Iterator<Item = String> {
    features.lacks().into_iter().map(|lack| format!("this kernel: {lack}"))
}

/// Reads the configuration again and returns the new settings. With an error nothing changes.
fn reload(arguments: &Arguments, running: &mut Configuration) -> Result<Settings, String> {
    let read = match &arguments.config {
        Some(path) => format!("{} was read again", path.display()),
        None => "there is no configuration file to read again (vtepd was started without --config)"
            .to_owned(),
    };
    match Configuration::load(arguments) {
        Ok(configuration) => {
            let changes = diff::between(running, &configuration);
            for change in &changes {
                tracing::info!("{change}");
            }
            tracing::info!(
                "{read}: {}",
                if changes.is_empty() { "nothing changed" } else { "changes are above" }
            );
            // Settings outside of `settings` apply at the start only, so `running` keeps their old
            // values.
            running.settings = configuration.settings.clone();
            Ok(configuration.settings)
        }
        Err(error) => Err(format!("the reload failed: {error}; the configuration stays as it was")),
    }
}

/// Programs of other software at the hooks where the plan attaches programs.
pub(crate) fn foreign(plan: &SteeringPlan) -> Vec<Foreign> {
    let uplinks = plan
        .uplinks
        .iter()
        .flat_map(|uplink| foreign_programs::find(uplink.ifindex, Direction::Ingress));
    uplinks
        .chain(
            plan.vnis
                .keys()
                .filter_map(|source| source.netdev())
                .flat_map(|ifindex| foreign_programs::find(ifindex, Direction::Egress)),
        )
        .collect()
}
