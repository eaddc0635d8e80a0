//! The operations of all stages in one sequence, each behind what it depends on.
//!
//! In turns, each stage adds its next operation if its input is there. So the sequence, and with it
//! the order in which messages take a link, depends on the order of operations alone.
//!
//! Most sequences repeat: behind a part like the one before, with micro-batches that are so many
//! further. [`Steady`] is where. List scheduling is linear in the algebra of maxima and sums. So
//! once all times of a part are those of the part before and a constant, they stay so.

use crate::order::{Kind, Operation, Order, Shape};

/// The sequence of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// How chunks lie on stages.
    pub shape: Shape,
    /// The operations.
    pub operations: Vec<Operation>,
    /// Where they repeat.
    pub(crate) steady: Option<Steady>,
    /// No input is there so many micro-batches before an earlier one of the same chunk is used. A
    /// power of two.
    pub(crate) window: usize,
}

/// A part of a sequence that repeats: each operation is the one `length` before it, with a
/// micro-batch that is `micro_batches` further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Steady {
    /// The first operation.
    pub start: usize,
    /// Behind the last one.
    pub end: usize,
    /// Operations of a period.
    pub length: usize,
    /// Micro-batches of a period.
    pub micro_batches: usize,
    /// An operation depends on none that is further before it.
    pub reach: usize,
}

/// Periods of so many micro-batches for each stage are looked for.
const PERIOD: usize = 4;

/// What operations need to start, and what they leave.
struct Ready {
    chunks: usize,
    /// Positions of forward passes and of gradients of inputs, by micro-batch and chunk.
    done: [Vec<Option<usize>>; 2],
}

impl Ready {
    fn new(shape: Shape) -> Self {
        let chunks = shape.total();
        let none = vec![None; chunks * shape.micro_batches];
        Self { chunks, done: [none.clone(), none] }
    }

    fn position(&self, kind: Kind, chunk: usize, micro_batch: u32) -> Option<usize> {
        let at = micro_batch as usize * self.chunks + chunk;
        self.done.get(kind as usize)?.get(at).copied().flatten()
    }

    /// The position of the operation that an operation needs, and `None` inside if it needs none.
    fn input(&self, operation: Operation) -> Option<Option<usize>> {
        let Operation { kind, chunk, micro_batch } = operation;
        let chunk = usize::from(chunk);
        match kind {
            Kind::Forward if chunk == 0 => Some(None),
            Kind::Forward => self.position(Kind::Forward, chunk - 1, micro_batch).map(Some),
            Kind::Backward if chunk + 1 == self.chunks => {
                self.position(Kind::Forward, chunk, micro_batch).map(Some)
            }
            Kind::Backward => self.position(Kind::Backward, chunk + 1, micro_batch).map(Some),
            Kind::Weight => Some(None),
        }
    }

    fn add(&mut self, operation: Operation, position: usize) {
        let Operation { kind, chunk, micro_batch } = operation;
        let at = micro_batch as usize * self.chunks + usize::from(chunk);
        if let Some(done) = self.done.get_mut(kind as usize).and_then(|done| done.get_mut(at)) {
            *done = Some(position);
        }
    }
}

impl Sequence {
    /// The sequence of an order. `None` if operations wait for each other in a circle.
    #[must_use]
    pub fn new(order: &Order) -> Option<Self> {
        let mut ready = Ready::new(order.shape);
        let mut rest: Vec<&[Operation]> = order.stages.iter().map(Vec::as_slice).collect();
        let count = rest.iter().map(|stage| stage.len()).sum();
        let mut operations = Vec::with_capacity(count);
        // How far before an operation is what it needs.
        let mut reaches = Vec::with_capacity(count);
        let mut last = vec![0; rest.len()];
        while operations.len() < count {
            let before = operations.len();
            for (stage, last) in rest.iter_mut().zip(&mut last) {
                let Some((operation, tail)) = stage.split_first() else { continue };
                if let Some(input) = ready.input(*operation) {
                    let at = operations.len();
                    reaches.push(at - input.unwrap_or(at).min(*last));
                    ready.add(*operation, at);
                    operations.push(*operation);
                    (*stage, *last) = (tail, at);
                }
            }
            if operations.len() == before {
                return None;
            }
        }
        let steady = steady(order.shape, &operations, &reaches);
        let window = window(order.shape, &operations).next_power_of_two();
        Some(Self { shape: order.shape, operations, steady, window })
    }
}

/// Where operations repeat, from the middle on to both sides.
fn steady(shape: Shape, operations: &[Operation], reaches: &[usize]) -> Option<Steady> {
    let each = operations.len() / shape.micro_batches.max(1);
    (1..=PERIOD * shape.stages).find_map(|micro_batches| {
        let length = each * micro_batches;
        let repeats = |(one, other): (&Operation, &Operation)| {
            let later = one.micro_batch + micro_batches as u32;
            (Operation { micro_batch: later, ..*one }) == *other
        };
        let others = operations.get(length..)?;
        let middle = others.len() / 2;
        let behind = operations.iter().zip(others).skip(middle).take_while(|two| repeats(*two));
        let end = middle + behind.count();
        let before = operations.iter().zip(others).take(middle).rev();
        let start = middle - before.take_while(|two| repeats(*two)).count();
        let furthest = *reaches.get(start + length..end + length)?.iter().max()?;
        // A link that is used in a period is used in the one before.
        let reach = length.max(furthest);
        let end = end + length;
        (end - start > 2 * length + reach).then_some(Steady {
            start,
            end,
            length,
            micro_batches,
            reach,
        })
    })
}

/// The most inputs of a chunk and kind that are there at a time.
fn window(shape: Shape, operations: &[Operation]) -> usize {
    let chunks = shape.total();
    let mut next = vec![0; 2 * chunks];
    let mut most = 1;
    for Operation { kind, chunk, micro_batch } in operations {
        let at = *kind as usize * chunks + usize::from(*chunk);
        if *kind != Kind::Weight && next.get(at) != Some(micro_batch) {
            return shape.micro_batches;
        }
        if let Some(next) = next.get_mut(at) {
            *next += 1;
        }
        // What gets its result has used so many inputs.
        let to = match kind {
            Kind::Forward if usize::from(*chunk) + 1 == chunks => at + chunks,
            Kind::Forward => at + 1,
            Kind::Backward if *chunk > 0 => at - 1,
            _ => continue,
        };
        let used: u32 = next.get(to).copied().unwrap_or_default();
        most = most.max((micro_batch + 1 - used) as usize);
    }
    most
}
