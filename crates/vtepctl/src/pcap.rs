//! Reads one frame of a capture file in the format of `tcpdump -w` (pcap-savefile(5)).

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use crate::output::Failure;

/// `LINKTYPE_ETHERNET`.
const ETHERNET: u32 = 1;
/// Maximum length of a packet (`MAXIMUM_SNAPLEN` of libpcap).
const LONGEST: u32 = 262_144;

/// A hint for files that hold too few frames.
const AGAIN: &str =
    "let it run until frames have passed and end it by Ctrl-C; with -U it writes each at once";

/// The frame of this number, from 1.
///
/// # Errors
/// When the file cannot be read, is not a pcap file, or has fewer frames. The text says what to do.
pub(crate) fn frame(path: &Path, number: usize) -> Result<Vec<u8>, Failure> {
    let wrong = |why: String| Failure::Input(format!("{}: {why}", path.display()));
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            wrong("there is no such file; `tcpdump -i INTERFACE -w FILE` makes one".to_owned())
        }
        _ => wrong(error.to_string()),
    })?;
    read(&mut BufReader::new(file), number).map_err(wrong)
}

fn read(file: &mut impl Read, number: usize) -> Result<Vec<u8>, String> {
    if number == 0 {
        return Err("frames are counted from 1".to_owned());
    }
    let header: [u8; 24] = match next(file, 24)?.as_slice() {
        [] => return Err(format!("the file is empty: tcpdump has not written to it yet; {AGAIN}")),
        // Too short for a header: the file may be of any kind.
        bytes => bytes
            .try_into()
            .map_err(|_| "this is no pcap file, or one that is cut short".to_owned())?,
    };
    let [magic, _, _, _, _, link_type] = words(header);
    // Timestamps in microseconds or nanoseconds, in the byte order of the writer.
    let swapped = match magic {
        0xa1b2_c3d4 | 0xa1b2_3c4d => false,
        0xd4c3_b2a1 | 0x4d3c_b2a1 => true,
        0x0a0d_0d0a => {
            return Err("this is pcapng; make it a pcap: tcpdump -r FILE -w NEW".to_owned());
        }
        _ => return Err("this is no pcap file: `tcpdump -w FILE` writes one".to_owned()),
    };
    let order = |word: u32| if swapped { word.swap_bytes() } else { word };
    // The upper bits hold the FCS length and reserved bits.
    let link_type = order(link_type) & 0xffff;
    if link_type != ETHERNET {
        return Err(format!(
            "its link type is {link_type}, not Ethernet (capture on one interface, not on 'any')"
        ));
    }
    for at in 1.. {
        let cut = || match at - 1 {
            0 => format!("the capture is cut short in its first frame; {AGAIN}"),
            whole => {
                format!("the capture is cut short: of its frames, 1 to {whole} are whole; {AGAIN}")
            }
        };
        let record: [u8; 16] = match (next(file, 16)?.as_slice(), at - 1) {
            ([], 0) => return Err(format!("no frame was captured; {AGAIN}")),
            ([], 1) => return Err("it has only one frame: --frame 1".to_owned()),
            ([], whole) => return Err(format!("it has only {whole} frames: --frame 1 to {whole}")),
            (bytes, _) => bytes.try_into().map_err(|_| cut())?,
        };
        let [_, _, captured, length] = words(record).map(order);
        if captured > LONGEST {
            return Err(format!("frame {at} claims {captured} bytes: the file is damaged"));
        }
        let bytes = next(file, captured)?;
        if bytes.len() < captured as usize {
            return Err(cut());
        }
        if at == number {
            if captured < length {
                return Err(format!(
                    "frame {at} has {length} bytes, of which {captured} were captured: let tcpdump take all of them (-s 0)"
                ));
            }
            return Ok(bytes);
        }
    }
    Err("there is no such frame".to_owned())
}

/// Reads this many bytes, or fewer at the end of the file.
fn next(file: &mut impl Read, count: u32) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = file.take(count.into()).read_to_end(&mut bytes);
    read.map_err(|error| format!("the file cannot be read: {error}"))?;
    Ok(bytes)
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
        let mut bytes: Vec<u8> = [0xa1b2_c3d4, 0x0002_0004, 0, 0, 65_535, link_type]
            .into_iter()
            .flat_map(word)
            .collect();
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
            assert_eq!(
                read(&mut &file[..], 3),
                Err("it has only 2 frames: --frame 1 to 2".to_owned())
            );
            assert_eq!(read(&mut &file[..], 0), Err("frames are counted from 1".to_owned()));
            for end in 0..file.len() {
                assert!(read(&mut &file[..end], 2).is_err(), "cut at {end}");
            }
        }
    }

    #[test]
    fn what_is_no_ethernet_capture_is_named() {
        let any = capture(true, 276, &[b"first"]);
        assert!(read(&mut &any[..], 1).unwrap_err().contains("link type is 276"));
        assert!(
            read(&mut &[0x0a, 0x0d, 0x0d, 0x0a].repeat(6)[..], 1).unwrap_err().contains("pcapng")
        );
        let mut short = capture(false, ETHERNET, &[b"first"]);
        short[24 + 15] = 200;
        assert!(read(&mut &short[..], 1).unwrap_err().contains("of which 5 were captured"));
        short[24 + 8] = 0xff;
        assert!(read(&mut &short[..], 1).unwrap_err().contains("claims"));
    }

    #[test]
    fn what_is_empty_or_cut_short_says_so_and_what_to_do() {
        let whole = capture(true, ETHERNET, &[b"first", b"second"]);
        for (length, number, words) in [
            (0, 1, "the file is empty: tcpdump has not written to it yet; let it run"),
            (23, 1, "no pcap file, or one that is cut short"),
            (24, 1, "no frame was captured; let it run"),
            (24 + 15, 1, "cut short in its first frame; let it run"),
            (24 + 16 + 5, 2, "it has only one frame: --frame 1"),
            (24 + 16 + 5 + 16, 2, "cut short: of its frames, 1 to 1 are whole; let it run"),
        ] {
            let said = read(&mut &whole[..length], number).unwrap_err();
            assert!(said.contains(words), "{length}: {said}");
        }
        let said = |path: &str| frame(Path::new(path), 1).unwrap_err().to_string();
        assert!(
            said("/no/such.pcap").contains("/no/such.pcap: there is no such file; `tcpdump -i")
        );
        assert!(said("/").contains("cannot be read: Is a directory"), "{}", said("/"));
    }
}
