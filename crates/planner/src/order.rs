//! The order of operations of the static schedules.

use crate::plan::Schedule;

/// What an operation computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The output of a chunk.
    Forward,
    /// The gradient of its input; with schedules that do not split the backward pass, also that of
    /// its weights.
    Backward,
    /// The gradient of its weights.
    Weight,
}

/// An operation of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operation {
    /// What it computes.
    pub kind: Kind,
    /// The chunk, numbered in the order of the layers over all stages.
    pub chunk: u16,
    /// The micro-batch.
    pub micro_batch: u32,
}

impl Operation {
    /// An operation. Numbers too large for its fields, 65,535 chunks, do not occur.
    pub(crate) fn new(kind: Kind, chunk: usize, micro_batch: usize) -> Self {
        Self { kind, chunk: chunk as u16, micro_batch: micro_batch as u32 }
    }
}

/// How chunks lie on stages, and the number of micro-batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Stages.
    pub stages: usize,
    /// Chunks of each stage.
    pub chunks: usize,
    /// Whether every second row of chunks goes back.
    pub wave: bool,
    /// Micro-batches.
    pub micro_batches: usize,
}

impl Shape {
    /// The shape of a schedule.
    #[must_use]
    pub fn new(schedule: Schedule, stages: usize, micro_batches: usize) -> Self {
        let chunks = schedule.chunks() as usize;
        Self { stages, chunks, wave: schedule.is_wave(), micro_batches }
    }

    /// The number of chunks of all stages.
    #[must_use]
    pub fn total(&self) -> usize {
        self.stages * self.chunks
    }

    /// The stage of a chunk.
    #[must_use]
    pub fn stage(&self, chunk: usize) -> usize {
        let (row, column) = (chunk / self.stages, chunk % self.stages);
        if self.wave && row % 2 == 1 { self.stages - 1 - column } else { column }
    }

    /// A chunk of a stage, by its row.
    pub(crate) fn chunk(&self, stage: usize, row: usize) -> usize {
        let column = if self.wave && row % 2 == 1 { self.stages - 1 - stage } else { stage };
        row * self.stages + column
    }
}

/// The operations of each stage, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// How chunks lie on stages.
    pub shape: Shape,
    /// The operations of each stage.
    pub stages: Vec<Vec<Operation>>,
}

/// The order of one stage while it is written.
struct Writer {
    shape: Shape,
    stage: usize,
    /// The next micro-batch of each kind and row.
    next: Vec<[usize; 3]>,
    operations: Vec<Operation>,
}

impl Writer {
    fn new(shape: Shape, stage: usize) -> Self {
        let count = 3 * shape.chunks * shape.micro_batches;
        let operations = Vec::with_capacity(count);
        Self { shape, stage, next: vec![[0; 3]; shape.chunks], operations }
    }

    fn count(&self, kind: Kind, row: usize) -> usize {
        let row = self.next.get(row).copied().unwrap_or_default();
        row.get(kind as usize).copied().unwrap_or_default()
    }

    /// Adds the next operation of a kind and row, unless all are there. A gradient of weights comes
    /// after that of the input.
    fn push(&mut self, kind: Kind, row: usize) {
        let (micro_batch, chunk) = (self.count(kind, row), self.shape.chunk(self.stage, row));
        let ready = kind != Kind::Weight || micro_batch < self.count(Kind::Backward, row);
        if micro_batch < self.shape.micro_batches && ready {
            self.operations.push(Operation::new(kind, chunk, micro_batch));
            let counts = self.next.get_mut(row).and_then(|row| row.get_mut(kind as usize));
            if let Some(count) = counts {
                *count += 1;
            }
        }
    }

    fn all(&mut self, kinds: &[Kind], row: usize) {
        for kind in kinds {
            self.push(*kind, row);
        }
    }
}

use Kind::{Backward, Forward, Weight};

/// 1F1B; with `lag`, the gradients of weights come so many micro-batches later (ZB-H1).
fn one_forward_one_backward(writer: &mut Writer, lag: Option<usize>) {
    let Shape { stages, micro_batches, .. } = writer.shape;
    for _ in 0..stages - 1 - writer.stage {
        writer.push(Forward, 0);
    }
    for micro_batch in 0..micro_batches {
        writer.all(&[Forward, Backward], 0);
        if lag.is_some_and(|lag| micro_batch >= lag) {
            writer.push(Weight, 0);
        }
    }
    for _ in 0..lag.unwrap_or_default() {
        writer.push(Weight, 0);
    }
}

/// Interleaved 1F1B: rounds of as many micro-batches as there are stages go through a row each. A
/// last round may be shorter.
fn interleaved(writer: &mut Writer) {
    let Shape { stages, chunks, micro_batches, .. } = writer.shape;
    let rows: Vec<usize> = (0..micro_batches.div_ceil(stages))
        .flat_map(|round| {
            let width = stages.min(micro_batches - round * stages);
            (0..chunks).flat_map(move |row| std::iter::repeat_n(row, width))
        })
        .collect();
    let warm_up = (2 * (stages - 1 - writer.stage) + (chunks - 1) * stages).min(rows.len());
    let (first, rest) = rows.split_at(warm_up);
    for row in first {
        writer.push(Forward, *row);
    }
    let mut forward = rest.iter();
    for row in &rows {
        if let Some(row) = forward.next() {
            writer.push(Forward, *row);
        }
        writer.push(Backward, chunks - 1 - row);
    }
}

/// ZBV, phase by phase as in arXiv 2401.10241, section 6.
fn zbv(writer: &mut Writer) {
    let Shape { stages, micro_batches, .. } = writer.shape;
    let stage = writer.stage;
    for _ in 0..2 * (stages - stage) - 1 {
        writer.push(Forward, 0);
    }
    for _ in 0..stage {
        writer.push(Forward, 1);
        writer.push(Forward, 0);
    }
    for _ in 0..stages - stage {
        writer.all(&[Forward, Backward, Weight], 1);
    }
    while writer.count(Forward, 1) < writer.count(Forward, 0)
        || writer.count(Forward, 0) < micro_batches
    {
        writer.all(&[Forward, Backward, Weight], 0);
        writer.all(&[Forward, Backward, Weight], 1);
    }
    for _ in 0..stage {
        writer.push(Backward, 0);
        writer.push(Backward, 1);
    }
    for _ in 0..micro_batches {
        writer.all(&[Backward, Weight], 0);
    }
    for _ in 0..micro_batches {
        writer.all(&[Backward, Weight], 1);
    }
    for _ in 0..micro_batches {
        writer.push(Weight, 0);
    }
}

/// Forward and backward operations of V-Half, without gradients of weights. A block of operations
/// repeats every six units; on the way down, stages start two units apart, on the way up one
/// (arXiv 2405.15362, section 4).
fn v_half(writer: &mut Writer) {
    let Shape { stages, micro_batches, .. } = writer.shape;
    let (down, up) = (writer.stage, stages - 1 - writer.stage);
    let turn = 2 * (stages - 1) + 1;
    let top = turn + stages;
    let back = top + 2 * (stages - 1) + 1;
    let starts = [
        (top + 2 * down, 0, Backward, 1),
        (back + up, 1, Backward, 0),
        (2 * down, 2, Forward, 0),
        (turn + up, 3, Forward, 1),
    ];
    let mut all: Vec<_> = (0..micro_batches)
        .flat_map(|at| starts.map(|(start, rank, kind, row)| (start + 6 * at, rank, kind, row)))
        .collect();
    all.sort_unstable();
    for (_, _, kind, row) in all {
        writer.push(kind, row);
    }
}

/// The order of a static schedule. That of V-Half lacks the gradients of weights.
pub(crate) fn of(schedule: Schedule, stages: usize, micro_batches: usize) -> Order {
    let shape = Shape::new(schedule, stages, micro_batches);
    let write = |stage| {
        let mut writer = Writer::new(shape, stage);
        match schedule {
            Schedule::OneForwardOneBackward => one_forward_one_backward(&mut writer, None),
            Schedule::Interleaved(_) => interleaved(&mut writer),
            Schedule::ZbH1 | Schedule::UpDown(_) => {
                one_forward_one_backward(&mut writer, Some(stage));
            }
            Schedule::Zbv | Schedule::Wave(_) => zbv(&mut writer),
            Schedule::VHalf => v_half(&mut writer),
        }
        writer.operations
    };
    Order { shape, stages: (0..stages).map(write).collect() }
}
