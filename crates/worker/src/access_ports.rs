//! The access ports of standalone VNIs: one worker's share of them, and how it forwards between
//! them and the underlay.

use std::time::Instant;

use frame::{Batch, Destination, Queue, TxBatch};
use pipeline::{Bridge, Pipeline, Place, Station};
use ports::{AccessPort, PacketSocket};
use wire::Vni;

use crate::worker::Engine;

/// Stations that bridges of workers have learned.
pub type Stations = Vec<Station>;

/// The access ports of one worker, and its bridge. Empty unless there are standalone VNIs.
#[derive(Debug, Default)]
pub struct WorkerPorts {
    /// Its VNIs. Each VNI belongs to one worker.
    pub vnis: Vec<Vni>,
    /// The ports of these VNIs.
    pub ports: Vec<AccessPort>,
    /// The ports' numbers among all workers' ports.
    pub numbers: Vec<u16>,
    /// Forwards between these ports and the underlay.
    pub bridge: Option<Bridge>,
}

impl Engine {
    /// Takes over ports that were opened again. A port with a pending batch must be kept until the
    /// batch is sent.
    fn take_new_ports(&mut self) {
        if self.pending.port.is_some() {
            return;
        }
        for (number, port) in self.shared.take_new_ports() {
            let place = self.numbers.iter().position(|own| *own == number);
            if let Some(old) = place.and_then(|place| self.access.get_mut(place)) {
                *old = port;
            }
        }
    }

    /// Processes one batch of each access port, or one part of a batch whose frames have many
    /// copies. Returns how many frames there were.
    pub(crate) fn turn_ports(&mut self, snapshot: &tables::Snapshot, now: Instant) -> usize {
        let mut moved = 0;
        self.take_new_ports();
        // Continues with the port that has a pending batch, then with those behind it.
        let pending = self.pending.port.take();
        for number in pending.map_or(0, |(number, _)| number)..self.access.len() {
            let (before, rest) = self.access.split_at_mut(number);
            let Some((port, behind)) = rest.split_first_mut() else { break };
            let from = pending.filter(|(of, _)| *of == number).map(|(_, from)| from);
            if from.is_none()
                && let Err(error) = port.receive()
            {
                tracing::warn!("an access port is gone, and the others forward on: {error}");
                *port = AccessPort::Gone;
            }
            let batch = port.batch();
            if !batch.is_empty() {
                moved += if from.is_none() { batch.len() } else { 1 };
                let part = (batch, from.unwrap_or_default());
                let rest =
                    self.pipeline.switch_part(part, number as u16, snapshot, now, &mut self.out);
                self.scheduling.begin(self.out.len());
                let uplinks = &mut self.sockets.uplinks;
                deliver((before, behind), uplinks, batch, &mut self.out, &self.pipeline);
                if let Some(rest) = rest {
                    self.pending.port = Some((number, rest));
                    break;
                }
            }
        }
        if let Some(answer) = self.shared.take_answer() {
            let mut stations = self.pipeline.stations(now);
            for station in &mut stations {
                if let Place::Port(number) = &mut station.place {
                    *number = self.numbers.get(usize::from(*number)).copied().unwrap_or(*number);
                }
            }
            answer(stations);
        }
        moved
    }
}

/// Sends the pipeline's output to access ports and uplinks, and accounts for it. `before` and
/// `behind` are all ports except the one that the frames came from: no frame is sent back there.
pub(crate) fn deliver(
    (before, behind): (&mut [AccessPort], &mut [AccessPort]),
    uplinks: &mut PacketSocket,
    batch: &Batch<'_>,
    out: &mut TxBatch,
    pipeline: &Pipeline,
) {
    let mut groups = out.groups().of(Queue::Ports);
    while let Some(number) = port_of(out, groups.start) {
        // Each run of frames for the same port is sent together.
        let run = groups.clone().take_while(|index| port_of(out, *index) == Some(number)).count();
        let run = groups.start..(groups.start + run).min(groups.end);
        groups.start = run.end;
        let later = number.checked_sub(before.len() + 1);
        if let Some(port) = before.get_mut(number).or_else(|| behind.get_mut(later?)) {
            port.transmit(batch, out, run);
        }
    }
    uplinks.transmit_queue(batch, out, Queue::Uplinks);
    pipeline.account(out);
    out.clear();
}

/// The number of the access port that a group is for.
fn port_of(out: &TxBatch, group: usize) -> Option<usize> {
    match out.first(out.groups().list.get(group)?)?.to {
        Destination::Port(number) => Some(usize::from(number)),
        _ => None,
    }
}
