//! Which clients the server accepts, in which order it serves them, and errors of listening.

#![cfg(test)]

use std::time::Duration;

use fpm::{Disconnect, Event, Server, Transaction, Users};
use netlink::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A frame with one netlink message of an unused type.
fn frame(kind: u16) -> Vec<u8> {
    let mut bytes = vec![1, 1, 0, 20];
    bytes.extend(16u32.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0; 10]);
    bytes
}

fn server() -> Server {
    Server::bind("127.0.0.1:0".parse().unwrap(), Users::default()).unwrap()
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.local_address().unwrap()).await.unwrap()
}

/// The next event. The timeout makes a test fail instead of hang.
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
    // The second client is connected, but only the first is read.
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

/// A connection from a socket of this user. Needs root.
fn connect_as(uid: u32, server: &Server) -> TcpStream {
    let address = server.local_address().unwrap();
    // The filesystem user id is per thread, and new sockets belong to it.
    let connect = move || {
        nix::unistd::setfsuid(uid.into());
        std::net::TcpStream::connect(address).unwrap()
    };
    let stream = std::thread::spawn(connect).join().unwrap();
    stream.set_nonblocking(true).unwrap();
    TcpStream::from_std(stream).unwrap()
}

#[tokio::test]
async fn a_stranger_is_refused_and_named_once() {
    let mut server = server();
    let mut zebra = connect_as(0, &server);
    zebra.write_all(&frame(4001)).await.unwrap();
    assert!(matches!(next(&mut server).await, Event::Connected { .. }));
    assert!(is(&next(&mut server).await, 4001));
    for count in 1..=3 {
        let mut stranger = connect_as(65534, &server);
        // The connection may be closed before the frame is written.
        let _ = stranger.write_all(&frame(5001)).await;
        zebra.write_all(&frame(4002)).await.unwrap();
        let mut event = next(&mut server).await;
        if let Event::Refused { peer, uid } = event {
            assert_eq!((count, peer, uid), (1, stranger.local_addr().unwrap(), Some(65534)));
            event = next(&mut server).await;
        }
        assert!(is(&event, 4002), "{event:?}");
        // A refused connection does not end the wait for an event.
        let silence = tokio::time::timeout(Duration::from_millis(50), server.next()).await;
        assert!(silence.is_err() || count == 1, "{silence:?}");
        assert_eq!(server.take_refused(), 1);
        assert!(matches!(stranger.read(&mut [0]).await, Ok(0) | Err(_)), "the stranger is told");
    }
}

#[tokio::test]
async fn a_user_of_the_settings_displaces_another() {
    let users = Users { named: [0, 92].into(), anybody: true };
    let mut server = Server::bind("127.0.0.1:0".parse().unwrap(), users).unwrap();
    let mut other = connect_as(33, &server);
    other.write_all(&frame(5001)).await.unwrap();
    assert!(matches!(next(&mut server).await, Event::Connected { .. }));
    assert!(is(&next(&mut server).await, 5001));
    // A connection of the same rank waits.
    let _waits = connect_as(34, &server);
    let silence = tokio::time::timeout(Duration::from_millis(50), server.next()).await;
    assert!(silence.is_err(), "{silence:?}");

    let mut zebra = connect_as(92, &server);
    let event = next(&mut server).await;
    let Event::Disconnected { reason: Disconnect::Displaced { newcomer } } = event else {
        panic!("{event:?}")
    };
    assert_eq!(newcomer, zebra.local_addr().unwrap());
    assert!(matches!(next(&mut server).await, Event::Connected { peer } if peer == newcomer));
    // A connection of another user does not displace it, even before it has sent anything.
    let _other = connect_as(33, &server);
    let silence = tokio::time::timeout(Duration::from_millis(50), server.next()).await;
    assert!(silence.is_err(), "{silence:?}");
    zebra.write_all(&frame(4001)).await.unwrap();
    assert!(is(&next(&mut server).await, 4001));
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

/// Each call is cancelled many times, and no event is lost.
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

/// TCP flow control slows zebra down while no events are read, and nothing is dropped.
#[tokio::test]
async fn a_slow_reader_slows_zebra_down() {
    let mut server = server();
    let mut zebra = connect(&server).await;
    assert!(matches!(next(&mut server).await, Event::Connected { .. }));
    // Writes a megabyte at a time until the TCP buffers are full.
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
    let error = Server::bind(address, Users::default()).unwrap_err().to_string();
    assert!(error.contains(&address.to_string()), "{error}");
    assert!(
        error.contains("in use") && error.contains("ss -ltnp") && error.contains("fpm address"),
        "{error}"
    );
}

/// After a restart the port can be bound, although connections of the former process are in
/// TIME_WAIT.
#[tokio::test]
async fn a_restart_takes_the_port_again() {
    let mut first = server();
    let address = first.local_address().unwrap();
    let mut zebra = connect(&first).await;
    assert!(matches!(next(&mut first).await, Event::Connected { .. }));
    drop(first);
    assert_eq!(zebra.read(&mut [0]).await.unwrap(), 0);
    drop(zebra);
    let mut second = Server::bind(address, Users::default()).unwrap();
    let _zebra = TcpStream::connect(address).await.unwrap();
    assert!(matches!(next(&mut second).await, Event::Connected { .. }));
}
