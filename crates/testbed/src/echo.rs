//! Round-trip times between the two hosts.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::cpu::{self, Pinned};
use crate::{Daemon, Error, Testbed};

/// The time after which a datagram counts as lost.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);
/// The payload of a datagram in bytes, similar to a RoCE acknowledgement.
const PAYLOAD: usize = 64;
const HOST: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);

/// Round-trip times.
#[derive(Debug, Clone, Copy, Default)]
pub struct Echo {
    /// The median in microseconds.
    pub p50: f64,
    /// The 99th percentile in microseconds.
    pub p99: f64,
    /// The number of lost datagrams.
    pub lost: usize,
}

impl Echo {
    /// Sends one datagram after another for `time`. One thread has the sockets of both hosts, and
    /// the kernel delivers within the send call. So only vtepd's worker has to be scheduled. vtepd
    /// runs on the last of the `cores` cores, everything else on the first.
    ///
    /// # Errors
    /// If no datagram returns.
    pub fn take(
        testbed: &Testbed,
        time: Duration,
        cores: usize,
        daemon: Option<&Daemon>,
    ) -> Result<Self, Error> {
        let _pinned = Pinned::to(0)?;
        if let Some(daemon) = daemon {
            cpu::pin_process(daemon.id(), &[cores - 1])?;
        }
        let open = |address: Ipv4Addr| {
            move || -> std::io::Result<UdpSocket> {
                let socket = UdpSocket::bind((address, 0))?;
                socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
                Ok(socket)
            }
        };
        let (near, far) = (testbed.host.enter(open(HOST))??, testbed.far.enter(open(FAR))??);
        near.connect(far.local_addr()?)?;
        far.connect(near.local_addr()?)?;
        let (mut times, mut echo) = (Vec::new(), Self::default());
        let start = Instant::now();
        while start.elapsed() < time || times.is_empty() {
            let began = Instant::now();
            match round_trip(&near, &far) {
                Ok(()) => times.push(began.elapsed().as_nanos() as f64 / 1e3),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => echo.lost += 1,
                Err(error) => return Err(error.into()),
            }
            if echo.lost > 10 {
                return Err(format!(
                    "datagrams from {} to {FAR} are lost",
                    address(near.local_addr()?)
                )
                .into());
            }
        }
        // The first ones are slower, because caches and tables are empty.
        times.drain(..times.len() / 10);
        times.sort_by(f64::total_cmp);
        let at = |hundredth: usize| {
            times.get(times.len() * hundredth / 100).copied().unwrap_or(f64::NAN)
        };
        (echo.p50, echo.p99) = (at(50), at(99));
        Ok(echo)
    }
}

fn address(socket: SocketAddr) -> String {
    socket.ip().to_string()
}

fn round_trip(near: &UdpSocket, far: &UdpSocket) -> std::io::Result<()> {
    let mut bytes = [0; PAYLOAD];
    near.send(&bytes)?;
    far.recv(&mut bytes)?;
    far.send(&bytes)?;
    near.recv(&mut bytes)?;
    Ok(())
}
