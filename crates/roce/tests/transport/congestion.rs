//! A marked frame lowers the rate of its queue pair.

use roce::{Settings, dcqcn};
use wire::ecn::{self, Codepoint};

use crate::host::{chart, hosts};

#[test]
fn a_mark_causes_one_notification_for_each_interval() {
    let settings = Settings {
        mtu: 256,
        rate: 1_000_000_000,
        dcqcn: Some(dcqcn::Parameters::default()),
        ..Settings::default()
    };
    let [mut a, mut b] = hosts(&settings, 2, 4096);
    a.write(1, 1024);
    let (frames, _) = a.transmit(1_000_000);
    assert_eq!(frames.len(), 4);
    for mut frame in frames {
        assert_eq!(Codepoint::of(frame[15]), Codepoint::Ect0);
        assert!(ecn::set(&mut frame[14..], Codepoint::Ce));
        b.receive(1_000_000, &frame);
    }
    let (frames, _) = b.transmit(1_000_000);
    assert_eq!(chart(&frames, 0), ["cnp", "ack 3"]);
    frames.iter().for_each(|frame| a.receive(1_000_000, frame));
    let (sender, receiver) = (a.endpoint.counters(), b.endpoint.counters());
    assert_eq!((receiver.np_ecn_marked_roce_packets, receiver.np_cnp_sent), (4, 1));
    assert_eq!((sender.rp_cnp_handled, sender.rp_cnp_ignored), (1, 0));
    let rates: Vec<_> = a.pairs.iter().map(|pair| a.endpoint.rate(*pair)).collect();
    assert_eq!(rates, [Some(500_000_000.0), None]);

    // Packets now leave at the lower rate: 314 bytes at 500 Mbit/s last 5.024 µs.
    a.write(2, 1024);
    let mut times = Vec::new();
    let mut now = 1_000_000;
    while times.len() < 4 {
        let (frames, wake) = a.transmit(now);
        times.extend(frames.iter().map(|_| now));
        now = wake.unwrap();
    }
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps, [5280, 5024, 5024]);
}
