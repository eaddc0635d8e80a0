//! Other datapaths to compare vtepd with, if they are installed: Open vSwitch's userspace datapath,
//! and DPDK's testpmd, which forwards frames unchanged.
//!
//! Each runs as a child process in the leaf, with its files in a temporary directory. Instances of
//! the machine itself are not affected.
//!
//! ```text
//!  hp ─ br-int ─ vxlan1 ┄ br-phy ─ up1      Open vSwitch: br-phy has the VTEP's address
//!  hp ──────────────────────────── up1      testpmd
//! ```

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fabric::netns::NetnsError;
use fabric::{Namespace, Process, counters};

use crate::sender::Input;
use crate::topology::{STATIONS, UPLINK, remote_station};
use crate::{Daemon, Error, Sender, Testbed, Traffic};

/// Debian's package of Open vSwitch, and the programs that are used.
pub(crate) const OPEN_VSWITCH: (&str, &[&str]) = (
    "openvswitch-switch",
    &["ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-appctl"],
);
/// Debian's package of testpmd, and the program that is used.
pub(crate) const TESTPMD: (&str, &[&str]) = ("dpdk-dev", &["dpdk-testpmd"]);

/// The maximum MTU for AF_XDP on a veth link, because a frame has to fit in a page.
const MTU: u32 = 3000;
/// How long a datapath may take until it forwards, and the interval between two checks.
const START_LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The VTEP of the testbed's stations, and the MAC address of its gateway.
const VTEP: &str = "10.0.0.3";
const GATEWAY: &str = "02:ee:00:00:00:01";

/// Prepares a testbed for these datapaths: reduces the MTU of its links, and removes kernel VXLAN
/// from its leaf.
///
/// # Errors
/// If a command or a read in the namespace fails.
pub fn prepare(testbed: &Testbed) -> Result<(), Error> {
    let links = [
        (&testbed.host, "eth0"),
        (&testbed.leaf, "hp"),
        (&testbed.leaf, "up1"),
        (&testbed.peer, "down1"),
    ];
    for (namespace, link) in links {
        namespace.rtnl(|rtnl| rtnl.set_mtu(link, MTU))?;
    }
    remove_overlay(&testbed.leaf)
}

/// Removes the bridge and the VXLAN netdev of a leaf. The host port stays.
///
/// # Errors
/// If one of them does not exist.
pub fn remove_overlay(leaf: &Namespace) -> Result<(), Error> {
    leaf.rtnl(|rtnl| {
        rtnl.delete_link("vx0")?;
        rtnl.set_master("hp", None)?;
        rtnl.delete_link("br0")
    })?;
    Ok(())
}

/// The resources of a running datapath, dropped after its end.
#[derive(Debug)]
pub(crate) struct Resources {
    /// The database server of Open vSwitch.
    _database: Option<Process>,
    _folder: Folder,
}

/// Removes what an earlier datapath has left in the leaf. They are killed, because a busy one may
/// take long to end.
fn remove_leftovers(testbed: &Testbed) -> Result<(), Error> {
    let links = counters::read(&testbed.leaf)?;
    let leftovers = ["br-int", "br-phy", "ovs-netdev"].into_iter();
    let mut leftovers = leftovers.filter(|name| links.contains_key(*name));
    testbed.leaf.rtnl(|rtnl| {
        leftovers.try_for_each(|name| rtnl.delete_link(name))?;
        ["hp", "up1"].iter().try_for_each(|port| rtnl.reset_receive_path(port))
    })?;
    Ok(())
}

/// Starts Open vSwitch between the host port and the uplink, and waits until it forwards.
///
/// # Errors
/// If it does not forward, or cannot use such ports.
pub(crate) fn open_vswitch(testbed: &Testbed, xdp: bool) -> Result<Daemon, Error> {
    remove_leftovers(testbed)?;
    let folder = Folder::new(testbed)?;
    folder.run("ovsdb-tool", &["create", "conf.db"])?;
    let quiet = ["-vconsole:off", "-vsyslog:off"];
    let mut server =
        folder.command("ovsdb-server", &["conf.db", "--remote=punix:db", "--unixctl=db.ctl"]);
    let database = testbed.leaf.spawn(server.args(quiet))?;
    let mut switch = folder.command("ovs-vswitchd", &["unix:db", "--unixctl=switch.ctl"]);
    let mut process = testbed.leaf.spawn(switch.args(quiet).stderr(Stdio::piped()))?;
    let kind = if xdp { "afxdp" } else { "system" };
    let bridges = format!(
        "add-br br-phy -- set bridge br-phy datapath_type=netdev other-config:hwaddr={UPLINK} \
         -- add-br br-int -- set bridge br-int datapath_type=netdev \
         -- add-port br-phy up1 -- set interface up1 type={kind} \
         -- add-port br-int hp -- set interface hp type={kind} \
         -- add-port br-int vxlan1 -- set interface vxlan1 type=vxlan options:remote_ip={VTEP} options:key=1"
    );
    folder.vsctl(&bridges)?;
    for port in ["hp", "up1", "vxlan1"] {
        if let Some(error) = interface_error(&folder.vsctl(&format!("get interface {port} error"))?)
        {
            return Err(format!("Open vSwitch cannot use {port}: {error}").into());
        }
    }
    testbed.leaf.rtnl(|rtnl| {
        // Without a prefix route: the routes of the kernel stay on the uplink.
        rtnl.add_address_without_route("br-phy", "10.0.0.1/29")?;
        rtnl.set_up("br-phy", true)
    })?;
    folder.appctl(&["ovs/route/add", &format!("{VTEP}/32"), "br-phy"])?;
    folder.appctl(&["tnl/neigh/set", "br-phy", VTEP, GATEWAY])?;
    for station in (0..STATIONS).map(remote_station) {
        // Without an FDB entry, frames would be flooded.
        folder.appctl(&["fdb/add", "br-int", "vxlan1", "0", &station.to_string()])?;
    }
    await_forwarding(testbed, &mut process)?;
    Ok(Daemon::running(
        Resources { _database: Some(database), _folder: folder },
        process,
        &testbed.leaf,
    ))
}

/// Starts testpmd between the host port and the uplink, and waits until it forwards.
///
/// # Errors
/// If it does not forward, or cannot use such ports.
pub(crate) fn testpmd(testbed: &Testbed, xdp: bool) -> Result<Daemon, Error> {
    remove_leftovers(testbed)?;
    let folder = Folder::new(testbed)?;
    let driver = if xdp { "net_af_xdp" } else { "net_af_packet" };
    let system = "--no-huge -m 256 --no-shconf --no-pci --no-telemetry -l 0,1";
    let forwarding = "-- --forward-mode=io --auto-start --no-mlockall --total-num-mbufs=8192";
    let words =
        format!("{system} --vdev={driver}0,iface=hp --vdev={driver}1,iface=up1 {forwarding}");
    let mut command = folder.command("dpdk-testpmd", &words.split(' ').collect::<Vec<_>>());
    // testpmd ends when its standard input is closed.
    let mut process = testbed.leaf.spawn(command.stdin(Stdio::piped()).stderr(Stdio::piped()))?;
    await_forwarding(testbed, &mut process)?;
    Ok(Daemon::running(Resources { _database: None, _folder: folder }, process, &testbed.leaf))
}

fn await_forwarding(testbed: &Testbed, process: &mut Process) -> Result<(), Error> {
    let traffic = Traffic { input: Input::Host, length: 64, queue_pairs: 1, bursts: false };
    let mut sender = Sender::new(testbed, traffic, true)?;
    let (before, start) = (testbed.sent_unchanged()?.packets, Instant::now());
    while testbed.sent_unchanged()?.packets == before {
        let ended = process.try_wait().map_err(NetnsError::from)?.is_some();
        if ended || start.elapsed() > START_LIMIT {
            return Err(
                format!("the datapath does not forward: {}", kill_and_read_error(process)).into()
            );
        }
        sender.send_some(0);
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Kills the process and returns the last line of its standard error.
fn kill_and_read_error(process: &mut Process) -> String {
    let mut stderr_text = String::new();
    if let Some(child) = process.child_mut()
        && child.kill().is_ok()
        && let Some(stderr) = &mut child.stderr
    {
        // An error leaves the text incomplete or empty.
        let _ = stderr.read_to_string(&mut stderr_text);
    }
    stderr_text.lines().last().unwrap_or("no message").to_owned()
}

/// The text of an interface's column `error`, if it is set.
fn interface_error(column: &str) -> Option<&str> {
    let text = column.trim().trim_matches('"');
    (text != "[]" && !text.is_empty()).then_some(text)
}

/// The directory of a datapath's files. Dropping the value deletes it.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new(testbed: &Testbed) -> Result<Self, Error> {
        let path = std::env::temp_dir().join(testbed.leaf.name());
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    /// A command that uses this directory instead of the system's, without output.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.0);
        for variable in
            ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR", "RUNTIME_DIRECTORY"]
        {
            command.env(variable, &self.0);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs a program and returns its standard output.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, Error> {
        let mut command = self.command(program, arguments);
        let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let stderr_text = String::from_utf8_lossy(&output.stderr);
        Err(format!("{program} {}: {}", arguments.join(" "), stderr_text.trim()).into())
    }

    /// Runs `ovs-vsctl`. `words` are separated by spaces.
    fn vsctl(&self, words: &str) -> Result<String, Error> {
        let words = words.split_ascii_whitespace();
        self.run(
            "ovs-vsctl",
            &["--db=unix:db", "--retry", "--timeout=10"]
                .into_iter()
                .chain(words)
                .collect::<Vec<_>>(),
        )
    }

    fn appctl(&self, arguments: &[&str]) -> Result<String, Error> {
        // `ovs-appctl` treats a target with a slash as a socket path.
        let socket = self.0.join("switch.ctl");
        self.run(
            "ovs-appctl",
            &[&["-t", &*socket.to_string_lossy(), "--timeout=10"], arguments].concat(),
        )
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The processes have ended.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_without_an_error_has_an_empty_set() {
        assert_eq!(interface_error("[]\n"), None);
        let error = "could not open network device hp (Operation not supported)";
        assert_eq!(interface_error(&format!("\"{error}\"\n")), Some(error));
    }
}
