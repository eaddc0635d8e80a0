//! The decisions of `workers.bpf.h` and `steering.bpf.c` in `crates/bpf/programs`, in Rust.

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;
const PORT_ROCE: u16 = 4791;

/// A 32-bit word as the BPF program reads it on a little-endian machine.
fn word(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn half(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// The EtherType after at most two VLAN tags, and the offset of its payload.
fn behind_tags(data: &[u8]) -> Option<(u16, usize)> {
    let (mut ethertype, mut offset) = (half(data, 12)?, 14);
    for _ in 0..2 {
        if !matches!(ethertype, 0x8100 | 0x88a8) {
            break;
        }
        ethertype = half(data, offset + 2)?;
        offset += 4;
    }
    Some((ethertype, offset))
}

fn mix(hash: u32, word: u32) -> u32 {
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b1);
    hash ^ (hash >> 15)
}

/// The words that identify a flow: addresses, and a queue pair or ports.
fn flow(data: &[u8]) -> Option<Vec<u32>> {
    let words = |at: usize, count: usize| (0..count).map(|i| word(data, at + 4 * i)).collect();
    let network = behind_tags(data).and_then(|(ethertype, at)| match ethertype {
        IPV4 => {
            let addresses: Vec<u32> = words(at + 12, 2)?;
            let header = usize::from(data[at] & 0x0f) * 4;
            let whole = half(data, at + 6)? & 0x3fff == 0;
            Some((addresses, data[at + 9], whole.then_some(at + header)))
        }
        IPV6 => Some((words(at + 8, 8)?, data[at + 6], Some(at + 40))),
        _ => None,
    });
    let Some((mut key, protocol, transport)) = network else { return words(0, 3) };
    let ports = transport.filter(|_| matches!(protocol, TCP | UDP)).and_then(|at| {
        let ports = word(data, at)?;
        let queue_pair =
            || data.get(at + 12..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        let roce = protocol == UDP && half(data, at + 2) == Some(PORT_ROCE);
        // Two 16-bit words in network order, the source port first.
        let of_ports = (ports & 0xffff) << 16 | ports >> 16;
        Some(roce.then(queue_pair).flatten().map_or(of_ports, |queue_pair| queue_pair & 0xff_ffff))
    });
    key.extend(ports);
    Some(key)
}

/// The worker for an inner frame.
pub fn worker_of(data: &[u8], workers: u32) -> u32 {
    let Some(key) = flow(data) else { return 0 };
    let hash = mix(key.into_iter().fold(0, mix), 0);
    ((u64::from(hash) * u64::from(workers)) >> 32) as u32
}

/// Length of one segment of a super-frame. `None` if its headers cannot be parsed.
pub fn segment_length(data: &[u8], gso_size: u32) -> Option<u32> {
    let (ethertype, at) = behind_tags(data)?;
    let (protocol, at) = match ethertype {
        IPV4 => (*data.get(at + 9)?, at + usize::from(data.get(at)? & 0x0f) * 4),
        IPV6 => (*data.get(at + 6)?, at + 40),
        _ => return None,
    };
    let header = match protocol {
        TCP => usize::from(data.get(at + 12)? >> 4) * 4,
        UDP => 8,
        _ => return None,
    };
    Some((at + header) as u32 + gso_size)
}
