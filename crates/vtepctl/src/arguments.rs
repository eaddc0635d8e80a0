//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use api::Address;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use wire::MacAddr;

const EXAMPLES: &str = "\
Examples:
  vtepctl status                             state, VNIs taken over, VNIs with the kernel and why
  ip netns exec leaf1 vtepctl fdb --vni 10   in a leaf's network namespace: that leaf's vtepd
  vtepctl -o json route | jq '.[] | select(.state != \"reachable\")'

It speaks with the vtepd of the network namespace that it runs in, as root or as the user that vtepd
runs as. docs/reference/api.md describes the JSON.";

/// Shows and changes what a running vtepd does.
#[derive(Debug, Parser)]
#[command(name = "vtepctl", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// vtepd's socket: @NAME or a path
    #[arg(long, global = true, value_name = "SOCKET", default_value_t)]
    pub socket: Address,
    /// Form of the output
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table)]
    pub output: Output,
    /// What to ask
    #[command(subcommand)]
    pub command: Command,
}

/// Form of what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Table,
    /// For programs
    Json,
}

/// What can be asked.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// State: sources, VNIs taken over, VNIs that stay with the kernel and why, warnings
    #[command(after_help = "Example: vtepctl status")]
    Status,
    /// Every vxlan netdev: taken over, or with the kernel
    #[command(after_help = "Example: vtepctl vni --vni 10010")]
    Vni(OfVni),
    /// Remote MAC addresses and their VTEPs, as workers use them
    #[command(after_help = "Example: vtepctl fdb --vni 10010 --mac 02:00:00:00:00:01")]
    Fdb {
        /// Which VNI
        #[command(flatten)]
        of: OfVni,
        /// Only this address
        #[arg(long)]
        mac: Option<MacAddr>,
    },
    /// Flood lists: VTEPs that receive broadcast, unknown unicast and multicast
    #[command(after_help = "Example: vtepctl flood --vni 10010")]
    Flood(OfVni),
    /// Neighbours: MAC addresses of next hops and of hosts
    #[command(after_help = "Example: vtepctl neigh")]
    Neigh,
    /// Routes to each VTEP: next hops, weights and state, as workers use them
    #[command(after_help = "Example: vtepctl route --vtep 10.0.0.2")]
    Route {
        /// Only this VTEP
        #[arg(long, value_name = "ADDRESS")]
        vtep: Option<IpAddr>,
    },
    /// Remote VTEPs, with their MAC addresses and traffic
    #[command(after_help = "Example: vtepctl peer")]
    Peer,
    /// Paths to each VTEP that probes found, for the policy qp-pin
    #[command(after_help = PATH)]
    Path {
        /// Only to this VTEP
        #[arg(long, value_name = "ADDRESS")]
        vtep: Option<IpAddr>,
        /// Comma-separated values, one line for each path
        #[arg(long)]
        csv: bool,
    },
    /// Queue pairs that the policy qp-pin has placed, with their paths, rates, and what their headers told
    #[command(after_help = QP)]
    Qp {
        /// Only queue pairs of this number, decimal or 0x…, also those that have gone
        #[arg(value_name = "NUMBER", value_parser = number)]
        number: Option<u32>,
        #[command(flatten)]
        of: OfVni,
        /// Also the last 4,096 that have gone in the last hour, with the path that they had last
        #[arg(long)]
        gone: bool,
        /// Comma-separated values
        #[arg(long)]
        csv: bool,
    },
    /// RoCE flows whose path workers remember
    #[command(after_help = FLOW)]
    Flow(OfVni),
    /// Rates of paths, queue pairs and VNIs, and events, on a terminal; keys change a VNI
    #[command(after_help = TOP)]
    Top(Top),
    /// Bridge ports: which have the bridge bypass, and why the others do not
    #[command(after_help = "Example: vtepctl port --vni 10010")]
    Port(OfVni),
    /// Dropped frames by reason
    #[command(after_help = DROPS)]
    Drops {
        /// Also reasons that no frame was dropped for; JSON always has them
        #[arg(long)]
        all: bool,
        /// The last dropped frames, with their headers: at most 32 for each reason and worker, and 32 that BPF programs dropped
        #[arg(long, conflicts_with = "all")]
        frames: bool,
        /// Only frames of this reason
        #[arg(long, value_name = "REASON", requires = "frames")]
        reason: Option<String>,
        /// Write the frames as pcapng, for Wireshark; - for the standard output
        #[arg(short, long, value_name = "FILE", requires = "frames")]
        write: Option<PathBuf>,
    },
    /// Captures packets of the uplinks and the frames in them, with what was decided about each
    #[command(after_help = CAPTURE)]
    Capture(Capture),
    /// All counters
    #[command(after_help = "Example: vtepctl counters")]
    Counters {
        /// Also counters that are 0; JSON always has them
        #[arg(long)]
        all: bool,
    },
    /// What happened: VNIs, MAC addresses, next hops, sources, warnings
    #[command(after_help = EVENTS)]
    Events {
        /// Wait for further events
        #[arg(short, long)]
        follow: bool,
        /// Only events from now on; needs --follow
        #[arg(long, requires = "follow", conflicts_with = "after")]
        new: bool,
        /// Only events after the one of this number
        #[arg(long, value_name = "SEQUENCE", default_value_t = 0, hide_default_value = true)]
        after: u64,
        /// Only events of this time before now, and later ones: a number and s, m (or min) or h
        #[arg(long, value_name = "TIME", conflicts_with = "new", value_parser = time)]
        since: Option<Duration>,
    },
    /// Shows or changes the source port policy of a VNI
    #[command(subcommand, after_help = POLICY)]
    Policy(PolicyCommand),
    /// Takes a VNI over, until the configuration is read again
    #[command(after_help = "Example: vtepctl attach 10010")]
    Attach {
        /// The VNI
        vni: u32,
    },
    /// Gives a VNI back to the kernel until it is attached; a standalone VNI is then not
    /// forwarded
    #[command(after_help = "Example: vtepctl detach 10010")]
    Detach {
        /// The VNI
        vni: u32,
    },
    /// Shows where a flow or a captured frame would go, and why
    #[command(after_help = EXPLAIN)]
    Explain(Explain),
    /// Write vtepctl's man pages and shell completions into a folder
    #[command(after_help = "Example: vtepctl manual /tmp/manual && man /tmp/manual/vtepctl.1")]
    Manual {
        /// The folder
        folder: PathBuf,
    },
}

const QP: &str = "\
What frames of a queue pair told when the leaf sent them:
  gaps     packet sequence numbers that requests skipped
  repeats  requests whose number was not ahead of all before: retransmissions, and what was reordered on the way from the
           host to the leaf; the record has the highest number only, so these cannot be told apart
  naks     negative acknowledgements, without \"receiver not ready\"
  cnps     congestion notification packets
  marks    frames with \"congestion experienced\" in the inner IP header
  figures  exact, or approx. if several CPUs sent frames of the queue pair at once
age s and idle s are the seconds since it was first and last seen. Bytes are those of inner frames. Routers are unknown if not all
on the path are known.

Examples:
  vtepctl qp --vni 10010 --csv > queue-pairs.csv
  vtepctl qp 0x11           where it is, or where it went, if it has gone in the last hour
  vtepctl qp --gone

A queue pair has gone (state gone) when it was idle for long enough, its connection ended, or its VTEP is gone. The uplink is not known
(-) if the next hop is gone, too.";

const EVENTS: &str = "\
Examples:
  vtepctl events --since 10m
  vtepctl events --after 120         what happened after the event of number 120
  vtepctl events -f -o json | jq 'select(.kind == \"mac-moved\")'";

const PATH: &str = "\
Examples:
  vtepctl path --vtep 10.0.0.2
  vtepctl path -o json | jq '.[].tiers'

A router's address is that of the interface by which it sends on. A tier is unknown if its routers do not record their addresses.
Links with one address count as one, for example the members of a LAG. Links that no probed port leads to are not known.
own kB/s is sent by this leaf, others kB/s by other leaves over that link of the path where it is most, as they report it: unknown if
routers do not record their addresses. age_s (--csv) are the seconds since the last answer of the VTEP.
MMR is the load of the most loaded link over the mean, in queue pairs; the floor is the lowest that whole queue pairs allow.";

const FLOW: &str = "\
Examples:
  vtepctl flow --vni 10010
  vtepctl flow -o json | jq 'group_by(.worker) | map({worker: .[0].worker, flows: length})'

A worker remembers at most 4096 flows over IPv4. age s are the seconds since the path was decided. A flow is current if a frame of it was
sent since tables or policies last changed; the next frame of another one is decided again if its path no longer holds.
In the offload datapath, BPF programs forward the flows whose path is decided, so workers remember few.
vtepctl counters shows hits, misses and evictions.";

const TOP: &str = "\
Examples:
  vtepctl top                                    press ? for the keys
  vtepctl top --once --width 120                 one screen as text
  vtepctl top --once -o json | jq '.next_hops[] | {uplink, rate}'
  vtepctl top --once --csv | grep '^queue pair,'   queue pairs, the busiest first

With --csv, the column kind is path or queue pair, and columns of the other kind are empty. Without qp-pin there is only the heading.
Rates of next hops and VNIs are those since the sample before, so --once takes --interval seconds. Next hops count outer headers, VNIs and queue pairs do not.";

const DROPS: &str = "\
Examples:
  vtepctl drops
  vtepctl drops --all                                       every reason that there is
  vtepctl drops -o json | jq '.[] | select(.frames > 0)'
  vtepctl drops --frames --reason no_route                  the last frames that had no route
  vtepctl drops --frames -o json | jq -r '.[].headers'      their first 128 bytes, as hexadecimal digits
  vtepctl drops --frames -w drops.pcapng                    for Wireshark, with the reasons as comments

Workers do not remember frames that a BPF program dropped, that no worker has read, that waited, or that a port refused.";

const CAPTURE: &str = "\
Examples:
  vtepctl capture                                one line for each packet, until Ctrl-C
  vtepctl capture --qp 0x11 -w qp.pcapng -c 100  100 packets of one queue pair, for Wireshark
  vtepctl capture -w - | wireshark -k -i -       live

Each uplink is an interface of the capture, inner is one for the frames in their packets, and dropped one for frames that workers
drop, up to 128 bytes of each. Comments say who sent a packet, by which path, or what became of it: by the tables that forward.
A super-frame is as many packets as it is on the wire. Without --vni, --qp and --mac, probes are there, too.
A slow reader slows nothing down: packets that find no room are counted and named at the end. While nobody captures, it costs nothing.
Not captured are frames between local ports, and frames that a BPF program or a queue of the kernel drops. It needs CAP_NET_ADMIN.";

const EXPLAIN: &str = "\
Examples:
  vtepctl explain --vni 10010 --dst-mac 02:00:00:00:00:02 --src 10.1.0.1 --dst 10.1.0.2 --qp 0x11
  vtepctl explain --vni 10010 --src 10.1.0.1 --dst 10.1.0.2 --proto tcp --sport 40000 --dport 80    where the leaf knows the host
  vtepctl explain --vni 10010 --pcap host.pcap --frame 3      a frame as the host sent it
  vtepctl explain --pcap uplink.pcap                          a VXLAN packet: the frame in it, and the port it was sent by
  vtepctl explain --received --pcap uplink.pcap               a VXLAN packet that an uplink got: what becomes of it

The running daemon decides, by the tables that it forwards by and with the code that forwards. With qp-pin, it shows
the path of a queue pair that is placed, tier by tier. For another one, it shows the paths that its first frame can get, or
why qp-hash gives its path.";

const POLICY: &str = "\
Example: vtepctl policy set 10010 qp-bins --bins 8

A change is in force when the command returns, and until vtepd reads its configuration again (SIGHUP) or ends.";

/// vtepd's policies, which completions offer. `tests/tests/reference` has the same.
const POLICIES: [&str; 5] = ["five-tuple", "qp-hash", "qp-bins", "qp-pin", "spray"];

/// What `vtepctl policy` does.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// The policy of each VNI that is taken over
    #[command(after_help = "Example: vtepctl policy show --vni 10010")]
    Show(OfVni),
    /// Changes the policy of a VNI, under traffic
    #[command(after_help = "Example: vtepctl policy set 10010 qp-bins --bins 8")]
    Set {
        /// The VNI
        vni: u32,
        /// The policy; unchanged if absent
        #[arg(value_parser = PossibleValuesParser::new(POLICIES))]
        policy: Option<String>,
        /// Number of source ports that qp-bins deals queue pairs over
        #[arg(long)]
        bins: Option<u32>,
        /// Outer source ports of qp-hash, qp-bins and qp-pin
        #[arg(long, value_name = "MIN-MAX")]
        source_ports: Option<String>,
    },
}

/// One VNI, or all.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OfVni {
    /// Only this VNI
    #[arg(long, value_name = "VNI")]
    pub vni: Option<u32>,
}

/// What is captured, and where it goes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Capture {
    /// Only packets of this VNI
    #[arg(long, value_name = "VNI")]
    pub vni: Option<u32>,
    /// Only packets to this inner destination queue pair, decimal or 0x…
    #[arg(long, value_name = "NUMBER", value_parser = number)]
    pub qp: Option<u32>,
    /// Only packets from or to this inner MAC address
    #[arg(long, value_name = "MAC")]
    pub mac: Option<MacAddr>,
    /// Write pcapng into this file; - for the standard output
    #[arg(short, long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// End after so many packets, of all interfaces together
    #[arg(short, long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// The most bytes of each packet [default: all]
    #[arg(short, long, value_name = "BYTES", default_value_t = 0, hide_default_value = true)]
    pub snap_length: u32,
}

/// A frame from a host behind this leaf.
#[derive(Debug, Clone, Args)]
pub(crate) struct Explain {
    /// The VNI that the frame is sent in
    #[arg(long, required_unless_present = "pcap")]
    pub vni: Option<u32>,
    /// A frame of a capture file (pcap, Ethernet)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dst_mac", "src", "dst", "qp"])]
    pub pcap: Option<PathBuf>,
    /// It came from the underlay: what becomes of it here, if an uplink gets it for its own MAC
    /// address
    #[arg(long, requires = "pcap", conflicts_with = "vni")]
    pub received: bool,
    /// Which one, from 1
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "pcap")]
    pub frame: usize,
    /// The flow, where there is no capture
    #[command(flatten)]
    pub flow: Flow,
}

/// A flow.
#[derive(Debug, Clone, Args)]
pub(crate) struct Flow {
    /// Inner destination MAC address [default: that of --dst, if the kernel knows it]
    #[arg(long, value_name = "MAC")]
    pub dst_mac: Option<MacAddr>,
    /// Inner source MAC address
    #[arg(long, value_name = "MAC", default_value = "02:00:00:00:00:00")]
    pub src_mac: MacAddr,
    /// Inner source address; without addresses it is no IP packet
    #[arg(long, value_name = "ADDRESS", requires = "dst")]
    pub src: Option<IpAddr>,
    /// Inner destination address
    #[arg(long, value_name = "ADDRESS", requires = "src")]
    pub dst: Option<IpAddr>,
    /// Destination queue pair, decimal or 0x…: a RoCEv2 packet
    #[arg(long, value_name = "NUMBER", value_parser = number, requires = "src", conflicts_with_all = ["proto", "dport"])]
    pub qp: Option<u32>,
    /// IP protocol: tcp, udp, icmp, icmp6 or a number
    #[arg(long, default_value = "udp", value_parser = protocol)]
    pub proto: u8,
    /// Inner source port
    #[arg(long, alias = "inner-port", value_name = "PORT", default_value_t = 49152)]
    pub sport: u16,
    /// Inner destination port
    #[arg(long, value_name = "PORT", default_value_t = 9)]
    pub dport: u16,
    /// Payload in bytes, behind the headers
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub payload: u16,
}

/// What `vtepctl top` shows, and where.
#[derive(Debug, Clone, Args)]
pub(crate) struct Top {
    /// Time between two samples, 0.2 to 3600 s
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    /// Print one screen as text and end; with -o json, its figures and all remembered events
    #[arg(long)]
    pub once: bool,
    /// Print comma-separated values instead: one row for each path, and one for each queue pair
    #[arg(long, requires = "once", conflicts_with_all = ["width", "height"])]
    pub csv: bool,
    /// Columns of this text [default: $COLUMNS, or 80]
    #[arg(long, requires = "once", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub width: Option<u16>,
    /// Lines of this text [default: $LINES, or 24]
    #[arg(long, requires = "once", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub height: Option<u16>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    let duration = seconds
        .filter(|seconds| (0.2..=3600.0).contains(seconds))
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| format!("'{text}' is no number of seconds from 0.2 to 3600"))
}

/// A time before now, such as `10m`.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let second = match &text[digits.len()..] {
        "s" => Some(1),
        "m" | "min" => Some(60),
        "h" => Some(3600),
        _ => None,
    };
    let number: Option<u64> = digits.parse().ok();
    let seconds = number.zip(second).and_then(|(number, second)| number.checked_mul(second));
    let seconds = seconds.filter(|seconds| *seconds < u64::MAX / 1000).map(Duration::from_secs);
    seconds.ok_or_else(|| format!("'{text}' is no time: write a number and s, m, min or h: 10m"))
}

fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("'{text}' is no number"))
}

fn protocol(text: &str) -> Result<u8, String> {
    match text {
        "icmp" => Ok(wire::number::PROTOCOL_ICMP),
        "tcp" => Ok(wire::number::PROTOCOL_TCP),
        "udp" => Ok(wire::number::PROTOCOL_UDP),
        "icmp6" => Ok(wire::number::PROTOCOL_ICMPV6),
        _ => text
            .parse()
            .map_err(|_| format!("'{text}' is no protocol (tcp, udp, icmp, icmp6 or a number)")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_has_an_example() {
        let mut command = Arguments::command();
        command.build();
        command.clone().debug_assert();
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(
                help.contains(&format!("vtepctl {}", sub.get_name())),
                "{}: {help}",
                sub.get_name()
            );
        }
    }

    #[test]
    fn numbers_and_protocols_are_read_as_people_write_them() {
        assert_eq!((number("17"), number("0x11")), (Ok(17), Ok(17)));
        assert!(number("x").unwrap_err().contains("'x'"));
        assert_eq!((protocol("tcp"), protocol("47")), (Ok(6), Ok(47)));
        assert!(protocol("sctpx").unwrap_err().contains("tcp"));
    }

    #[test]
    fn a_time_before_now_has_a_unit() {
        assert_eq!([time("30s"), time("10m")], [30, 600].map(Duration::from_secs).map(Ok));
        assert_eq!([time("10min"), time("2h")], [600, 7200].map(Duration::from_secs).map(Ok));
        for text in ["", "10", "m", "1d", "-1s", "1.5h", "1 s", "9999999999999999999h", "5µs"] {
            assert!(time(text).unwrap_err().contains("10m"), "{text}");
        }
    }

    #[test]
    fn an_interval_is_a_number_of_seconds() {
        assert_eq!(seconds("1"), Ok(Duration::from_secs(1)));
        assert_eq!(seconds("0.2"), Ok(Duration::from_millis(200)));
        for text in ["", "x", "0", "0.1", "-1", "3601", "NaN", "inf"] {
            assert!(seconds(text).unwrap_err().contains("0.2 to 3600"), "{text}");
        }
    }
}
