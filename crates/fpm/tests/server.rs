//! Who may talk to the server, when, and what it says when it cannot serve.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)] // Helpers of tests, which may.

use std::time::Duration;

use fpm::{Disconnect, Event, Server, Transaction};
use netlink::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A frame with one netlink message of a type that nobody uses.
fn frame(kind: u16) -> Vec<u8> {
    let mut bytes = vec![1, 1, 0, 20];
    bytes.extend(16u32.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0; 10]);
    bytes
}

fn server() -> Server {
    Server::bind("127.0.0.1:0".parse().unwrap()).unwrap()
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.local_address().unwrap()).await.unwrap()
}

/// The next event; a test that waits in vain fails instead of hanging.
async fn next(server: &mut Server) -> Event {
    tokio::time::timeout(Duration::from_secs(20), server.next()).await.expect("an event")
}

fn is(event: &Event, kind: u16) -> bool {
    matches!(event, Event::Transaction(Transaction { messages }) if messages == &[Message::Other(kind)])
}

#[tokio::test]
async fn who_has_spoken_stays_and_a_second_client_waits() {
    let mut server = server();
    let mut first = connect(&server).await;
    first.write_all(&frame(4001)).await.unwrap();
    assert!(
        matches!(next(&mut server).await, Event::Connected { peer } if peer == first.local_addr().unwrap())
    );
    assert!(is(&next(&mut server).await, 4001));

    let mut second = connect(&server).await;
    second.write_all(&frame(5001)).await.unwrap();
    // The second is there, and yet only the first is heard.
    let silence = tokio::time::timeout(Duration::from_millis(50), server.next()).await;
    assert!(silence.is_err(), "{silence:?}");
    first.write_all(&frame(4002)).await.unwrap();
    assert!(is(&next(&mut server).await, 4002));

    drop(first);
    assert!(matches!(next(&mut server).await, Event::Disconnected { reason: Disconnect::Closed }));
    assert!(
        matches!(next(&mut server).await, Event::Connected { peer } if peer == second.local_addr().unwrap())
    );
    assert!(is(&next(&mut server).await, 5001));
}

#[tokio::test]
async fn who_says_nothing_makes_room() {
    let mut server = server();
    let mut stranger = connect(&server).await;
    assert!(matches!(next(&mut server).await, Event::Connected { .. }));
    let mut zebra = connect(&server).await;
    let newcomer = zebra.local_addr().unwrap();
    let event = next(&mut server).await;
    assert!(
        matches!(event, Event::Disconnected { reason: Disconnect::Replaced { newcomer: who } } if who == newcomer),
        "{event:?}"
    );
    assert!(matches!(next(&mut server).await, Event::Connected { peer } if peer == newcomer));
    zebra.write_all(&frame(4001)).await.unwrap();
    assert!(is(&next(&mut server).await, 4001));
    assert_eq!(stranger.read(&mut [0]).await.unwrap(), 0, "the stranger is told");
}

/// Every event is dropped half-way many times; none is lost.
#[tokio::test]
async fn next_may_be_dropped_at_any_time() {
    let mut server = server();
    let mut zebra = connect(&server).await;
    let stream: Vec<u8> = (0..500).flat_map(|number| frame(4000 + number)).collect();
    let writer = tokio::spawn(async move {
        for octets in stream.chunks(7) {
            zebra.write_all(octets).await.unwrap();
            tokio::task::yield_now().await;
        }
        zebra
    });
    let mut seen = 0;
    while seen < 500 {
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => {}
            event = server.next() => match event {
                Event::Connected { .. } => {}
                event => {
                    assert!(is(&event, 4000 + seen), "{event:?} after {seen}");
                    seen += 1;
                }
            },
        }
    }
    writer.await.unwrap();
}

/// zebra waits in TCP while nobody asks for events, and nothing is dropped.
#[tokio::test]
async fn a_slow_reader_slows_zebra_down() {
    let mut server = server();
    let mut zebra = connect(&server).await;
    assert!(matches!(next(&mut server).await, Event::Connected { .. }));
    // A megabyte of frames at a time until TCP has room for no more.
    let chunk: Vec<u8> = frame(4001).repeat(50_000);
    let mut sent = 0;
    while let Ok(written) =
        tokio::time::timeout(Duration::from_millis(200), zebra.write(&chunk[sent % 20..])).await
    {
        sent += written.unwrap();
        assert!(sent < 64 << 20, "somebody takes it all");
    }
    let complete = sent / 20;
    for _ in 0..complete {
        assert!(is(&next(&mut server).await, 4001));
    }
    drop(zebra);
    match next(&mut server).await {
        Event::Disconnected { reason: Disconnect::Closed } => assert_eq!(sent % 20, 0),
        Event::Disconnected { reason: Disconnect::ClosedInsideFrame { pending } } => {
            assert_eq!(sent % 20, pending)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_taken_address_says_what_to_do() {
    let server = server();
    let address = server.local_address().unwrap();
    let error = Server::bind(address).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()), "{error}");
    assert!(
        error.contains("in use") && error.contains("ss -ltnp") && error.contains("fpm address"),
        "{error}"
    );
}

/// After a restart the port is free although connections of the former process are in TIME_WAIT.
#[tokio::test]
async fn a_restart_takes_the_port_again() {
    let mut first = server();
    let address = first.local_address().unwrap();
    let mut zebra = connect(&first).await;
    assert!(matches!(next(&mut first).await, Event::Connected { .. }));
    drop(first);
    assert_eq!(zebra.read(&mut [0]).await.unwrap(), 0);
    drop(zebra);
    let mut second = Server::bind(address).unwrap();
    let _zebra = TcpStream::connect(address).await.unwrap();
    assert!(matches!(next(&mut second).await, Event::Connected { .. }));
}
