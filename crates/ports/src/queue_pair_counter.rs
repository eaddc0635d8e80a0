//! Counts the packets of a RoCE queue pair that an interface receives or sends (packet(7)). The kernel counts
//! those that a filter takes, and copies none: nobody reads the socket, whose room is full after a
//! few. While no such socket is open, it costs nothing.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use wire::QueuePair;
use wire::number::{ETHERTYPE_IPV4, PORT_ROCE, PROTOCOL_UDP};

use crate::filter::{
    ETHERNET, HEADER_LENGTH, IF_ANY_BIT, IF_EQUAL, LOAD_BYTE, LOAD_HALF, LOAD_HALF_BEHIND,
    LOAD_WORD, LOAD_WORD_BEHIND, ONLY_BITS, RETURN, attach, skip_if, skip_unless, step,
};
use crate::packet::{bind, raw_socket, set_option, statistics};

/// Room for packets that nobody reads, in bytes. The kernel takes its least.
const ROOM: libc::c_int = 1;
/// Offsets in bytes from the UDP header: destination port, and the word with the queue pair, the
/// second of the BTH.
const DESTINATION_PORT: u32 = 2;
const QUEUE_PAIR: u32 = 8 + 4;

/// Which packets are counted: RoCEv2 over IPv4, untagged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairFilter {
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Destination queue pair.
    pub queue_pair: QueuePair,
}

/// Which packets of an interface are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Those that it receives.
    Received,
    /// Those that it sends, too. An interface that sends packets of a queue pair receives none of it.
    Sent,
}

/// A socket that counts on one interface.
#[derive(Debug)]
pub struct QueuePairCounter {
    fd: OwnedFd,
}

impl QueuePairCounter {
    /// Opens a socket on an interface of the calling thread's namespace.
    ///
    /// # Errors
    /// As socket(2), setsockopt(2) and bind(2): without CAP_NET_RAW, or when the interface does not
    /// exist.
    pub fn open(ifindex: u32, filter: &QueuePairFilter, way: Way) -> io::Result<Self> {
        let fd = raw_socket()?;
        let on = libc::c_int::from(way == Way::Received);
        set_option(&fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &on)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, &ROOM)?;
        attach(&fd, &program(filter))?;
        bind(&fd, ifindex, (libc::ETH_P_ALL as u16).to_be())?;
        Ok(Self { fd })
    }

    /// How many packets came since the last call. A super-frame is one.
    ///
    /// # Errors
    /// As getsockopt(2).
    pub fn count(&mut self) -> io::Result<u64> {
        // Those that found no room are among them.
        Ok(statistics(&self.fd)?.tp_packets.into())
    }
}

fn program(filter: &QueuePairFilter) -> Vec<libc::sock_filter> {
    let QueuePairFilter { source, destination, queue_pair } = filter;
    let drop = step(RETURN, 0);
    let equals = |load: libc::sock_filter, value: u32| [load, skip_if(IF_EQUAL, value, 1), drop];
    let mut program = Vec::new();
    program.extend(equals(step(LOAD_HALF, 12), ETHERTYPE_IPV4.into()));
    program.extend(equals(step(LOAD_BYTE, ETHERNET + 9), PROTOCOL_UDP.into()));
    // A fragment behind the first has no UDP header.
    program.extend([step(LOAD_HALF, ETHERNET + 6), skip_unless(IF_ANY_BIT, 0x1fff, 1), drop]);
    program.extend(equals(step(LOAD_WORD, ETHERNET + 12), source.to_bits()));
    program.extend(equals(step(LOAD_WORD, ETHERNET + 16), destination.to_bits()));
    program.push(step(HEADER_LENGTH, ETHERNET));
    let port = step(LOAD_HALF_BEHIND, ETHERNET + DESTINATION_PORT);
    program.extend(equals(port, PORT_ROCE.into()));
    program.push(step(LOAD_WORD_BEHIND, ETHERNET + QUEUE_PAIR));
    program.extend(equals(step(ONLY_BITS, QueuePair::MAX), queue_pair.get()));
    program.push(step(RETURN, 1));
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::is_taken;

    const SOURCE: Ipv4Addr = Ipv4Addr::new(192, 168, 10, 1);
    const DESTINATION: Ipv4Addr = Ipv4Addr::new(192, 168, 10, 2);

    /// A packet with an IPv4 header of so many bytes.
    fn packet(header: usize) -> Vec<u8> {
        let mut ip = vec![0; header];
        (ip[0], ip[9]) = (0x40 | (header / 4) as u8, PROTOCOL_UDP);
        ip[12..16].copy_from_slice(&SOURCE.octets());
        ip[16..20].copy_from_slice(&DESTINATION.octets());
        let bth = [0x04, 0, 0xff, 0xff, 0xc0, 0, 0, 0x11, 0, 0, 0, 1];
        let udp = [&[0xc0, 0], &PORT_ROCE.to_be_bytes()[..], &[0; 4]].concat();
        [&[0; 12][..], &[8, 0], &ip, &udp, &bth].concat()
    }

    #[test]
    fn the_filter_takes_packets_of_one_queue_pair() {
        let queue_pair = QueuePair::try_from(0x11).unwrap();
        let filter = QueuePairFilter { source: SOURCE, destination: DESTINATION, queue_pair };
        let program = program(&filter);
        for header in [20, 60] {
            // F, B and reserved bits beside the queue pair do not count.
            let packet = packet(header);
            assert!(is_taken(&program, &packet));
            let behind = 14 + header;
            for at in [12, 14 + 9, 14 + 7, 14 + 15, 14 + 19, behind + 3, behind + 13, behind + 15] {
                let mut other = packet.clone();
                other[at] ^= 1;
                assert!(!is_taken(&program, &other), "byte {at} differs, header of {header} bytes");
            }
            for end in 0..behind + 16 {
                assert!(!is_taken(&program, &packet[..end]), "cut at {end}");
            }
        }
    }
}
