//! Random frames.

/// A random number generator with the same sequence in every run (xorshift64*).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }

    /// A frame that is well-formed, or nearly so.
    pub(crate) fn frame(&mut self) -> Vec<u8> {
        let mut frame = self.bytes(12);
        for _ in 0..self.one_of(&[0, 0, 0, 1, 2, 3, 4, 5]) {
            frame.extend(self.one_of(&[[0x81, 0x00], [0x88, 0xa8], [0x91, 0x00]]));
            frame.extend(self.bytes(2));
        }
        match self.below(8) {
            0 => frame.extend([0x08, 0x06]),
            1..=4 => self.ipv4(&mut frame),
            _ => self.ipv6(&mut frame),
        }
        let padding = self.one_of(&[0, 0, 0, 1, 18]);
        frame.extend(vec![0; padding]);
        if self.below(4) == 0 {
            let changed = self.below(frame.len() as u64) as usize;
            frame[changed] = self.next() as u8;
        }
        if self.below(6) == 0 {
            frame.truncate(14 + self.below(frame.len() as u64 - 13) as usize);
        }
        frame.resize(frame.len().max(14), 0);
        frame
    }

    fn ipv4(&mut self, frame: &mut Vec<u8>) {
        let (protocol, transport) = self.transport();
        let options = self.one_of(&[0, 0, 0, 4, 40]);
        let fragment: u16 = self.one_of(&[0, 0, 0x4000, 0x2000, 0x2001, 0x0001, 0x8000]);
        let total = (20 + options + transport.len()) as u16;
        frame.extend([0x08, 0x00, 0x45 + (options / 4) as u8, 0]);
        frame.extend(total.to_be_bytes());
        frame.extend([0, 1]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, protocol, 0, 0]);
        frame.extend(self.bytes(8 + options));
        frame.extend(transport);
    }

    fn ipv6(&mut self, frame: &mut Vec<u8>) {
        let (protocol, mut payload) = self.transport();
        let mut next = protocol;
        for _ in 0..self.one_of(&[0, 0, 0, 1, 2, 3, 8, 9]) {
            let kind = self.one_of(&[0u8, 43, 44, 51, 60]);
            let units = if kind == 44 { 0 } else { self.one_of(&[0u8, 0, 1, 2]) };
            let length = match kind {
                44 => 8,
                51 => (usize::from(units) + 2) * 4,
                _ => (usize::from(units) + 1) * 8,
            };
            let mut header = self.bytes(length);
            (header[0], header[1]) = (next, units);
            if kind == 44 {
                [header[2], header[3]] = self.one_of(&[[0, 0], [0, 1], [0, 8], [0, 9]]);
            }
            header.extend(payload);
            (next, payload) = (kind, header);
        }
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((payload.len() as u16).to_be_bytes());
        frame.extend([next, 64]);
        frame.extend(self.bytes(32));
        frame.extend(payload);
    }

    fn transport(&mut self) -> (u8, Vec<u8>) {
        let protocol = self.one_of(&[17u8, 17, 17, 6, 132, 33, 136, 1, 58, 59, 253]);
        if protocol != 17 {
            let length = self.one_of(&[0, 3, 4, 20, 40]);
            return (protocol, self.bytes(length));
        }
        let payload = self.one_of(&[0, 4, 11, 12, 13, 64]);
        let mut datagram = self.bytes(2);
        let port: u16 = self.one_of(&[4791, 4791, 4791, 4790, 53]);
        datagram.extend(port.to_be_bytes());
        datagram.extend((8 + payload as u16).to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(self.bytes(payload));
        (protocol, datagram)
    }
}
