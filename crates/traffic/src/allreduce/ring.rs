//! The order of a ring AllReduce: which part of the vector a rank sends, receives and adds in each
//! step.
//!
//! Parts and order are those of Gloo's ring (`gloo/allreduce.cc`), so that sums of floating-point
//! numbers are the same, bit by bit.

use std::ops::Range;

/// Bytes of an element.
pub(super) const ELEMENT: usize = 4;
/// Maximum bytes of a segment in Gloo.
const SEGMENT: usize = 1 << 20;

/// A step of a rank. It sends to the rank before it, and receives from the rank after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// The bytes of the vector that are sent.
    pub(super) send: Range<usize>,
    /// The bytes that arrive.
    pub(super) receive: Range<usize>,
    /// Whether what arrives is added to the own bytes, and does not replace them.
    pub(super) add: bool,
}

/// The steps of a rank: n − 1 that add, after which the rank has the sum of its own part, and n − 1
/// that distribute the sums.
pub(super) fn steps(rank: usize, ranks: usize, bytes: usize) -> impl Iterator<Item = Step> {
    let part = move |number: usize| part(number % ranks.max(1), ranks, bytes);
    let rounds = ranks.saturating_sub(1);
    let add = (1..=rounds).map(move |at| (rank + at, true));
    let distribute = (0..rounds).map(move |at| (rank + at, false));
    add.chain(distribute).map(move |(number, add)| Step {
        send: part(number),
        receive: part(number + 1),
        add,
    })
}

/// The bytes of a part. A vector has as many as there are ranks.
fn part(number: usize, ranks: usize, bytes: usize) -> Range<usize> {
    let ranks = ranks.max(1);
    let segments = bytes.div_ceil(SEGMENT).max(2 * ranks).next_multiple_of(ranks);
    let segment = bytes.div_ceil(segments).next_multiple_of(ELEMENT);
    let length = segments / ranks * segment;
    let at = |number: usize| (number * length).min(bytes);
    at(number)..at(number + 1)
}

/// Adds float32 numbers, in the byte order of this machine.
pub(super) fn add(to: &mut [u8], from: &[u8]) {
    let (to, _) = to.as_chunks_mut::<ELEMENT>();
    let (from, _) = from.as_chunks::<ELEMENT>();
    for (to, from) in to.iter_mut().zip(from) {
        *to = (f32::from_ne_bytes(*to) + f32::from_ne_bytes(*from)).to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of all ranks, whose sums depend on the order.
    fn vectors(ranks: usize, elements: usize) -> Vec<Vec<f32>> {
        let mut random = experiment::random::Random::new(elements as u64);
        let mut draw = || {
            let scale = 10_f32.powi(random.below(9) as i32 - 4);
            (random.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0) * scale
        };
        (0..ranks).map(|_| (0..elements).map(|_| draw()).collect()).collect()
    }

    fn bytes(vector: &[f32]) -> Vec<u8> {
        vector.iter().flat_map(|value| value.to_ne_bytes()).collect()
    }

    /// All ranks, in memory: each step of all of them after the other.
    fn run(vectors: &[Vec<f32>]) -> Vec<Vec<u8>> {
        let ranks = vectors.len();
        let mut state: Vec<Vec<u8>> = vectors.iter().map(|vector| bytes(vector)).collect();
        let length = state[0].len();
        let mut all: Vec<_> = (0..ranks).map(|rank| steps(rank, ranks, length)).collect();
        while let Some(now) = all.iter_mut().map(Iterator::next).collect::<Option<Vec<Step>>>() {
            let before = state.clone();
            for (rank, step) in now.iter().enumerate() {
                let from = (rank + 1) % ranks;
                assert_eq!(step.receive, now[from].send);
                let arrived = &before[from][step.receive.clone()];
                let own = &mut state[rank][step.receive.clone()];
                if step.add { add(own, arrived) } else { own.copy_from_slice(arrived) }
            }
        }
        state
    }

    #[test]
    fn each_rank_gets_the_sum_in_the_order_of_the_ring() {
        for (ranks, elements) in [(1, 5), (2, 1), (2, 1000), (3, 0), (3, 7), (4, 9000), (5, 1001)] {
            let vectors = vectors(ranks, elements);
            let state = run(&vectors);
            let place = |element: usize| {
                let of = |number: &usize| {
                    part(*number, ranks, elements * ELEMENT).contains(&(element * ELEMENT))
                };
                (0..ranks).find(of).unwrap()
            };
            // The part of a rank begins at the rank before it, and goes down.
            let sum = |element: usize| {
                let order = (1..=ranks).map(|at| (place(element) + ranks - at) % ranks);
                order.map(|rank| vectors[rank][element]).reduce(|sum, next| next + sum).unwrap()
            };
            let expected = bytes(&(0..elements).map(sum).collect::<Vec<_>>());
            assert!(state.iter().all(|own| *own == expected), "{ranks} {elements}");
        }
    }

    #[test]
    fn parts_cover_the_vector_once() {
        for ranks in 1..9 {
            for bytes in [0, 4, 8, 4000, 1 << 20, (9 << 20) + 4] {
                let parts = (0..ranks).map(|number| part(number, ranks, bytes));
                let mut at = 0;
                for part in parts {
                    assert_eq!(part.start, at, "{ranks} {bytes}");
                    assert!(part.end >= at && (part.end % ELEMENT == 0));
                    at = part.end;
                }
                assert_eq!(at, bytes, "{ranks} {bytes}");
            }
        }
    }
}
