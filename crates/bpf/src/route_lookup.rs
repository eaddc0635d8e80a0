//! Asks the kernel by which next hop it sends a packet (`programs/route_lookup.bpf.c`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use nix::libc::IPPROTO_UDP;

use crate::error::SteeringError;
use crate::programs::classifier;

const PROGRAM: &str = "look_up_route";
/// Length of an Ethernet header in bytes, which test runs need.
const ETHERNET: usize = 14;
/// `struct bpf_fib_lookup` (`include/uapi/linux/bpf.h`) in bytes, and where its fields are.
const LENGTH: usize = 64;
const PROTOCOL: usize = 1;
const SOURCE_PORT: usize = 2;
const DESTINATION_PORT: usize = 4;
const INTERFACE: usize = 8;
const SOURCE: usize = 16;
const DESTINATION: usize = 32;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// The interface of packets that the host itself sends (`LOOPBACK_IFINDEX`).
const LOOPBACK: u32 = 1;
/// Results that have a next hop: `BPF_FIB_LKUP_RET_SUCCESS`, and without a neighbour
/// (`_NO_NEIGH`) or with too small an MTU (`_FRAG_NEEDED`).
const FOUND: [u32; 3] = [0, 7, 8];

/// The program.
#[derive(Debug)]
pub struct RouteLookup {
    ebpf: Ebpf,
}

impl RouteLookup {
    /// Loads the program.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn load() -> Result<Self, SteeringError> {
        let object = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/route_lookup.bpf.o"));
        let mut ebpf = EbpfLoader::new().load(object)?;
        let program = classifier(&mut ebpf, PROGRAM)?;
        program.load().map_err(|error| SteeringError::Program(PROGRAM, error))?;
        Ok(Self { ebpf })
    }

    /// The interface and the gateway by which the kernel sends a UDP packet with these addresses and
    /// ports, in the calling thread's network namespace; the destination itself, if there is no
    /// gateway. `None` without a route, and if the loopback interface does not forward
    /// (`net.ipv4.conf.lo.forwarding`).
    ///
    /// # Errors
    /// When the kernel does not run the program.
    pub fn next_hop(
        &mut self,
        (source, destination): (IpAddr, IpAddr),
        ports: (u16, u16),
    ) -> Result<Option<(u32, IpAddr)>, SteeringError> {
        let program: &SchedClassifier = classifier(&mut self.ebpf, PROGRAM)?;
        let asked = question((source, destination), ports);
        let mut answer = [0; ETHERNET + LENGTH];
        let options = TestRunOptions {
            data_in: Some(&asked),
            data_out: Some(&mut answer),
            ..TestRunOptions::default()
        };
        let result = program.test_run(options);
        let result = result.map_err(|error| SteeringError::Program(PROGRAM, error))?;
        let found = FOUND.contains(&result.return_value);
        Ok(found.then(|| hop(&answer)).flatten())
    }
}

/// What the program reads.
fn question(
    (source, destination): (IpAddr, IpAddr),
    (from, to): (u16, u16),
) -> [u8; ETHERNET + LENGTH] {
    let mut packet = [0; ETHERNET + LENGTH];
    let mut put = |at: usize, bytes: &[u8]| {
        let field = packet.iter_mut().skip(ETHERNET + at);
        field.zip(bytes).for_each(|(field, byte)| *field = *byte);
    };
    put(0, &[if destination.is_ipv4() { AF_INET } else { AF_INET6 }]);
    put(PROTOCOL, &[IPPROTO_UDP as u8]);
    put(SOURCE_PORT, &from.to_be_bytes());
    put(DESTINATION_PORT, &to.to_be_bytes());
    put(INTERFACE, &LOOPBACK.to_ne_bytes());
    for (at, address) in [(SOURCE, source), (DESTINATION, destination)] {
        match address {
            IpAddr::V4(address) => put(at, &address.octets()),
            IpAddr::V6(address) => put(at, &address.octets()),
        }
    }
    packet
}

/// The interface and the gateway of an answer. `family` may be another one than that of the
/// question (RFC 8950).
fn hop(answer: &[u8; ETHERNET + LENGTH]) -> Option<(u32, IpAddr)> {
    let fields = answer.get(ETHERNET..)?;
    let interface = u32::from_ne_bytes(*fields.get(INTERFACE..)?.first_chunk()?);
    let gateway = fields.get(DESTINATION..)?;
    let gateway = match *fields.first()? {
        AF_INET => IpAddr::V4(Ipv4Addr::from(*gateway.first_chunk::<4>()?)),
        _ => IpAddr::V6(Ipv6Addr::from(*gateway.first_chunk::<16>()?)),
    };
    Some((interface, gateway))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_have_the_layout_of_bpf_fib_lookup() {
        let [from, to] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
        let mut packet = question((from, to), (0xc001, 4789));
        let fields = &packet[ETHERNET..];
        assert_eq!(fields[..6], [2, 17, 0xc0, 1, 0x12, 0xb5]);
        assert_eq!(
            (fields[8], &fields[16..20], &fields[32..36]),
            (1, &[10, 0, 0, 1][..], &[10, 0, 0, 2][..])
        );
        packet[ETHERNET + 8] = 7;
        assert_eq!(hop(&packet), Some((7, to)));
        // A gateway of the other family.
        packet[ETHERNET] = 10;
        packet[ETHERNET + 32..ETHERNET + 48]
            .copy_from_slice(&"fe80::1".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(hop(&packet), Some((7, "fe80::1".parse().unwrap())));
    }
}
