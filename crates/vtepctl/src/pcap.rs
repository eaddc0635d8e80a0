//! One frame of a capture file, in the format that `tcpdump -w` writes (pcap-savefile(5)).

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use crate::output::Failure;

/// `LINKTYPE_ETHERNET`.
const ETHERNET: u32 = 1;
/// No packet is longer (`MAXIMUM_SNAPLEN` of libpcap).
const LONGEST: u32 = 262_144;

/// The frame of this number, from 1.
///
/// # Errors
/// When the file cannot be read, is something else, or has fewer frames.
pub fn frame(path: &Path, number: usize) -> Result<Vec<u8>, Failure> {
    let wrong = |why: String| Failure::Input(format!("{}: {why}", path.display()));
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    read(&mut BufReader::new(file), number).map_err(wrong)
}

fn read(file: &mut impl Read, number: usize) -> Result<Vec<u8>, String> {
    let cut = |error: io::Error| format!("the capture is cut short ({error})");
    let mut header = [0; 24];
    file.read_exact(&mut header).map_err(cut)?;
    let [magic, _, _, _, _, link_type] = words(header);
    // Times in microseconds or nanoseconds, in the writer's byte order.
    let swapped = match magic {
        0xa1b2_c3d4 | 0xa1b2_3c4d => false,
        0xd4c3_b2a1 | 0x4d3c_b2a1 => true,
        0x0a0d_0d0a => return Err("this is pcapng; make it a pcap: tcpdump -r FILE -w NEW".to_owned()),
        _ => return Err("this is no pcap file".to_owned()),
    };
    let order = |word: u32| if swapped { word.swap_bytes() } else { word };
    // The upper bits are the FCS length and reserved.
    let link_type = order(link_type) & 0xffff;
    if link_type != ETHERNET {
        return Err(format!(
            "its link type is {link_type}, not Ethernet (capture on one interface, not on 'any')"
        ));
    }
    for at in 1.. {
        let mut record = [0; 16];
        match file.read_exact(&mut record) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(format!("it has only {} frames", at - 1));
            }
            read => read.map_err(cut)?,
        }
        let [_, _, captured, length] = words(record).map(order);
        if captured > LONGEST {
            return Err(format!("frame {at} claims {captured} bytes"));
        }
        let mut bytes = vec![0; captured as usize];
        file.read_exact(&mut bytes).map_err(cut)?;
        if at == number {
            if captured < length {
                return Err(format!(
                    "frame {at} has {length} bytes, of which {captured} were captured (-s 0)"
                ));
            }
            return Ok(bytes);
        }
    }
    Err("there is no such frame".to_owned())
}

/// Bytes as 32-bit words, most significant byte first.
fn words<const BYTES: usize, const WORDS: usize>(bytes: [u8; BYTES]) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(swapped: bool, link_type: u32, frames: &[&[u8]]) -> Vec<u8> {
        let word = |word: u32| if swapped { word.to_le_bytes() } else { word.to_be_bytes() };
        let mut bytes: Vec<u8> =
            [0xa1b2_c3d4, 0x0002_0004, 0, 0, 65_535, link_type].into_iter().flat_map(word).collect();
        for frame in frames {
            let length = frame.len() as u32;
            bytes.extend([1, 2, length, length].into_iter().flat_map(word));
            bytes.extend(*frame);
        }
        bytes
    }

    #[test]
    fn the_frame_of_a_number_is_found_in_both_byte_orders() {
        for swapped in [false, true] {
            let file = capture(swapped, ETHERNET, &[b"first", b"second"]);
            assert_eq!(read(&mut &file[..], 2).as_deref(), Ok(&b"second"[..]));
            assert_eq!(read(&mut &file[..], 3), Err("it has only 2 frames".to_owned()));
            assert!(read(&mut &file[..], 0).is_err());
            for end in 0..file.len() {
                assert!(read(&mut &file[..end], 2).is_err(), "cut at {end}");
            }
        }
    }

    #[test]
    fn what_is_no_ethernet_capture_is_named() {
        let any = capture(true, 276, &[b"first"]);
        assert!(read(&mut &any[..], 1).unwrap_err().contains("link type is 276"));
        assert!(read(&mut &[0x0a, 0x0d, 0x0d, 0x0a].repeat(6)[..], 1).unwrap_err().contains("pcapng"));
        let mut short = capture(false, ETHERNET, &[b"first"]);
        short[24 + 15] = 200;
        assert!(read(&mut &short[..], 1).unwrap_err().contains("of which 5 were captured"));
        short[24 + 8] = 0xff;
        assert!(read(&mut &short[..], 1).unwrap_err().contains("claims"));
    }
}
