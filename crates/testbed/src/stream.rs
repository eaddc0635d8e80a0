//! TCP throughput between the two hosts.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::{Daemon, Error, Testbed, cpu};

const HOST: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
const CHUNK: usize = 128 << 10;
const IO_TIMEOUT: Duration = Duration::from_secs(5);

/// The direction of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Towards {
    /// From the leaf's host to the peer's host: vtepd encapsulates.
    Far,
    /// From the peer's host to the leaf's host: vtepd decapsulates.
    Host,
}

/// The throughput of one TCP stream with MTU 1500, in Gbit/s. It is measured for `time`, after a
/// warm-up of half of that. Threads are not pinned.
///
/// # Errors
/// If no connection can be established, or it breaks.
pub fn throughput(
    testbed: &Testbed,
    towards: Towards,
    time: Duration,
    daemon: Option<&Daemon>,
) -> Result<f64, Error> {
    if let Some(daemon) = daemon {
        cpu::pin_process(daemon.id(), &(0..cpu::count()).collect::<Vec<_>>())?;
    }
    let listener = testbed.far.enter(|| TcpListener::bind((FAR, 0)))??;
    let port = listener.local_addr()?.port();
    let connect = || {
        // The host has only one address, HOST, so the socket is not bound.
        TcpStream::connect_timeout(&(FAR, port).into(), IO_TIMEOUT)
    };
    let near = testbed
        .host
        .enter(connect)?
        .map_err(|error| format!("no TCP from {HOST} to {FAR}: {error}"))?;
    let (far, _) = listener.accept()?;
    let (mut from, mut to) = if towards == Towards::Far { (near, far) } else { (far, near) };
    to.set_read_timeout(Some(IO_TIMEOUT))?;
    from.set_write_timeout(Some(IO_TIMEOUT))?;
    let got = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let stop = to.try_clone()?;
        let receiving = scope.spawn(|| -> std::io::Result<()> {
            let mut bytes = vec![0; CHUNK];
            loop {
                match to.read(&mut bytes)? {
                    0 => return Ok(()),
                    count => got.fetch_add(count as u64, Ordering::Relaxed),
                };
            }
        });
        let sending = scope.spawn(|| -> std::io::Result<()> {
            let bytes = vec![0x5a; CHUNK];
            loop {
                match from.write(&bytes) {
                    Ok(_) => {}
                    Err(error)
                        if matches!(
                            error.kind(),
                            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
                        ) =>
                    {
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
            }
        });
        std::thread::sleep(time / 2);
        let (start, before) = (Instant::now(), got.load(Ordering::Relaxed));
        std::thread::sleep(time);
        let (bytes, elapsed) = (got.load(Ordering::Relaxed) - before, start.elapsed());
        // Shuts the receiver's socket down in both directions, which also ends the sender.
        stop.shutdown(Shutdown::Both)?;
        for thread in [receiving, sending] {
            match thread.join() {
                Ok(Err(error)) if error.kind() != ErrorKind::ConnectionReset => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        if bytes == 0 {
            return Err("no TCP data arrived".into());
        }
        Ok(bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e9)
    })
}
