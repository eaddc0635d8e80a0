//! Messages of zebra and of the kernel.

use std::hint::black_box;

use fpm::{Encoding, Error, Frame, Framer};
use netlink::{DecodeError, Malformed};

/// Frames do not depend on how the stream is split into reads. Each frame decodes or returns the
/// position of the error.
pub fn fpm_stream(data: &[u8]) {
    let (&size, stream) = data.split_first().unwrap_or((&0, &[]));
    let read = |chunk: usize| {
        let (mut framer, mut frames) = (Framer::new(), Vec::<Frame>::new());
        for bytes in stream.chunks(chunk) {
            framer.push(bytes);
            loop {
                match framer.next_frame() {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(error) => return (frames, Some(error)),
                }
            }
        }
        (frames, None)
    };
    let whole = read(stream.len().max(1));
    assert_eq!(whole, read(usize::from(size).max(1)));
    let mut end = 0;
    for frame in &whole.0 {
        assert_eq!(frame.offset, end, "frames follow each other without a gap");
        let start = frame.payload_offset();
        end = start + frame.payload.len() as u64;
        assert_eq!(frame.payload, stream[start as usize..end as usize]);
        match fpm::decode_frame(frame) {
            Ok(transaction) if frame.encoding == Encoding::Netlink => {
                assert!(transaction.messages.len() <= frame.payload.len() / 16);
            }
            Ok(transaction) => assert!(transaction.messages.len() <= frame.payload.len() + 1),
            Err(Error::Netlink { offset, source }) => {
                assert!(offset == start && source.offset <= frame.payload.len());
            }
            Err(Error::Protobuf { offset, .. }) => assert_eq!(offset, start),
        }
    }
    assert!(end <= stream.len() as u64);
}

/// Decoding ends. Nothing follows a message with a wrong length of its own. A message's meaning
/// does not depend on the messages before it.
pub fn netlink_decode(data: &[u8]) {
    let whole: Vec<_> = netlink::decode(data).collect();
    assert!(whole.len() <= data.len() / 16 + 1);
    for (index, result) in whole.iter().enumerate() {
        match result {
            Ok(message) => _ = black_box(format!("{message:?}")),
            Err(DecodeError { offset, what }) => {
                assert!(*offset <= data.len());
                let ends = matches!(
                    what,
                    Malformed::MessageHeader { .. } | Malformed::MessageLength { .. }
                );
                assert!(!ends || index + 1 == whole.len(), "a message behind one without an end");
            }
        }
    }
    let Some(length) = data.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes) as usize) else {
        return;
    };
    let next = length.next_multiple_of(4);
    if length < 16 || next >= data.len() {
        return;
    }
    let moved = |result: Result<_, DecodeError>| {
        result.map_err(|error| DecodeError { offset: error.offset + next, ..error })
    };
    let parts: Vec<_> =
        netlink::decode(&data[..next]).chain(netlink::decode(&data[next..]).map(moved)).collect();
    assert_eq!(whole, parts);
}
