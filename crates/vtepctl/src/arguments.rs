//! The command line.

use std::net::{IpAddr, Ipv4Addr};

use api::Address;
use clap::{Args, Parser, Subcommand, ValueEnum};
use wire::MacAddr;

const EXAMPLES: &str = "\
Examples:
  vtepctl status                             how it is, what is taken over, what is not and why
  ip netns exec leaf1 vtepctl fdb --vni 10   in a leaf's network namespace: that leaf's vtepd
  vtepctl -o json route | jq '.[] | select(.state != \"reachable\")'

It speaks with the vtepd of the network namespace that it runs in, as root or as the user that vtepd runs as. API.md says
what the JSON holds.";

/// Asks a running vtepd what it forwards by.
#[derive(Debug, Parser)]
#[command(name = "vtepctl", version, after_help = EXAMPLES)]
pub struct Arguments {
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
pub enum Output {
    /// For people
    Table,
    /// For programs
    Json,
}

/// What can be asked.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// How the daemon is: sources, VNIs taken over, VNIs left to the kernel and why, warnings
    #[command(after_help = "Example: vtepctl status")]
    Status,
    /// Every vxlan netdev, taken over or left to the kernel
    #[command(after_help = "Example: vtepctl vni --vni 10010")]
    Vni(OfVni),
    /// Remote MAC addresses and the VTEPs that they are behind, as workers forward by them
    #[command(after_help = "Example: vtepctl fdb --vni 10010 --mac 02:00:00:00:00:01")]
    Fdb {
        /// Which VNI
        #[command(flatten)]
        of: OfVni,
        /// Only this address
        #[arg(long)]
        mac: Option<MacAddr>,
    },
    /// VTEPs that get broadcast, unknown unicast and multicast
    #[command(after_help = "Example: vtepctl flood --vni 10010")]
    Flood(OfVni),
    /// Next hops and their MAC addresses
    #[command(after_help = "Example: vtepctl neigh")]
    Neigh,
    /// The way to each VTEP: next hops, weights and state, as workers have them
    #[command(after_help = "Example: vtepctl route --vtep 10.0.0.2")]
    Route {
        /// Only the way to this VTEP
        #[arg(long, value_name = "ADDRESS")]
        vtep: Option<Ipv4Addr>,
    },
    /// Each remote VTEP and what is behind it
    #[command(after_help = "Example: vtepctl peer")]
    Peer,
    /// Every reason why frames are dropped, with its count
    #[command(after_help = "Example: vtepctl drops -o json | jq '.[] | select(.frames > 0)'")]
    Drops,
    /// Everything that is counted
    #[command(after_help = "Example: vtepctl counters")]
    Counters,
    /// What would become of a frame: its outer source port, its next hop, and why
    #[command(after_help = EXPLAIN)]
    Explain(Explain),
}

const EXPLAIN: &str = "\
Examples:
  vtepctl explain --vni 10010 --dst-mac 02:00:00:00:00:02 --src 10.1.0.1 --dst 10.1.0.2 --qp 0x11
  vtepctl explain --vni 10010 --dst-mac 02:00:00:00:00:02 --src 10.1.0.1 --dst 10.1.0.2 --proto tcp --sport 40000 --dport 80

The running daemon decides, by the tables that it forwards by and with the code that forwards.";

/// One VNI, or all.
#[derive(Debug, Clone, Copy, Args)]
pub struct OfVni {
    /// Only this VNI
    #[arg(long, value_name = "VNI")]
    pub vni: Option<u32>,
}

/// A flow from a host behind this leaf.
#[derive(Debug, Clone, Args)]
pub struct Explain {
    /// The VNI that the frame is sent in
    #[arg(long)]
    pub vni: u32,
    /// Inner destination MAC address
    #[arg(long, value_name = "MAC")]
    pub dst_mac: MacAddr,
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
    /// IP protocol: tcp, udp, icmp or a number
    #[arg(long, default_value = "udp", value_parser = protocol, requires = "src")]
    pub proto: u8,
    /// Inner source port
    #[arg(long, value_name = "PORT", default_value_t = 49152)]
    pub sport: u16,
    /// Inner destination port
    #[arg(long, value_name = "PORT", default_value_t = 9)]
    pub dport: u16,
    /// Payload in bytes, behind the headers
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub payload: u16,
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
        _ => text.parse().map_err(|_| format!("'{text}' is no protocol (tcp, udp, icmp, icmp6 or a number)")),
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
            assert!(help.contains(&format!("vtepctl {}", sub.get_name())), "{}: {help}", sub.get_name());
        }
    }

    #[test]
    fn numbers_and_protocols_are_read_as_people_write_them() {
        assert_eq!((number("17"), number("0x11")), (Ok(17), Ok(17)));
        assert!(number("x").unwrap_err().contains("'x'"));
        assert_eq!((protocol("tcp"), protocol("47")), (Ok(6), Ok(47)));
        assert!(protocol("sctpx").unwrap_err().contains("tcp"));
    }
}
