//! A local user without privileges cannot inject routes over FPM.

use std::io::Write as _;
use std::net::TcpStream;

use nix::unistd::setfsuid;
use root_test::root_test;
use vtepd_tests::{Lab, Vtepd, sockets};

/// An FPM frame with a blackhole route to 10.0.0.2/32, as zebra sends it.
fn blackhole() -> Vec<u8> {
    let mut frame = vec![1, 1, 0, 40];
    // nlmsghdr: RTM_NEWROUTE, NLM_F_REQUEST | NLM_F_CREATE; rtmsg: /32, table main, RTPROT_ZEBRA,
    // RTN_BLACKHOLE.
    frame.extend(36u32.to_ne_bytes());
    frame.extend(24u16.to_ne_bytes());
    frame.extend(0x401u16.to_ne_bytes());
    frame.extend([0; 8]);
    frame.extend([2, 32, 0, 0, 254, 11, 0, 6, 0, 0, 0, 0]);
    frame.extend([8, 0, 1, 0, 10, 0, 0, 2]);
    frame
}

/// Sends the frame over a connection of this user.
fn send_as(lab: &Lab, uid: u32) -> TcpStream {
    let connect = || {
        // A socket belongs to the file system user ID, which is an attribute of the thread.
        setfsuid(uid.into());
        let stream = TcpStream::connect("127.0.0.1:2620");
        setfsuid(0.into());
        stream
    };
    let mut stream = lab.leaf.enter(connect).unwrap().unwrap();
    let _ = stream.write_all(&blackhole());
    stream
}

#[root_test]
fn a_stranger_changes_no_route() {
    let lab = Lab::new("fpmpeers");
    let vtepd = Vtepd::start(&lab.leaf, &[]);
    // `nobody`, and a service that has nothing to do with FRR.
    let _strangers = [65534, 33].map(|user| {
        let stranger = send_as(&lab, user);
        vtepd.wait_for_log(&format!("was refused: user {user} may not connect"));
        stranger
    });
    sockets::ping(&lab.host, lab.far.ip(), 5, 56, &[]);
    assert_eq!(vtepd.metrics().get("vtepd_fpm_refused_connections_total"), 2);
    let status = vtepd.ask(&["status"]);
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("2 FPM connection(s) of users who may not connect"), "{warnings}");

    // The same frame from root is accepted.
    let _zebra = send_as(&lab, 0);
    vtepd.wait_for("frames for a VTEP without a route", |metrics| {
        let _ = sockets::try_ping(&lab.host, lab.far.ip(), 1, 56, &["-W", "0.05"]);
        metrics.dropped("no_route") > 0
    });
}
