//! The stages of a batch of frames, each of which can be measured alone.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use path::{Entropy, Policy, Settings};
use pipeline::{Batch, Checksum, Counters, Grouper, Identifications, Pipeline, TxBatch, TxFrame};

use tables::SnapshotBuilder;

use crate::leaf::{Leaf, PACE};
use crate::placed::pins;

/// Batches of packets in order, at least, before they begin anew.
pub const ORDERED: usize = 40;

type Failure = Box<dyn std::error::Error>;

/// A stage of the processing of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Parsing headers.
    Parse,
    /// Computing the key that is hashed.
    Key,
    /// Computing the outer source port.
    Decide(Policy),
    /// Encapsulation. The frame is not copied.
    Encapsulate,
    /// Encapsulation when each frame belongs to a new flow, as after every change of the snapshot.
    EncapsulateNew,
    /// [`Self::Encapsulate`], and then copying the whole frame.
    EncapsulateCopied,
    /// Grouping encapsulated frames into super-frames.
    Aggregate,
    /// Decapsulation. The frame is not copied.
    Decapsulate,
    /// [`Self::Decapsulate`], and then copying the whole frame.
    DecapsulateCopied,
    /// Counting a frame that was sent.
    Account,
    /// [`Self::Encapsulate`] with the policy `qp-pin`.
    EncapsulatePinned,
    /// [`Self::Encapsulate`] with the policy `spray`, over four paths.
    EncapsulateSprayed,
    /// [`Self::Decapsulate`] with the policy `spray`. All packets arrive in order.
    DecapsulateSprayed,
}

impl Stage {
    /// All stages.
    pub const ALL: [Self; 15] = [
        Self::Parse,
        Self::Key,
        Self::Decide(Policy::FiveTuple),
        Self::Decide(Policy::QpHash),
        Self::Decide(Policy::QpBins),
        Self::Encapsulate,
        Self::EncapsulateNew,
        Self::EncapsulateCopied,
        Self::Aggregate,
        Self::Decapsulate,
        Self::DecapsulateCopied,
        Self::Account,
        Self::EncapsulatePinned,
        Self::EncapsulateSprayed,
        Self::DecapsulateSprayed,
    ];

    /// The name as one word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parse => "parse",
            Self::Key => "key",
            Self::Decide(policy) => policy.name(),
            Self::Encapsulate => "encapsulate",
            Self::EncapsulateNew => "encapsulate-new",
            Self::EncapsulateCopied => "encapsulate-copied",
            Self::Aggregate => "aggregate",
            Self::Decapsulate => "decapsulate",
            Self::DecapsulateCopied => "decapsulate-copied",
            Self::Account => "account",
            Self::EncapsulatePinned => "encapsulate-pinned",
            Self::EncapsulateSprayed => "encapsulate-sprayed",
            Self::DecapsulateSprayed => "decapsulate-sprayed",
        }
    }

    /// Whether the stage reads the bytes of frames.
    #[must_use]
    pub const fn reads_frames(self) -> bool {
        !matches!(self, Self::Key | Self::Decide(_) | Self::Aggregate | Self::Account)
    }

    /// The leaf, with the policy of the stage.
    fn leaf(self, leaf: &Leaf) -> Leaf {
        match self {
            Self::EncapsulatePinned => Leaf { policy: Policy::QpPin, ..*leaf },
            Self::EncapsulateSprayed => Leaf { policy: Policy::Spray, ..*leaf },
            // Each has more packets in all batches than may come again.
            Self::DecapsulateSprayed => Leaf { policy: Policy::Spray, queue_pairs: 8, ..*leaf },
            _ => *leaf,
        }
    }

    /// Prepares batches of a leaf's frames. The returned function runs this stage for the batch
    /// with the given number, modulo `batches`. Those of [`Self::DecapsulateSprayed`] run in their
    /// order, whatever the number: their sequence numbers must rise.
    ///
    /// # Errors
    /// If the length is too small.
    pub fn prepare(
        self,
        leaf: &Leaf,
        length: usize,
        batches: usize,
    ) -> Result<Box<dyn FnMut(usize)>, Failure> {
        let leaf = &self.leaf(leaf);
        let snapshot = leaf.snapshot()?;
        let mut pipeline = Pipeline::new(Arc::new(Counters::new()));
        if leaf.policy.places_queue_pairs() {
            pipeline.set_pins(pins(&snapshot, Instant::now()).ok_or("no paths")?);
        }
        let is_ordered = self == Self::DecapsulateSprayed;
        let batches = if is_ordered { batches.max(ORDERED) } else { batches };
        let inwards = is_ordered || matches!(self, Self::Decapsulate | Self::DecapsulateCopied);
        let frames = if inwards {
            leaf.from_underlay(length, batches)?
        } else {
            leaf.from_bridge(length, batches)?
        };
        let (mut out, mut now, mut room) = (TxBatch::new(), Instant::now(), Vec::new());
        if let Self::Key | Self::Decide(_) = self {
            let policy = if let Self::Decide(policy) = self { policy } else { Policy::QpHash };
            let entropy = Entropy::new(Settings { policy, ..Settings::default() })?;
            let dissect = |batch: &Batch<'_>| {
                batch.frames().filter_map(|frame| wire::dissect(frame.data)).collect()
            };
            let dissected: Vec<Vec<_>> = frames.iter().map(dissect).collect();
            return Ok(Box::new(move |number| {
                for frame in dissected.get(number % batches).into_iter().flatten() {
                    if self == Self::Key {
                        black_box(entropy.explain(black_box(frame)).key);
                    } else {
                        black_box(entropy.decide(black_box(frame)).source_port);
                    }
                }
            }));
        }
        if matches!(self, Self::Aggregate | Self::Account) {
            for batch in &frames {
                pipeline.encapsulate(batch, &snapshot, now, &mut out);
            }
            let batch = |frames: &[TxFrame]| TxBatch::of(frames.iter().cloned());
            let mut sent: Vec<TxBatch> = out.chunks(crate::leaf::BATCH).map(batch).collect();
            if self == Self::Aggregate {
                // As with `udpcsum`, the default. Frames without an outer checksum are not grouped.
                let checksum = Checksum::Partial { start: 34, offset: 6 };
                let frames = sent.iter_mut().flat_map(|batch| batch.iter_mut());
                frames.for_each(|frame| frame.offload.checksum = checksum);
                let (mut grouper, all) = (Grouper::default(), Identifications::default());
                return Ok(Box::new(move |number| {
                    let Some(out) = sent.get_mut(number % batches) else { return };
                    out.groups_mut().clear();
                    grouper.group(black_box(out), &all);
                    black_box(out);
                }));
            }
            return Ok(Box::new(move |number| {
                for transmit in sent.get(number % batches).into_iter().flatten() {
                    pipeline.account_frame(black_box(transmit), Ok(()));
                }
            }));
        }
        let others = [(); 8].map(|()| {
            let mut builder = SnapshotBuilder::after(&snapshot);
            for table in snapshot.vnis() {
                // Gives the VNI's settings a new version.
                builder.remove_vni(table.index);
                builder.vni(Arc::clone(table));
            }
            builder.build()
        });
        let (mut turn, mut next) = (0, 0);
        Ok(Box::new(move |number| {
            let number = if is_ordered { next } else { number % batches };
            next = (number + 1) % batches;
            let Some(batch) = frames.get(number) else { return };
            let batch = black_box(batch);
            out.clear();
            if self == Self::EncapsulateSprayed {
                now += PACE;
            }
            match self {
                Self::EncapsulateNew => {
                    // The settings have another version in each snapshot, so no known flow holds.
                    turn = (turn + 1) % others.len();
                    let Some(another) = others.get(turn) else { return };
                    pipeline.encapsulate(batch, another, now, &mut out);
                }
                Self::Encapsulate
                | Self::EncapsulateCopied
                | Self::EncapsulatePinned
                | Self::EncapsulateSprayed => {
                    pipeline.encapsulate(batch, &snapshot, now, &mut out);
                }
                Self::Decapsulate | Self::DecapsulateCopied | Self::DecapsulateSprayed => {
                    pipeline.decapsulate(batch, &snapshot, now, &mut out);
                }
                _ => {
                    for frame in batch.frames() {
                        black_box(&wire::dissect(black_box(frame.data)));
                    }
                }
            }
            if matches!(self, Self::EncapsulateCopied | Self::DecapsulateCopied) {
                room.clear();
                for transmit in &out {
                    room.extend_from_slice(transmit.head());
                    room.extend_from_slice(transmit.body(batch));
                }
            }
            black_box((&out, &room));
        }))
    }
}
