//! `docs/guide/troubleshooting.md`: each symptom is provoked in a fabric, and its command shows the
//! cause that the page names.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use root_test::root_test;

use super::fixture::frr;
use super::guides::{root, run};

/// Nothing is provoked: the command runs, and prints this.
const AS_IT_IS: &str = ":";

/// How each symptom of the page comes about, what its command then shows (an extended regular
/// expression), and what ends it. The fabric has no BFD.
const SYMPTOMS: [(&str, &str, &str, &str); 24] = [
    (
        "One path behind the leaf",
        "policy_of_hash 0",
        "spine1 +hash policy +it hashes addresses only",
        "policy_of_hash 1",
    ),
    (
        "Spines use only some",
        "seeds 7 7 7",
        "hash seeds +[0-9]+ routers .* have [0-9]+ different seeds",
        "seeds 1 2 3",
    ),
    (
        "One uplink carries everything",
        "lab policy kernel --leaf leaf1",
        "^leaf1 .* none ",
        "lab policy qp-hash --leaf leaf1",
    ),
    ("A few queue pairs", AS_IT_IS, "qp-hash by queue pair 0x11", ":"),
    (
        "`qp-pin` does not leave",
        "lab policy qp-pin; known_paths; lab policy kernel --leaf leaf2",
        "last answer [0-9]{4,} ms ago",
        "lab policy qp-hash",
    ),
    (
        "A VNI stays with the kernel",
        "lab exec leaf1 -- ip rule add fwmark 7 table 7",
        r"\[policy-routing\]",
        "lab exec leaf1 -- ip rule del fwmark 7 table 7",
    ),
    (
        "A worker forwards",
        "lab policy qp-hash --datapath userspace",
        "vx10010 +userspace",
        "lab policy qp-hash --datapath offload",
    ),
    (
        "A host port does not skip",
        "lab exec leaf1 -- ip link set hp1 type bridge_slave isolated on",
        "hp1 +no .* it is isolated",
        "lab exec leaf1 -- ip link set hp1 type bridge_slave isolated off",
    ),
    (
        "Frames leave one by one",
        "lab exec leaf1 -- tc qdisc replace dev up1 root tbf rate 1gbit burst 64k latency 50ms",
        "one by one over up1",
        "lab exec leaf1 -- tc qdisc del dev up1 root",
    ),
    (
        "Captures on the vxlan netdev",
        "lab exec host1 -- ping -c 3 -i 0.2 192.168.10.2",
        "encapsulated by BPF programs +[0-9]",
        ":",
    ),
    (
        "vtepd says that another one",
        "said 'has this network namespace already' lab exec leaf1 -- vtepd",
        "process [0-9]+",
        ":",
    ),
    (
        "`vtepctl` says that no process",
        "lab policy kernel --leaf leaf1; said 'no process listens' vtepctl status",
        "^leaf1 .* none ",
        "lab policy qp-hash --leaf leaf1",
    ),
    (
        "Long packets are lost",
        "mtu 1500; ! lab exec host1 -- ping -c 1 -W 1 -s 4000 192.168.10.2",
        "hosts' packets above 1450 bytes are lost",
        "mtu 9050",
    ),
    (
        "Hosts of other leaves",
        "uplinks down; lab roce send --node host1 --to 192.168.10.2 --rate 1000 --frames 500",
        "no_remote",
        ":",
    ),
    ("The same, or `lab up` waits", AS_IT_IS, "Active|Connect|Idle", "uplinks up"),
    ("Traffic stops for seconds", AS_IT_IS, "Session count: 0", ":"),
    (
        "BFD sessions end",
        // As on a machine without CPU time, bfdd of a neighbour does not run.
        "bfd leaf1 spine1 'no shutdown'; shows 'up events: [1-9]' bfd_counters; signal spine1 bfdd STOP",
        "Session down events: [1-9]",
        "signal spine1 bfdd CONT; bfd leaf1 spine1 shutdown",
    ),
    ("RoCE ends with", AS_IT_IS, "not sent +dropped", ":"),
    ("Drops have another reason", AS_IT_IS, "no_route +There is no live route", ":"),
    ("`lab status` shows BGP", "signal leaf1 bgpd KILL", "^leaf1 .* down ", ":"),
    (
        "`lab status` shows FPM",
        "signal leaf1 zebra TERM",
        "zebra's FPM connection is gone|zebra has not connected by FPM",
        ":",
    ),
    ("`lab up` says", "said 'is already running' lab up fabric/fabric.clab.yml", "^fabric$", ":"),
    ("A report draws no conclusion", AS_IT_IS, "machine +load", ":"),
    ("Routers lose packets", AS_IT_IS, "^[0-9a-f]{8} [0-9a-f]{8} ", ":"),
];

/// The first cell of each row of the page's tables, and the commands in the second one.
fn rows() -> Vec<(String, Vec<String>)> {
    let page = fs::read_to_string(root().join("docs/guide/troubleshooting.md")).unwrap();
    let (mut rows, mut column, mut head) = (Vec::new(), 0, false);
    for event in Parser::new_ext(&page, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::TableHead) => head = true,
            Event::End(TagEnd::TableHead) => head = false,
            Event::Start(Tag::TableRow) => {
                column = 0;
                rows.push((String::new(), Vec::new()));
            }
            Event::End(TagEnd::TableCell) => column += 1,
            Event::Text(text) if !head && column == 0 => {
                if let Some((symptom, _)) = rows.last_mut() {
                    symptom.push_str(&text);
                }
            }
            Event::Code(code) if !head => match (column, rows.last_mut()) {
                (0, Some((symptom, _))) => write!(symptom, "`{code}`").unwrap(),
                (1, Some((_, commands))) => commands.push(code.into_string()),
                _ => {}
            },
            _ => {}
        }
    }
    rows
}

/// What the provocations share.
const FUNCTIONS: &str = r#"
vtepctl() { lab exec leaf1 -- vtepctl "$@"; }
vtysh() { lab exec leaf1 -- vtysh "$@"; }
sysctl() { lab exec "$1" -- sysctl -w "net.ipv4.$2"; }
policy_of_hash() { sysctl spine1 fib_multipath_hash_policy="$1"; }
seeds() {
  sysctl leaf1 fib_multipath_hash_seed="$1"
  sysctl spine1 fib_multipath_hash_seed="$2"
  sysctl spine2 fib_multipath_hash_seed="$3"
}
mtu() { for end in leaf1:up1 spine1:dn1; do lab exec "${end%:*}" -- ip link set "${end#*:}" mtu "$1"; done; }
signal() {
  for pid in $(ip netns pids "lab-fabric-$1"); do
    [ "$(cat /proc/$pid/comm)" != "$2" ] || kill "-$3" "$pid"
  done
}
# A session between a leaf and a spine, by their first link.
peer() {
  local of; of=$(lab exec "$2" -- ip -4 -br addr show "$3" | grep -Eo '[0-9.]+/')
  lab exec "$1" -- vtysh -c 'configure terminal' -c bfd -c "peer ${of%/}" -c "$4"
}
bfd() { peer "$1" "$2" dn1 "$3"; peer "$2" "$1" up1 "$3"; }
bfd_counters() { vtysh -c 'show bfd peers counters'; }
uplinks() { lab link "$1" leaf1:up1; lab link "$1" leaf1:up2; }
known_paths() { shows '([1-9][0-9]*) of \1 path ids known' vtepctl path; }
# An expected error.
said() { local words=$1; shift; ! "$@" 2>errors; grep "$words" errors; }
# Runs a command until it shows something. `lab doctor` fails where it finds faults.
shows() {
  local pattern=$1 end=$((SECONDS + 20)); shift
  { set +x; } 2>/dev/null
  until "$@" >shown 2>&1 || [ "$*" = "lab doctor" ] && grep -Eq "$pattern" shown; do
    [ $SECONDS -lt $end ] || { echo "'$*' does not show '$pattern':"; cat shown; exit 1; }
    sleep 0.1
  done
  set -x
}
lab new --sites 2 --leaves 1 --no-bfd fabric
lab up fabric/fabric.clab.yml
"#;

/// Routers can have hash seeds from Linux 6.11 on.
fn routers() -> Result<(), String> {
    let seed = Path::new("/proc/sys/net/ipv4/fib_multipath_hash_seed");
    frr().and_then(|()| seed.exists().then_some(()).ok_or_else(|| "no hash seeds".to_owned()))
}

#[root_test(needs = routers)]
fn each_symptom_is_shown_by_its_command() {
    let rows = rows();
    assert_eq!(rows.len(), SYMPTOMS.len(), "{rows:#?}");
    let mut script = FUNCTIONS.to_owned();
    for ((symptom, commands), (first_words, provoke, pattern, end)) in rows.iter().zip(SYMPTOMS) {
        assert!(symptom.starts_with(first_words), "{first_words} is not\n{symptom}");
        let [command] = commands.as_slice() else { panic!("{symptom}: {commands:?}") };
        writeln!(script, "{provoke}\nshows {pattern:?} {command}\n{end}").unwrap();
    }
    script.push_str("lab down fabric\n");
    run("troubleshooting", 400, &script);
}
