//! A queue pair: requester, responder and rate of one reliable connection.

use wire::roce::opcode;
use wire::{QueuePair, ecn};

use crate::congestion::Congestion;
use crate::context::Context;
use crate::frames::Frames;
use crate::memory::Memory;
use crate::packet::{Address, Header, Packet, Template};
use crate::request::Emission;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::settings::Settings;
use crate::source_port::SourcePort;
use crate::work::Status;
use crate::{dcqcn, nscc};
use wire::Psn;

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The queue pair number.
    pub number: QueuePair,
    /// The first packet sequence number of its requests.
    pub first: Psn,
    /// The host.
    pub address: Address,
}

/// Both ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// This end.
    pub local: End,
    /// The other end.
    pub remote: End,
    /// How the UDP source port is chosen.
    pub source_port: SourcePort,
}

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) remote: End,
    template: Template,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    congestion: Option<Box<dyn Congestion>>,
    /// When the rate allows the next packet.
    next_at: u64,
    /// Whether a congestion notification is to be sent, and when the next one may be.
    notify: bool,
    notify_at: u64,
}

impl Pair {
    pub(crate) fn new(connection: &Connection, settings: &Settings) -> Self {
        let Connection { local, remote, source_port } = *connection;
        let congestion: Option<Box<dyn Congestion>> = match (settings.dcqcn, settings.nscc) {
            (Some(dcqcn), _) => Some(Box::new(dcqcn::Reaction::new(dcqcn, settings.rate as f64))),
            (None, Some(nscc)) => {
                Some(Box::new(nscc::Reaction::new(nscc, settings.rate, settings.mtu)))
            }
            (None, None) => None,
        };
        let codepoint = match congestion {
            Some(_) => ecn::Codepoint::Ect0,
            None => ecn::Codepoint::NotEct,
        };
        let tos = codepoint.put(settings.dscp << 2);
        let port = source_port.of(local.number, remote.number);
        let mut requester = Requester::new(local.first);
        requester.limit = congestion.as_ref().and_then(|congestion| congestion.window());
        Self {
            remote,
            template: Template::new(local.address, remote.address, port, tos),
            requester,
            responder: Responder::new(remote.first),
            congestion,
            next_at: 0,
            notify: false,
            notify_at: 0,
        }
    }

    /// The rate in bits per second, if congestion control limits it.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.congestion.as_ref()?.rate()
    }

    /// Handles a packet for this queue pair.
    pub(crate) fn receive(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut impl Memory,
        context: &mut Context<'_>,
    ) {
        if packet.congested {
            context.counters.np_ecn_marked_roce_packets += 1;
            if let Some(dcqcn) = context.settings.dcqcn
                && context.now >= self.notify_at
            {
                self.notify = true;
                self.notify_at = context.now.saturating_add(dcqcn.notification_interval);
            }
        }
        let psn = packet.header.psn;
        match (packet.header.opcode, packet.header.syndrome) {
            (opcode::RC_ACKNOWLEDGE, Some((syndrome, _))) => {
                let told = self.requester.acknowledged(&packet.header, syndrome, context);
                if let Some(congestion) = &mut self.congestion {
                    congestion.acknowledged(context.now, &told);
                }
                self.count_losses(context.now);
            }
            (
                opcode::RC_READ_RESPONSE_FIRST
                | opcode::RC_READ_RESPONSE_MIDDLE
                | opcode::RC_READ_RESPONSE_LAST
                | opcode::RC_READ_RESPONSE_ONLY,
                _,
            ) => {
                self.requester.responded(psn, packet.payload, memory, context);
                self.count_losses(context.now);
            }
            (opcode::CONGESTION_NOTIFICATION, _) => match &mut self.congestion {
                Some(congestion) if context.settings.dcqcn.is_some() => {
                    context.counters.rp_cnp_handled += 1;
                    congestion.notified(context.now);
                }
                _ => context.counters.rp_cnp_ignored += 1,
            },
            _ => self.responder.request(packet, memory, context),
        }
    }

    /// Lets timers expire.
    pub(crate) fn expire(&mut self, context: &mut Context<'_>) {
        self.requester.expire(context);
        if let Some(congestion) = &mut self.congestion {
            congestion.advance(context.now);
        }
        self.count_losses(context.now);
    }

    /// Tells congestion control what the requester has found to be lost, and the requester how much
    /// it may send.
    fn count_losses(&mut self, now: u64) {
        let lost = self.requester.take_lost();
        let Some(congestion) = &mut self.congestion else { return };
        if lost > 0 {
            congestion.lost(now, lost, self.requester.under_way());
        }
        self.requester.limit = congestion.window();
    }

    /// Appends the next frame, if one may be sent. Returns its length.
    pub(crate) fn emit(
        &mut self,
        frames: &mut Frames,
        memory: &impl Memory,
        context: &mut Context<'_>,
    ) -> Option<usize> {
        let destination = self.remote.number;
        if std::mem::take(&mut self.notify) {
            context.counters.np_cnp_sent += 1;
            let header = Header::new(opcode::CONGESTION_NOTIFICATION, destination, Psn::new(0));
            return self.template.append(frames, &header, 0, |_| true);
        }
        if self.next_at > context.now {
            return None;
        }
        let from_responder = self.responder.has_replies();
        let emission = if from_responder {
            self.responder.next(destination, context)?
        } else {
            self.requester.next(destination, context)?
        };
        let Emission { header, payload, length } = emission;
        let read = |out: &mut [u8]| length == 0 || memory.read(payload.key, payload.address, out);
        let Some(sent) = self.template.append(frames, &header, length, read) else {
            if from_responder {
                self.responder.refuse_read(header.psn);
                return self.emit(frames, memory, context);
            }
            self.requester.fail(Status::LocalProtection, context);
            return None;
        };
        self.pace(sent, context.now);
        Some(sent)
    }

    /// Delays the next packet by the rate.
    fn pace(&mut self, bytes: usize, now: u64) {
        let Some(congestion) = &mut self.congestion else { return };
        congestion.sent(bytes as u64);
        if let Some(rate) = congestion.rate() {
            let time = (bytes as f64 * 8e9 / rate) as u64;
            self.next_at = self.next_at.max(now).saturating_add(time);
        }
    }

    /// When this queue pair has something to send or a timer expires, if nothing arrives before.
    pub(crate) fn wake(&self, now: u64, settings: &Settings) -> Option<u64> {
        if self.notify {
            return Some(now);
        }
        let ready = if self.responder.has_replies() {
            Some(now)
        } else {
            self.requester.ready(now, settings)
        };
        let send = ready.map(|at| at.max(self.next_at));
        [send, self.requester.deadline()].into_iter().flatten().min()
    }
}
