//! A replayed recording arrives as zebra sent it.

#![cfg(test)]

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use fpm::{Event, ReplayError, Replayed, Server, Users, replay};
use netlink::Message;

/// Frames with one netlink message each, of unused types.
fn recording(kinds: std::ops::Range<u16>) -> Vec<u8> {
    let frame = |kind: u16| {
        let mut bytes = vec![1, 1, 0, 20];
        bytes.extend(16u32.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes
    };
    kinds.flat_map(frame).collect()
}

/// Replays a recording to a server. Returns the result and the message types that the server
/// received.
async fn played(
    recording: Vec<u8>,
    rate: Option<u32>,
) -> (Result<Replayed, ReplayError>, Vec<u16>) {
    let mut server = Server::bind("127.0.0.1:0".parse().unwrap(), Users::default()).unwrap();
    let address = server.local_address().unwrap();
    let rate = rate.and_then(NonZeroU32::new);
    let playing = tokio::task::spawn_blocking(move || replay(recording.as_slice(), address, rate));
    let mut heard = Vec::new();
    loop {
        match tokio::time::timeout(Duration::from_secs(20), server.next()).await.expect("an event")
        {
            Event::Connected { .. } => {}
            Event::Transaction(transaction) => {
                heard.extend(transaction.messages.into_iter().map(|message| match message {
                    Message::Other(kind) => kind,
                    other => panic!("{other:?}"),
                }));
            }
            Event::Disconnected { .. } => return (playing.await.unwrap(), heard),
            refused @ Event::Refused { .. } => panic!("{refused:?}"),
        }
    }
}

#[tokio::test]
async fn every_frame_arrives_once_and_in_order() {
    // More than one chunk of the file.
    let (result, heard) = played(recording(4000..9000), None).await;
    let replayed = result.unwrap();
    assert_eq!((replayed.frames, replayed.bytes), (5000, 100_000));
    assert_eq!(heard, (4000..9000).collect::<Vec<_>>());
}

#[tokio::test]
async fn no_faster_than_asked() {
    let (result, heard) = played(recording(4000..4020), Some(400)).await;
    assert!(result.unwrap().time >= Duration::from_millis(50), "20 frames at 400 frames/s");
    assert_eq!(heard.len(), 20);
}

#[tokio::test]
async fn what_is_whole_of_a_damaged_recording_is_sent_and_the_rest_is_named() {
    let mut cut = recording(4000..4003);
    cut.truncate(50);
    let (result, heard) = played(cut, None).await;
    assert!(matches!(result, Err(ReplayError::Cut { pending: 10, frames: 2 })), "{result:?}");
    assert_eq!(heard, [4000, 4001]);
    let (result, heard) = played([recording(4000..4003), vec![9; 100]].concat(), None).await;
    assert!(result.unwrap_err().to_string().contains("FPM version 9"));
    assert_eq!(heard, [4000, 4001, 4002]);
    let (result, _) = played(vec![9; 100], None).await;
    assert!(result.unwrap_err().to_string().contains("byte 0: FPM version 9"));
}

#[test]
fn without_a_server_it_says_what_to_do() {
    let free: SocketAddr = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let error = replay(recording(1..2).as_slice(), free, None).unwrap_err().to_string();
    assert!(error.contains(&free.to_string()) && error.contains("is vtepd running"), "{error}");
}
