//! An endpoint with real memory, and what its frames say.

use std::net::Ipv4Addr;

use roce::{
    Address, Completion, Connection, End, Endpoint, Frames, Handle, Operation, Place, Receive,
    Region, Settings, SourcePort, Status, WorkRequest,
};
use wire::roce::{Aeth, Bth, opcode};
use wire::{MacAddr, Psn};

/// The key of both memories.
pub(crate) const KEY: u32 = 7;

/// Everything that one host has.
pub(crate) struct Host {
    pub endpoint: Endpoint,
    pub memory: Region,
    pub pairs: Vec<Handle>,
}

pub(crate) fn place(address: u64) -> Place {
    Place { key: KEY, address }
}

/// The first sequence number of the hosts' requests: both wrap soon.
const FIRST: [u32; 2] = [0xff_fffe, 0xff_fffd];

fn end(host: usize, pair: u32) -> End {
    let last = host as u8 + 1;
    End {
        number: (0x100 * (host as u32 + 1) + pair).try_into().unwrap(),
        first: Psn::new(FIRST[host]),
        address: Address { mac: MacAddr([2, 0, 0, 0, 0, last]), ip: Ipv4Addr::new(10, 0, 0, last) },
    }
}

/// Two hosts with `pairs` connected queue pairs.
pub(crate) fn hosts(settings: &Settings, pairs: u32, memory: usize) -> [Host; 2] {
    [0, 1].map(|host| {
        let mut endpoint = Endpoint::new(settings.clone()).unwrap();
        let connect = |pair| {
            let connection = Connection {
                local: end(host, pair),
                remote: end(1 - host, pair),
                source_port: SourcePort::PerQueuePair,
            };
            endpoint.connect(&connection).unwrap()
        };
        let pairs = (0..pairs).map(connect).collect();
        let memory = Region { key: KEY, base: 0, bytes: vec![0; memory] };
        Host { endpoint, memory, pairs }
    })
}

impl Host {
    /// All frames that are due, and when the next ones are.
    pub(crate) fn transmit(&mut self, now: u64) -> (Vec<Vec<u8>>, Option<u64>) {
        let mut frames = Frames::default();
        let wake = self.endpoint.transmit(now, &mut frames, usize::MAX, &self.memory);
        (frames.iter().map(<[u8]>::to_vec).collect(), wake)
    }

    pub(crate) fn receive(&mut self, now: u64, frame: &[u8]) {
        self.endpoint.receive(now, frame, &mut self.memory);
    }

    pub(crate) fn post(&mut self, id: u64, operation: Operation, local: u64, length: u32) {
        let work = WorkRequest { id, operation, local: place(local), length };
        self.endpoint.post(self.pairs[0], work, 0).unwrap();
    }

    pub(crate) fn write(&mut self, id: u64, length: u32) {
        let operation = Operation::Write { remote: place(0), immediate: None };
        self.post(id, operation, 0, length);
    }

    pub(crate) fn read(&mut self, id: u64, length: u32) {
        self.post(id, Operation::Read { remote: place(0) }, 0, length);
    }

    pub(crate) fn send(&mut self, id: u64, length: u32) {
        self.post(id, Operation::Send { immediate: None }, 0, length);
    }

    pub(crate) fn receive_buffer(&mut self, id: u64, address: u64, length: u32) {
        let receive = Receive { id, place: place(address), length };
        self.endpoint.post_receive(self.pairs[0], receive).unwrap();
    }

    /// Ids and statuses of the requests that have completed since the last call.
    pub(crate) fn completed(&mut self) -> Vec<(u64, Status)> {
        let mut found = Vec::new();
        while let Some(completion) = self.endpoint.completion() {
            if let Completion::Request { id, status, .. } = completion {
                found.push((id, status));
            }
        }
        found
    }
}

/// A frame in short: its kind, and its sequence number relative to the first one of the requests
/// of host `requester`.
pub(crate) fn short(frame: &[u8], requester: usize) -> String {
    let (bth, rest) = Bth::parse(&frame[42..]).unwrap();
    let syndrome = || Aeth::parse(rest).unwrap().0.syndrome();
    let kind = match bth.opcode() {
        opcode::RC_ACKNOWLEDGE if syndrome() == 0x1f => "ack".to_owned(),
        opcode::RC_ACKNOWLEDGE if syndrome() >> 5 == 2 => "sack".to_owned(),
        opcode::RC_ACKNOWLEDGE if syndrome() >> 5 == 1 => "rnr".to_owned(),
        opcode::RC_ACKNOWLEDGE => format!("nak{}", syndrome() & 31),
        opcode::RC_SEND_FIRST | opcode::RC_WRITE_FIRST => "first".to_owned(),
        opcode::RC_SEND_MIDDLE | opcode::RC_WRITE_MIDDLE => "middle".to_owned(),
        opcode::RC_SEND_LAST | opcode::RC_WRITE_LAST => "last".to_owned(),
        opcode::RC_SEND_ONLY | opcode::RC_WRITE_ONLY => "only".to_owned(),
        opcode::RC_READ_REQUEST => "read".to_owned(),
        opcode::RC_READ_RESPONSE_FIRST..=opcode::RC_READ_RESPONSE_ONLY => "response".to_owned(),
        opcode::CONGESTION_NOTIFICATION => return "cnp".to_owned(),
        other => format!("{other:#x}"),
    };
    let psn = Psn::new(bth.sequence()).since(Psn::new(FIRST[requester]));
    format!("{kind} {psn}{}", if bth.acknowledge() { "!" } else { "" })
}

pub(crate) fn chart(frames: &[Vec<u8>], requester: usize) -> Vec<String> {
    frames.iter().map(|frame| short(frame, requester)).collect()
}
