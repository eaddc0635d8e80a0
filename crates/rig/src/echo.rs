//! Round trips between the two hosts.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::cpu::{self, Pinned};
use crate::{Bed, Daemon, Error};

/// How long a datagram may take before it counts as lost.
const PATIENCE: Duration = Duration::from_millis(500);
/// Bytes of a datagram: what an acknowledgement of RoCE has, more or less.
const PAYLOAD: usize = 64;
const HOST: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);

/// What round trips took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Echo {
    /// Microseconds of the one in the middle.
    pub p50: f64,
    /// Microseconds that one of a hundred exceeds.
    pub p99: f64,
    /// Datagrams that did not arrive.
    pub lost: usize,
}

impl Echo {
    /// One datagram after the other, for so long. One thread has both hosts' sockets, so nobody
    /// waits for a thread but vtepd's: the kernel has delivered when sending returns. All is on one
    /// core, or vtepd on another.
    ///
    /// # Errors
    /// When none comes back.
    pub fn take(
        bed: &Bed,
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
                socket.set_read_timeout(Some(PATIENCE))?;
                Ok(socket)
            }
        };
        let (near, far) = (bed.host.enter(open(HOST))??, bed.far.enter(open(FAR))??);
        near.connect(far.local_addr()?)?;
        far.connect(near.local_addr()?)?;
        let (mut took, mut echo) = (Vec::new(), Self::default());
        let start = Instant::now();
        while start.elapsed() < time || took.is_empty() {
            let began = Instant::now();
            match there_and_back(&near, &far) {
                Ok(()) => took.push(began.elapsed().as_nanos() as f64 / 1e3),
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
        // The first ones find caches cold and tables empty.
        took.drain(..took.len() / 10);
        took.sort_by(f64::total_cmp);
        let at =
            |hundredth: usize| took.get(took.len() * hundredth / 100).copied().unwrap_or(f64::NAN);
        (echo.p50, echo.p99) = (at(50), at(99));
        Ok(echo)
    }
}

fn address(socket: SocketAddr) -> String {
    socket.ip().to_string()
}

fn there_and_back(near: &UdpSocket, far: &UdpSocket) -> std::io::Result<()> {
    let mut bytes = [0; PAYLOAD];
    near.send(&bytes)?;
    far.recv(&mut bytes)?;
    far.send(&bytes)?;
    near.recv(&mut bytes)?;
    Ok(())
}
