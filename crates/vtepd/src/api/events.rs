//! Converts events to messages.

use std::time::{Duration, SystemTime};

use api::v1;
use control::Event;
use control::events::{MacChange, Read, Reader, Stamped};
use prost_types::Timestamp;
use tokio_stream::Stream;
use tonic::Status;

/// The time so many milliseconds ago. `None` if that is before all times.
pub(super) fn before_now(milliseconds: u64) -> Option<SystemTime> {
    SystemTime::now().checked_sub(Duration::from_millis(milliseconds))
}

/// Whether what was read happened at this time or later. Nobody knows when lost events did.
fn is_since(read: &Read, since: Option<SystemTime>) -> bool {
    match (read, since) {
        (Read::Event(stamped), Some(since)) => stamped.time >= since,
        (_, None) => true,
        (Read::Lost(_), Some(_)) => false,
    }
}

/// The events in the journal since a time. Ends after the last one.
pub(super) fn so_far(
    mut reader: Reader,
    since: Option<SystemTime>,
) -> impl Stream<Item = Result<v1::Event, Status>> {
    let all = std::iter::from_fn(move || reader.try_next());
    let wanted = all.filter(move |read| is_since(read, since));
    tokio_stream::iter(wanted.map(|read| Ok(message(&read))))
}

/// The events in the journal since a time, and then new ones as they happen.
pub(super) fn follow(
    reader: Reader,
    since: Option<SystemTime>,
) -> impl Stream<Item = Result<v1::Event, Status>> {
    futures_util::stream::unfold(reader, move |mut reader| async move {
        loop {
            let read = reader.next().await;
            if is_since(&read, since) {
                return Some((Ok(message(&read)), reader));
            }
        }
    })
}

fn message(read: &Read) -> v1::Event {
    match read {
        Read::Lost(lost) => v1::Event {
            kind: "lost".to_owned(),
            text: format!("{lost} events were forgotten before they were read"),
            lost: Some(*lost),
            ..v1::Event::default()
        },
        Read::Event(stamped) => event(stamped),
    }
}

/// RFC 3339 with microseconds, which is precise enough and keeps lines short.
pub(super) fn rfc3339(time: SystemTime) -> String {
    let Timestamp { seconds, nanos } = Timestamp::from(time);
    Timestamp { seconds, nanos: nanos / 1000 * 1000 }.to_string()
}

fn event(Stamped { sequence, time, event }: &Stamped) -> v1::Event {
    let mut message = v1::Event {
        sequence: *sequence,
        time: rfc3339(*time),
        kind: event.kind().to_owned(),
        text: event.to_string(),
        ..v1::Event::default()
    };
    match event {
        Event::Attached { vni, netdev }
        | Event::Detached { vni, netdev }
        | Event::Policy { vni, netdev, .. } => {
            message.vni = Some(vni.get());
            message.interface = Some(netdev.clone());
        }
        Event::Left(left) => {
            message.vni = (!left.reason.is_external()).then_some(left.vni);
            message.interface = Some(left.name.clone());
            message.reason_slug = Some(left.reason.slug().to_owned());
        }
        Event::Source { name, state } => {
            message.source = Some((*name).to_owned());
            message.state = Some(state.to_string());
        }
        Event::Mac { vni, netdev, change: MacChange { mac, from, to, local } } => {
            message.vni = Some(vni.get());
            message.interface = Some(netdev.clone());
            message.mac = Some(mac.to_string());
            message.vtep = to.map(|vtep| vtep.to_string());
            message.previous_vtep = from.map(|vtep| vtep.to_string());
            message.local = to.is_none().then_some(*local);
        }
        Event::Flapping { vni, netdev, mac, vtep, over } => {
            message.vni = Some(vni.get());
            message.interface = Some(netdev.clone());
            message.mac = Some(mac.to_string());
            message.vtep = vtep.map(|vtep| vtep.to_string());
            message.moves = *over;
        }
        Event::Flood { vni, netdev, vtep, .. } => {
            message.vni = Some(vni.get());
            message.interface = Some(netdev.clone());
            message.vtep = Some(vtep.to_string());
        }
        Event::NextHop { uplink, gateway, .. } => {
            message.interface = Some(uplink.clone());
            message.gateway = Some(gateway.to_string());
        }
        Event::Placement { buckets, vtep, .. } => {
            message.vtep = Some(vtep.to_string());
            message.buckets = u32::try_from(*buckets).ok();
        }
        Event::Impaired { uplink, .. } => message.interface = Some(uplink.clone()),
        Event::FpmSwept(_) => message.source = Some("fpm".to_owned()),
        Event::ByDefault { vtep, .. } => message.vtep = Some(vtep.to_string()),
        Event::Stalled { .. } | Event::Resynced(_) | Event::Reloaded | Event::Warning(_) => {}
    }
    message
}

#[cfg(test)]
mod tests {
    use control::SourceState;

    use super::*;

    fn message_of(event: Event) -> v1::Event {
        super::event(&Stamped {
            sequence: 7,
            time: SystemTime::UNIX_EPOCH + Duration::from_nanos(1_500_000_999),
            event,
        })
    }

    #[test]
    fn an_event_has_its_number_its_time_and_what_it_is_about() {
        let vni = wire::Vni::try_from(10).unwrap();
        let mac = wire::MacAddr([2, 0, 0, 0, 0, 1]);
        let [one, two] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(std::net::IpAddr::from);
        let change = MacChange { mac, from: Some(one), to: Some(two), local: false };
        let moved = message_of(Event::Mac { vni, netdev: "vx10".to_owned(), change });
        assert_eq!((moved.sequence, moved.time.as_str()), (7, "1970-01-01T00:00:01.500Z"));
        assert_eq!(moved.kind, "mac-moved");
        assert_eq!(
            moved.text,
            "02:00:00:00:00:01 in VNI 10 (vx10) is behind 10.0.0.2, not 10.0.0.1 any more"
        );
        assert_eq!(
            (moved.vtep.as_deref(), moved.previous_vtep.as_deref()),
            (Some("10.0.0.2"), Some("10.0.0.1"))
        );
        let here = MacChange { to: None, local: true, ..change };
        let here = message_of(Event::Mac { vni, netdev: "vx10".to_owned(), change: here });
        assert_eq!(
            (here.kind.as_str(), here.local, moved.local),
            ("mac-removed", Some(true), None)
        );
        assert!(
            here.text.ends_with("is behind 10.0.0.1 no more: it is on a port of the bridge"),
            "{}",
            here.text
        );
        let flap = |over| {
            message_of(Event::Flapping {
                vni,
                netdev: "vx10".to_owned(),
                mac,
                vtep: Some(two),
                over,
            })
        };
        assert_eq!(
            (flap(None).kind.as_str(), flap(Some(9)).kind.as_str()),
            ("mac-flapping", "mac-settled")
        );
        assert_eq!(
            flap(Some(9)).text,
            "02:00:00:00:00:01 in VNI 10 (vx10) stopped moving after 9 moves; it is behind 10.0.0.2"
        );
        let source = message_of(Event::Source { name: "fpm", state: SourceState::Live });
        assert_eq!(
            (source.source.as_deref(), source.state.as_deref()),
            (Some("fpm"), Some("live"))
        );
        assert_eq!(message(&Read::Lost(5)).lost, Some(5));
    }
}
