//! Nodes are like containers: what they write is theirs, and files for ContainerLab come up as they
//! do there.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use experiment::units::Name;
use fabric::Fabric;
use fabric::process::{Identity, wait_until};
use fabric::topology::Topology;
use root_test::root_test;

/// A fabric of two nodes, `one` and `two`, with a link, and its directory.
struct Lab {
    fabric: Fabric,
    directory: PathBuf,
}

impl Lab {
    /// `nodes` are lines of the topology's mapping of nodes, `links` more links.
    fn up(story: &str, nodes: &str, links: &str, files: &[(&str, &str)]) -> Self {
        let name: Name = format!("like-{story}{}", std::process::id()).parse().unwrap();
        let directory = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&directory).unwrap();
        for (file, text) in files {
            std::fs::write(directory.join(file), text).unwrap();
        }
        let text = format!(
            "name: like\ntopology:\n  defaults: {{kind: linux, image: any}}\n  nodes:\n{nodes}  \
             links:\n    - endpoints: ['one:eth1', 'two:eth1']\n{links}"
        );
        let topology = Topology::parse(&text, &directory, |_| None).unwrap();
        let fabric = Fabric::up(topology, Some(&name), &|_| Ok(())).unwrap();
        Self { fabric, directory }
    }

    fn run(&self, node: &str, line: &str) -> String {
        let node = self.fabric.node(node).unwrap();
        node.run(&["sh", "-c", line]).unwrap().trim().to_owned()
    }

    fn down(self) {
        let name = self.fabric.name().to_string();
        self.fabric.down().unwrap();
        std::fs::remove_dir_all(self.directory).unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&name), "{mounts}");
        assert!(!Path::new("/run/vtepd-lab").join(name).exists());
    }
}

#[root_test]
fn what_a_node_writes_is_its_own_and_goes_with_it() {
    let mark = format!("/var/tmp/like-{}", std::process::id());
    let temporary = std::env::temp_dir().join(format!("like-mark-{}", std::process::id()));
    let (here, temporary) = (Path::new(&mark), temporary.as_path());
    let nodes =
        format!("    one: {{exec: ['sh -c \"echo one > {mark}; rm /etc/hosts\"']}}\n    two:\n");
    let lab = Lab::up("own", &nodes, "", &[]);
    assert_eq!(lab.run("one", &format!("cat {mark}")), "one");
    // Another process of the node, `/run`, and a temporary file.
    for path in [mark.as_str(), "/run/like-mark", temporary.to_str().unwrap()] {
        lab.run("one", &format!("echo later >> {path}"));
        assert!(lab.run("one", &format!("cat {path}")).ends_with("later"), "{path}");
        assert!(!Path::new(path).exists(), "{path} is the machine's");
        assert_eq!(lab.run("two", &format!("test -e {path} || echo none")), "none", "{path}");
    }
    assert!(Path::new("/etc/hosts").exists());
    lab.down();
    assert!(!here.exists() && !temporary.exists());
}

#[root_test]
fn a_node_has_its_own_host_name() {
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let lab = Lab::up("name", "    one:\n    two: {hostname: second}\n", "", &[]);
    assert_eq!(lab.run("one", "hostname; cat /etc/hostname"), "one\none");
    assert_eq!(lab.run("two", "uname -n"), "second");
    assert_eq!(lab.run("two", "cat /proc/sys/net/ipv4/ip_forward"), "1");
    lab.down();
    assert_eq!(std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap(), machine);
}

#[root_test]
fn names_of_nodes_are_addresses_of_the_management_network() {
    let nodes = "    one: {aliases: [first.example]}\n    two: {hostname: second}\n    \
                 beside: {network-mode: 'container:one'}\n    alone: {network-mode: none}\n";
    let lab = Lab::up("mgmt", nodes, "", &[]);
    let own = |address: &str| format!("eth0 UP {address}/24");
    let shown = "ip -4 -br address show dev eth0 | sed 's/@[^ ]*//; s/  */ /g; s/ $//'";
    assert_eq!(lab.run("one", "hostname -i"), "172.20.20.2");
    assert_eq!(lab.run("one", shown), own("172.20.20.2"));
    assert_eq!(
        lab.run("two", &format!("hostname -i; {shown}")),
        format!("172.20.20.3\n{}", own("172.20.20.3"))
    );
    let long = format!("clab-{}-two", lab.fabric.name());
    for name in ["two", &long] {
        let command =
            format!("getent hosts {name} | cut -d' ' -f1; ping -n -q -c 1 -w 5 {name} >/dev/null");
        for node in ["one", "beside"] {
            assert_eq!(lab.run(node, &command), "172.20.20.3", "{name} at {node}");
        }
    }
    assert!(lab.run("two", "ping -n -c 1 -w 5 first.example").contains("(172.20.20.2)"));
    // It leads nowhere else, and is quiet.
    let routes = lab.run("one", "ip route; ip -6 address show dev eth0");
    assert_eq!(routes, "172.20.20.0/24 dev eth0 proto kernel scope link src 172.20.20.2");
    assert_eq!(lab.run("one", "cat /proc/sys/net/ipv6/conf/default/disable_ipv6"), "0");
    let links = "ls /sys/class/net; getent hosts alone; getent hosts two || echo none";
    assert_eq!(lab.run("alone", links), "lo\n127.0.1.1       alone\nnone");
    let between = format!("lab-{}-.mgmt", lab.fabric.name());
    assert!(fabric::Namespace::open(&between).is_ok());
    lab.down();
    assert!(fabric::Namespace::open(&between).is_err());
}

#[root_test]
fn a_node_does_not_have_the_environment_of_the_caller() {
    let lab = Lab::up("env", "    one: {env: {OWN: of the file}}\n    two:\n", "", &[]);
    // Cargo's, of this test.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let names = "env | sed 's/=.*//' | grep -vE '^(PWD|_|SHLVL|CLAB_.*)$' | sort";
    let names = lab.run("one", names);
    let names: Vec<&str> = names.lines().filter(|name| *name != "TERM").collect();
    assert_eq!(names, ["HOME", "HOSTNAME", "OWN", "PATH"]);
    assert_eq!(lab.run("one", "echo $OWN of $HOSTNAME; umask"), "of the file of one\n0022");
    lab.down();
}

/// All commands of a node run in the same container.
#[root_test]
fn what_a_command_mounts_and_names_stays_for_the_next_one() {
    let nodes = "    one: {exec: ['hostname renamed', 'mkdir /like-m', 'mount -t tmpfs like-mount /like-m', \
                 'ip netns add inner', 'ip -n inner link add like0 type dummy', 'touch /like-m/file']}\n    \
                 two:\n    beside: {network-mode: 'container:one'}\n";
    let lab = Lab::up("stay", nodes, "", &[]);
    let shown = "hostname; ls /like-m; ip netns exec inner hostname; mount | grep -c like-mount";
    assert_eq!(lab.run("one", shown), "renamed\nfile\nrenamed\n1");
    assert_eq!(
        lab.run("two", "ls /like-m 2>/dev/null; ip netns list | grep inner || hostname"),
        "two"
    );
    // As in Docker, a container has the name of the one whose network it shares.
    assert_eq!(
        lab.run("beside", "hostname; echo $HOSTNAME; ls -d /like-m 2>/dev/null || true"),
        "one\none"
    );
    assert!(!Path::new("/run/netns/inner").exists());
    lab.down();
}

#[root_test]
fn devices_and_shared_memory_are_a_nodes_own() {
    let nodes = "    one: {exec: ['sh -c \"echo one > /dev/shm/like; mkdir -p /dev/like; \
                 mknod /dev/like/tun c 10 200\"', 'ipcmk -Q'], tmpfs: {/dev/shm: 'size=8m'}, \
                 binds: ['file:/dev/like-bound']}\n    two:\n";
    let lab = Lab::up("dev", nodes, "", &[("file", "bound")]);
    let queues = "ipcs -q | grep -c '^0x' || true";
    assert_eq!(
        lab.run("one", &format!("cat /dev/shm/like /dev/like-bound; {queues}")),
        "one\nbound1"
    );
    assert_eq!(lab.run("one", "df -k --output=size /dev/shm | tail -1"), "8192");
    assert_eq!(
        lab.run("one", "echo null > /dev/null; test -c /dev/like/tun && echo device"),
        "device"
    );
    let nothing = format!("ls /dev/shm /dev/mqueue; test ! -e /dev/like && {queues}");
    assert_eq!(lab.run("two", &nothing), "/dev/mqueue:\n\n/dev/shm:\n0");
    for path in ["/dev/shm/like", "/dev/like", "/dev/like-bound"] {
        assert!(!Path::new(path).exists(), "{path} is the machine's");
    }
    lab.down();
}

#[root_test]
fn a_command_that_leaves_something_running_holds_nobody_up() {
    let nodes = "    one: {exec: ['sh -c \"sleep 1000 &\"', 'touch /after']}\n    two:\n";
    let start = std::time::Instant::now();
    let lab = Lab::up("background", nodes, "", &[]);
    assert!(start.elapsed() < Duration::from_secs(60));
    assert_eq!(lab.run("one", "ls /after; pgrep -c sleep"), "/after\n1");
    lab.down();
}

/// A process of the node, such as a wild `rm`, must not lose what `lab` needs.
#[root_test]
fn a_node_that_removes_all_it_can_still_answers() {
    let nodes = "    one: {exec: ['sh -c \"rm -rf /run/* /tmp/* || true\"', \
                 'ip link set eth1 alias after']}\n    two:\n";
    let lab = Lab::up("wild", nodes, "", &[]);
    assert!(lab.run("one", "ip link show eth1").contains("alias after"));
    assert!(Path::new("/run/vtepd-lab").join(lab.fabric.name()).join("topology.json").exists());
    lab.down();
}

/// A mount of the machine that allows little, until the test ends. Others may use it meanwhile.
struct Mounted(PathBuf);

impl Mounted {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("mounted-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let mounted = Self(path);
        let options = ["-t", "tmpfs", "-o", "nosuid,nodev,noexec", "lab"];
        assert!(Command::new("mount").args(options).arg(&mounted.0).status().unwrap().success());
        mounted
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[root_test]
fn a_root_allows_no_more_than_the_machine_and_nobody_else_enters_it() {
    let mounted = Mounted::new();
    let path = mounted.0.display();
    let nodes = format!("    one: {{binds: ['{path}:/like-ro:ro']}}\n    two:\n");
    let lab = Lab::up("limits", &nodes, "", &[]);
    for (path, also) in [(&*path.to_string(), "rw,"), ("/like-ro", "ro,")] {
        let line = format!("grep ' {path} ' /proc/self/mountinfo | cut -d' ' -f6");
        let options = lab.run("one", &line);
        assert!(options.starts_with(&format!("{also}nosuid,nodev,noexec")), "{path}: {options}");
    }
    // `/tmp` of a node is open to all of its users, but to no user of the machine.
    let root = lab.fabric.node("one").unwrap().directory().join("root/merged/tmp");
    let list = |user: u32| Command::new("ls").arg(&root).uid(user).output().unwrap();
    assert!(list(0).status.success());
    let refused = String::from_utf8(list(65534).stderr).unwrap();
    assert!(refused.contains("Permission denied"), "{refused}");
    lab.down();
}

#[root_test]
fn a_bound_file_below_a_bound_directory_stays_visible() {
    let nodes = "    one: {binds: ['upper:/like-cfg/file', '.:/like-cfg', '.:/like-cfg/own:ro']}\n    \
                 two:\n";
    let lab = Lab::up("order", nodes, "", &[("upper", "the file"), ("file", "hidden")]);
    assert_eq!(lab.run("one", "cat /like-cfg/file /like-cfg/own/file"), "the filehidden");
    assert_eq!(
        lab.run("one", "echo x > /like-cfg/own/file 2>/dev/null || echo refused"),
        "refused"
    );
    lab.down();
}

#[root_test]
fn targets_of_binds_are_made_in_the_node() {
    let nodes = "    one: {binds: ['up:/like/deep/up.sh:ro', '.:/like-files'], \
                 exec: ['sh /like/deep/up.sh']}\n    two:\n";
    let lab = Lab::up("bind", nodes, "", &[("up", "ip link set eth1 alias by-script\n")]);
    assert!(lab.run("one", "ip link show eth1").contains("alias by-script"));
    assert_eq!(lab.run("one", "ls /like-files"), "up");
    // A bound directory is the machine's.
    lab.run("one", "echo back > /like-files/back");
    assert!(lab.directory.join("back").exists());
    assert!(!Path::new("/like").exists() && !Path::new("/like-files").exists());
    lab.down();
}

#[root_test]
fn commands_keep_their_dollars_and_get_magic_variables() {
    // As in ContainerLab, a command that fails ends nothing.
    let nodes = "    one: {exec: ['ip route del default', 'no-such-program', 'sh -c \"for i in 4 5; do ip addr add 192.0.2.$i/32 dev lo; done\"', \
                 'ip link set eth1 alias on-__clabNodeName__-of-__clabLabName__']}\n    two:\n";
    let lab = Lab::up("text", nodes, "", &[]);
    let addresses = lab.run("one", "ip -br addr show lo");
    assert!(
        addresses.contains("192.0.2.4/32") && addresses.contains("192.0.2.5/32"),
        "{addresses}"
    );
    assert!(lab.run("one", "ip link show eth1").contains("alias on-one-of-clab-like"));
    lab.down();
}

/// Many public labs start FRR like this. The machine's own file stays as it is.
#[root_test]
fn commands_start_frr_as_in_its_image() {
    const DAEMONS: &str = "/etc/frr/daemons";
    let before = std::fs::read(DAEMONS).unwrap();
    let nodes = "    one: {cmd: bash, exec: ['ash -c \"echo started >/started\"', 'sed -i s/bgpd=no/bgpd=yes/ /etc/frr/daemons', \
                 'touch /etc/frr/vtysh.conf', 'usr/lib/frr/frrinit.sh start', \
                 'vtysh -c \"conf t\" -c \"router bgp 65001\"']}\n    two:\n";
    let lab = Lab::up("image", nodes, "", &[]);
    let running = lab.run("one", "vtysh -c 'show running-config'");
    assert!(running.contains("router bgp 65001"), "{running}");
    assert_eq!(lab.run("one", "cat /started"), "started", "ash is the shell where there is none");
    let processes = lab.run("one", "ps -eo comm");
    assert!(processes.lines().any(|name| name == "bash"), "it waits for input: {processes}");
    lab.down();
    assert!(std::fs::read(DAEMONS).unwrap() == before);
}

/// As in FRR's image: the daemons run with all that they understood.
#[root_test]
fn a_refused_line_of_frr_conf_keeps_nothing_from_running() {
    let conf =
        "log file /no/such/directory/frr.log\nhostname changed\nip route 192.0.2.7/32 blackhole\n";
    let nodes = "    one: {binds: ['frr.conf:/etc/frr/frr.conf']}\n    two:\n";
    let lab = Lab::up("refused", nodes, "", &[("frr.conf", conf)]);
    wait_until(Duration::from_secs(5), || lab.run("one", "ip route").contains("192.0.2.7"));
    assert!(lab.run("one", "ip route").contains("blackhole 192.0.2.7"));
    lab.down();
}

#[root_test]
fn dummy_links_and_bridges_are_in_their_node() {
    let nodes = "    one: {exec: ['ip addr add 192.0.2.9/24 dev stub']}\n    two:\n    \
                 three: {exec: ['ip addr add 198.51.100.3/24 dev eth1']}\n    \
                 'lan|one': {kind: bridge, network-mode: 'container:one'}\n";
    let links = "    - {type: dummy, mtu: 1400, endpoint: {node: one, interface: stub}}\n    \
                 - endpoints: ['two:stub', 'dummy']\n    \
                 - endpoints: ['three:eth1', 'lan|one:port1']\n";
    let lab = Lab::up("links", nodes, links, &[]);
    assert!(lab.run("one", "ip route").contains("192.0.2.0/24 dev stub"));
    assert!(lab.run("one", "ip link show stub").contains("mtu 1400"));
    assert!(lab.run("two", "ip link show stub").contains(",UP"));
    assert!(lab.run("one", "ip -br link show master lan").starts_with("port1"));
    lab.run("one", "ip addr add 198.51.100.1/24 dev lan");
    lab.run("three", "ping -c 1 -W 5 198.51.100.1");
    lab.down();
}

const PROCESSES: &str = "
name: processes
topology:
  defaults: {kind: linux}
  nodes:
    r1:
      tmpfs: ['/scratch:size=1m,exec', /run/own]
      dns: {servers: [192.0.2.53], search: [fabric.test]}
      memory: 1Gb
      exec:
        - sh -c 'for i in 1 2; do sleep 1000 > /dev/null 2>&1 & done'
        - sh -c 'pkill -o sleep; ps -e -o comm= > /processes'
    r2: {cmd: sleep 1000}
    r3: {pid-mode: host}
  links:
    - endpoints: ['r1:eth1', 'r2:eth1']
    - endpoints: ['r1:eth2', 'r3:eth1']
";

#[root_test]
fn a_node_has_its_own_processes_which_end_with_it() {
    let name: Name = format!("processes{}", std::process::id()).parse().unwrap();
    let topology = Topology::parse(PROCESSES, Path::new("/"), |_| None).unwrap();
    assert_eq!(topology.notes, ["memory: has no effect on r1"]);
    let fabric = Fabric::up(topology, Some(&name), &|_| Ok(())).unwrap();
    let node = |name: &str| fabric.node(name).unwrap();

    // pkill in r1 has ended one of r1's, and not the program of r2.
    let seen = node("r1").run(&["cat", "/processes"]).unwrap();
    assert_eq!(seen.lines().filter(|line| *line == "sleep").count(), 1, "{seen}");
    assert!(seen.starts_with("lab\n") && !seen.contains("vtepd"), "{seen}");
    let records = fabric.processes().unwrap();
    let program = records.iter().find(|record| record.name == "sleep").unwrap();
    assert!(program.identity.alive(), "{records:?}");
    assert_eq!(node("r2").run(&["sh", "-c", "pgrep -c sleep"]).unwrap(), "1\n");
    assert_eq!(node("r3").run(&["cat", "/proc/1/comm"]).unwrap(), machine("/proc/1/comm"));
    // Orphans do not stay as zombies.
    node("r1").run(&["sh", "-c", "sh -c 'sleep 0.01 > /dev/null 2>&1 &'"]).unwrap();
    let states = || node("r1").run(&["ps", "-e", "-o", "stat="]).unwrap();
    assert!(wait_until(Duration::from_secs(5), || !states().contains('Z')), "{}", states());

    let mounts = node("r1").run(&["cat", "/proc/self/mounts"]).unwrap();
    let scratch = mounts.lines().find(|line| line.starts_with("tmpfs /scratch tmpfs")).unwrap();
    assert!(scratch.contains("size=1024k") && !scratch.contains("noexec"), "{scratch}");
    let own = mounts.lines().find(|line| line.starts_with("tmpfs /run/own tmpfs")).unwrap();
    assert!(own.contains("noexec"), "{own}");
    assert!(!Path::new("/scratch").exists() && !Path::new("/run/own").exists());
    let resolver = node("r1").run(&["cat", "/etc/resolv.conf"]).unwrap();
    assert_eq!(resolver, "nameserver 192.0.2.53\nsearch fabric.test\n");

    let pids: Vec<i32> = node("r1").namespace().unwrap().pids().unwrap();
    assert!(!pids.is_empty(), "the sleep that is left");
    fabric.down().unwrap();
    let gone = || pids.iter().all(|pid| Identity::of(*pid).is_err());
    assert!(wait_until(Duration::from_secs(5), gone), "a node's processes end with it");
}

#[root_test]
fn stages_names_and_programs_are_those_of_containers() {
    let nodes = "    \
    one:
      exec: ['sh -c \"echo exec >>/log\"']
      stages:
        configure: {exec: {on-exit: ['sh -c \"echo configured >>/log\"']}}
        healthy: {exec: {on-enter: ['sh -c \"echo entered >>/log\"'], on-exit: [touch /healthy]}}
        exit: {exec: {on-enter: [touch /ended]}}
    two:
      binds: ['daemons:/etc/frr/daemons', 'frr.conf:/etc/frr/frr.conf']
      exec: [ip addr add 192.0.2.2/32 dev lo]
      cmd: 'sh -c \"sleep 0.2; ip -br addr show lo | grep -q 192.0.2.2 && exec sleep 1000\"'
    three: {binds: ['frr.conf:/etc/frr/frr.conf'], cmd: /usr/lib/frr/docker-start}
    lan: {kind: bridge, exec: [touch /lan], binds: ['daemons:/etc/frr/daemons']}
    'inner|one': {kind: bridge, network-mode: 'container:one', exec: ['ip link set lo alias wrong']}
";
    let links = "    - endpoints: ['one:to-spine1-rack12-a', 'two:eth1/1']\n";
    let lab = Lab::up("stages", nodes, links, &[("daemons", "bgpd=yes\n"), ("frr.conf", "")]);
    // Neither a health check nor anybody who waits: the stages after it are not for this node.
    assert_eq!(
        lab.run("one", "cat /log; ls /healthy /ended 2>&1 | wc -l"),
        "configured\nexec\nentered\n2"
    );
    assert_eq!(lab.run("one", "ip link show lo | grep -c alias || :"), "0");
    assert_eq!(lab.run("lan", "test -e /lan || echo none"), "none");
    // A bridge and a node with another program run no FRR; that of FRR's image is lab's.
    for (node, runs) in [("two", "0"), ("lan", "0"), ("three", "1")] {
        assert_eq!(lab.run(node, "pgrep -c zebra || :"), runs, "{node}");
    }
    let far = |node: &str, name: &str| lab.run(node, &format!("ip -br link show {name} | wc -l"));
    assert_eq!(far("one", "to-spine1-rack12-a") + &far("two", "eth1-1"), "11");
    lab.down();
}

fn machine(path: &str) -> String {
    std::fs::read_to_string(path).unwrap()
}
