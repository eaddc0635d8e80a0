//! A local process that holds vtepd's sockets or asks vtepd to end. Tests start it as a user without
//! privileges.
//!
//! Usage: `other-user TASK FILE`. It creates FILE when the task is done, and then waits until its
//! standard input ends.

use std::any::Any;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

fn name(name: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(name).unwrap()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (task, done) = (arguments.next().unwrap(), arguments.next().unwrap());
    let mut held: Vec<Box<dyn Any>> = Vec::new();
    match task.as_str() {
        // Holds the names and the port of vtepd's sockets.
        "hold" => {
            for taken in ["vtepd", "vtepd-api"] {
                held.push(Box::new(UnixListener::bind_addr(&name(taken)).unwrap()));
            }
            held.push(Box::new(TcpListener::bind("127.0.0.1:9472").unwrap()));
        }
        // Connects to vtepd and sends nothing.
        "connect" => {
            for _ in 0..100 {
                held.push(Box::new(UnixStream::connect_addr(&name("vtepd")).unwrap()));
            }
        }
        // Asks vtepd to end, without the capability for it.
        "end" => {
            let mut stream = UnixStream::connect_addr(&name("vtepd")).unwrap();
            stream.write_all(b"end\n").unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "vtepd closes the connection");
        }
        other => panic!("unknown task {other}"),
    }
    std::fs::write(done, "").unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}
