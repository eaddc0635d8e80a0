//! vTrain, Megatron, Sailor, torchtitan and Llama 3.

use planner::job::Job;
use planner::model::{Attention, Model, Precision};
use planner::network::Sites;
use planner::plan::{Exchange, Plan, Recompute, Schedule, Sharding};
use planner::{Evaluator, Iteration};
use serde_json::json;

use super::table::{Row, Table, csv, machine};

fn model(hidden: u32, heads: u32, layers: u32) -> Model {
    let model = json!({
        "layers": layers, "hidden": hidden, "heads": heads, "vocabulary": 51_200, "sequence": 2048,
        "attention": "unfused",
    });
    serde_json::from_value(model).unwrap()
}

fn job(kind: &str, model: Model, gpus: u32, batch: u32) -> Job {
    let link = json!({ "bandwidth": 1e12, "latency": 0.0, "recovery": "selective" });
    let link = serde_json::from_value(link).unwrap();
    let sites = Sites { gpus: vec![gpus], link };
    Job { model, machine: machine(kind), sites, batch, overlap: false, balance: Vec::new() }
}

fn plan(tensor: u32, pipeline: u32, data: u32, micro_batch: u32) -> Plan {
    let plan = json!({
        "tensor": tensor, "pipeline": pipeline, "data": data, "micro-batch": micro_batch,
        "schedule": "1f1b", "sharding": "ddp", "recompute": "full", "sequence-parallel": false,
        "boundary": "data", "technology": { "policy": "spray", "queue-pairs": 1 },
    });
    serde_json::from_value(plan).unwrap()
}

fn evaluate(mut job: Job, plan: &Plan) -> Iteration {
    // Whether a row fits is not the question here: it was measured.
    job.machine.memory = f64::INFINITY;
    let evaluator = Evaluator::new(&job);
    let iteration = evaluator.evaluate(plan).unwrap_or_else(|error| panic!("{plan}: {error}"));
    let parts = [
        iteration.compute,
        iteration.recompute,
        iteration.inside,
        iteration.across,
        iteration.bubble,
        iteration.optimizer,
    ];
    let sum: f64 = parts.iter().sum();
    assert!((sum / iteration.seconds - 1.0).abs() < 1e-9, "{plan}: {iteration:?}");
    assert!(parts.iter().all(|part| *part > -1e-9), "{plan}: {iteration:?}");
    iteration
}

fn row(name: String, measured: f64, predicted: f64) -> Row {
    Row { name, measured, predicted, fitted: false, excluded: None }
}

/// Rows on which efficiencies are fitted.
fn fitted(rows: Vec<Row>) -> Vec<Row> {
    rows.into_iter().map(|row| Row { fitted: true, ..row }).collect()
}

fn vtrain(billions: &str) -> Vec<Row> {
    vtrain_with(billions, |_| ())
}

/// The rows with another job.
pub(crate) fn vtrain_with(billions: &str, change: impl Fn(&mut Job)) -> Vec<Row> {
    let rows = csv(include_str!("../data/vtrain.csv"));
    let rows = rows.into_iter().filter(|row| row["params_billion"] == billions);
    rows.map(|fields| {
        let number = |name: &str| fields[name].parse::<u32>().unwrap();
        let [tensor, pipeline, data, micro_batch] =
            ["tensor", "pipeline", "data", "micro_batch"].map(number);
        let model = model(number("hidden"), number("heads"), number("layers"));
        let mut job = job("a100", model, number("gpus"), number("global_batch"));
        change(&mut job);
        let iteration = evaluate(job, &plan(tensor, pipeline, data, micro_batch));
        let measured = fields["iteration_ms"].parse::<f64>().unwrap() / 1e3;
        let name = format!("t{tensor} p{pipeline} d{data} b{micro_batch}");
        // The efficiencies of the A100 are fitted on the large model alone.
        Row { fitted: billions == "39.1", ..row(name, measured, iteration.seconds) }
    })
    .collect()
}

fn megatron() -> Vec<Row> {
    let case = |hidden, heads, layers, pipeline, batch, micro_batch, full: bool, measured| {
        let mut machine = job("a100", model(hidden, heads, layers), 8 * pipeline, batch);
        machine.machine.network_link = 25e9;
        let mut plan = plan(8, pipeline, 1, micro_batch);
        if pipeline > 1 {
            plan.schedule = Schedule::Interleaved(3);
            plan.exchange = Exchange::Background;
        }
        if !full {
            (plan.recompute, plan.sequence_parallel) = (Recompute::Attention, true);
        }
        let size = if pipeline > 1 { "175B" } else { "22B" };
        let name = format!("{size}, recompute {}", plan.recompute);
        row(name, measured, evaluate(machine, &plan).seconds)
    };
    vec![
        case(6144, 64, 48, 1, 4, 4, true, 1.42),
        case(6144, 64, 48, 1, 4, 4, false, 1.10),
        case(12288, 96, 96, 8, 64, 1, true, 18.13),
        case(12288, 96, 96, 8, 64, 1, false, 13.75),
    ]
}

fn sailor() -> Vec<Row> {
    let rows = csv(include_str!("../data/sailor.csv"));
    rows.into_iter()
        .map(|fields| {
            let number = |name: &str| fields[name].parse::<u32>().unwrap();
            let [pipeline, data, micro_batch] = ["pipeline", "data", "micro_batch"].map(number);
            let mut model = model(2560, 20, 32);
            model.vocabulary = 50_257;
            let mut plan = plan(4, pipeline, data, micro_batch);
            plan.recompute = Recompute::None;
            // The layers of each stage in Sailor's files, without embedding and output.
            plan.layers = match pipeline {
                1 => vec![32],
                2 => vec![15, 17],
                4 => vec![6, 9, 9, 8],
                _ => vec![2, 5, 5, 5, 4, 4, 4, 3],
            };
            let job = job("gh200", model, number("gpus"), number("global_batch"));
            let predicted = evaluate(job, &plan).seconds;
            let name = format!("{} GPUs, p{pipeline} d{data} b{micro_batch}", number("gpus"));
            let measured = fields["iteration_s"].parse().unwrap();
            let excluded = (pipeline == 1).then_some(
                "the file has 26 of 34 blocks, and the same value for the iteration and for its \
                 gradients",
            );
            let fitted = number("gpus") == 16 && excluded.is_none();
            Row { fitted, excluded, ..row(name, measured, predicted) }
        })
        .collect()
}

fn llama(hidden: u32, heads: u32, layers: u32, feed_forward: u32) -> Model {
    Model {
        kv_heads: Some(8),
        feed_forward: Some(feed_forward),
        gated: true,
        vocabulary: 128_256,
        sequence: 8192,
        attention: Attention::Flash,
        ..model(hidden, heads, layers)
    }
}

/// Gradients are exchanged in single precision, torchtitan's default.
fn torchtitan() -> Vec<Row> {
    let job = |model: Model, gpus, batch| {
        // FP8: weights, inputs and gradients are gathered so (torchtitan's docs/float8.md).
        let gather_bytes = if model.precision == Precision::Fp8 { 1 } else { 2 };
        let model = Model { gradient_bytes: 4, gather_bytes, ..model };
        Job { overlap: true, ..job("h100-500w", model, gpus, batch) }
    };
    let small = |gpus: u32, precision: Precision, measured| {
        let model = Model { precision, ..llama(4096, 32, 32, 14_336) };
        let mut plan = plan(1, 1, gpus, 2);
        (plan.sharding, plan.recompute) = (Sharding::Fsdp, Recompute::Half);
        let float8 = if precision == Precision::Fp8 { ", FP8" } else { "" };
        let name = format!("8B on {gpus} GPUs{float8}");
        row(name, measured, evaluate(job(model, gpus, 2 * gpus), &plan).tokens_per_gpu)
    };
    let medium = |async_tensor: bool, measured| {
        let model = Model { precision: Precision::Fp8, ..llama(8192, 64, 80, 28_672) };
        let plan = Plan {
            sharding: Sharding::Fsdp,
            sequence_parallel: true,
            async_tensor,
            ..plan(8, 1, 32, 16)
        };
        let how = if async_tensor { ", asynchronous" } else { "" };
        let name = format!("70B on 256 GPUs, FP8{how}");
        row(name, measured, evaluate(job(model, 256, 512), &plan).tokens_per_gpu)
    };
    let large = |schedule: Schedule, measured| {
        let model = Model { precision: Precision::Fp8, ..llama(16_384, 128, 126, 53_248) };
        let plan = Plan {
            schedule,
            sharding: Sharding::Fsdp,
            exchange: Exchange::Background,
            sequence_parallel: true,
            async_tensor: true,
            // As many micro-batches as stages: the default of torchtitan then.
            ..plan(8, 8, 8, 4)
        };
        let name = format!("405B on 512 GPUs, FP8, asynchronous, {schedule}");
        row(name, measured, evaluate(job(model, 512, 256), &plan).tokens_per_gpu)
    };
    let mut rows = fitted(vec![small(8, Precision::Half, 6667.0)]);
    rows.extend([
        small(128, Precision::Half, 6514.0),
        small(8, Precision::Fp8, 8532.0),
        small(128, Precision::Fp8, 8380.0),
        medium(false, 829.0),
        medium(true, 876.0),
        large(Schedule::OneForwardOneBackward, 100.0),
        large(Schedule::Interleaved(2), 128.0),
    ]);
    rows
}

fn llama3() -> Vec<Row> {
    let case = |data: u32, measured| {
        let mut job = job("h100", llama(16_384, 128, 126, 53_248), 128 * data, 2048);
        job.overlap = true;
        let mut plan = plan(8, 16, data, 1);
        (plan.schedule, plan.sharding) = (Schedule::Interleaved(8), Sharding::Fsdp);
        (plan.exchange, plan.sequence_parallel) = (Exchange::Background, true);
        plan.recompute = Recompute::None;
        let iteration = evaluate(job, &plan);
        let name = format!("405B on {} GPUs", 128 * data);
        row(name, measured, iteration.operations_per_gpu / 1e12)
    };
    let mut rows = fitted(vec![case(64, 430.0)]);
    rows.push(case(128, 400.0));
    rows
}

/// All tables.
pub(crate) fn tables() -> Vec<Table> {
    let table = |title, unit, fitted, rows| Table {
        title,
        unit,
        fitted,
        larger_is_better: unit != "s",
        rows,
        misses: "",
    };
    vec![
        Table {
            misses: "With t8 and 64 sequences, 2 sequences, or t4 and 2 sequences, the measured \
                     times leave the line\nof the rows beside them by 20 to 100 %. Nothing in the \
                     configuration tells why.",
            ..table("vTrain, 3.6B on 64 A100", "s", "Nothing is fitted.", vtrain("3.6"))
        },
        Table {
            misses: "Rows with t2 and some with t4 took up to 60 % longer than rows beside them: \
                     t2 p8 takes longer with\n2 sequences than with 3. The planner expects the \
                     same law for all t. A factor for each t, fitted on\nall rows for the largest \
                     tau, reaches 0.76 if it is that of links, and 0.75 if it is that of all\n\
                     times: `limit.rs` of the tests. Ten factors, for each t and p, would reach \
                     0.85, but follow no\nlaw: t2 is slowest with p16, t4 with p8. Among the \
                     rows with t8, tau is above 0.8. Waves of tiles\n(NVIDIA's guide to matrix \
                     products) and gradients in single precision make neither figure better.",
            ..table(
                "vTrain, 39.1B on 512 A100",
                "s",
                "The A100's efficiency of products and overhead of a layer are fitted here. Fitted \
                 on 3.6B instead,\nthe mean errors are 6.9 % there and 8.3 % here. Memory is \
                 assumed to reach 70 % of its peak. With 60\nto 90 %, and a fit to that, 3.6B has \
                 mean errors of 7.2 to 9.5 %.",
                vtrain("39.1"),
            )
        },
        table(
            "Megatron on A100",
            "s",
            "Nothing is fitted; links between nodes are twice those of vTrain.",
            megatron(),
        ),
        Table {
            misses: "The row of 8 GPUs is one iteration of one sequence; its 60 ms more are not \
                     explained.\nThe mean error depends on which rows are fitted: 3.3 to 15 %, \
                     and 8.1 % with\nthose of 16 and 32 GPUs.",
            ..table(
                "Sailor, GPT-Neo 2.7B on GH200",
                "s",
                "The GH200's efficiency of products and overhead of a layer are fitted on the rows \
                 of 16 GPUs.",
                sailor(),
            )
        },
        Table {
            misses: "Asynchronous tensor parallelism brings 6 % in the 70B rows as measured, and 18 % \
                     as predicted: the\nexchanges without it are too long here. With half precision \
                     in place of FP8 for what is gathered, it\nwould be 24 %.",
            ..table(
                "torchtitan on H100, 500 W",
                "tokens/s/GPU",
                "The efficiency of products is fitted on the first row.",
                torchtitan(),
            )
        },
        table(
            "Llama 3 on H100, 700 W",
            "TFLOP/s/GPU",
            "The efficiency of products is fitted on the first row.",
            llama3(),
        ),
    ]
}

#[test]
fn mean_errors_are_at_most_8_percent() {
    for table in tables() {
        for error in [true, false].into_iter().filter_map(|fitted| table.mean_error(fitted)) {
            assert!(error <= 0.08, "{}: {error}", table.title);
        }
    }
}

/// The table of 39.1B has a tau above Calculon's 0.35, and far from 0.8: see its misses.
#[test]
fn rows_are_in_the_measured_order() {
    for table in tables() {
        let least = if table.title.contains("39.1B") { 0.5 } else { 0.8 };
        assert!(table.tau() >= least, "{}: {}", table.title, table.tau());
    }
    let with_t8: Vec<(f64, f64)> = vtrain("39.1")
        .iter()
        .filter(|row| row.name.starts_with("t8"))
        .map(|row| (row.measured, row.predicted))
        .collect();
    assert!(super::table::tau(&with_t8) >= 0.8);
}

#[test]
fn the_chosen_row_is_at_most_3_percent_slower_than_the_best() {
    for table in tables() {
        assert!(table.choice() <= 1.03, "{}: {}", table.title, table.choice());
    }
}

/// Calculon (caa4b11f), its efficiencies fitted on the same 39.1B rows and left alone: factors of
/// its curves for products, vectors and memory, the rates of both networks, the latency inside a
/// node.
/// A ring over two nodes has all eight of their links.
#[test]
fn errors_are_smaller_than_calculon_s() {
    for (at, billions, error, tau, choice) in
        [(0, "3.6", 0.1487, 0.883, 1.0), (1, "39.1", 0.0963, 0.456, 1.0)]
    {
        let table = tables().swap_remove(at);
        assert!(table.title.contains(billions));
        let own = table.mean_error(billions == "39.1").unwrap();
        assert!(own < error, "{billions}: {own}");
        assert!(table.tau() > tau, "{billions}: {}", table.tau());
        assert!(table.choice() <= choice, "{billions}: {}", table.choice());
    }
}

/// Checks that the sources name beside their values.
#[test]
fn ratios_within_tables_are_as_measured() {
    let megatron = megatron();
    let ratio = megatron[3].predicted / megatron[2].predicted;
    assert!((0.72..=0.80).contains(&ratio), "{ratio}");
    let torchtitan = torchtitan();
    let lost = 1.0 - torchtitan[1].predicted / torchtitan[0].predicted;
    assert!((0.0..=0.05).contains(&lost), "{lost}");
    let interleaved = torchtitan[7].predicted / torchtitan[6].predicted;
    let asynchronous = torchtitan[5].predicted / torchtitan[4].predicted;
    // 1.06 is measured. 1.24 if inputs and weights were gathered in half precision.
    assert!((1.0..1.19).contains(&asynchronous), "{asynchronous}");
    assert!((1.10..=1.35).contains(&interleaved), "{interleaved}");
    let llama = llama3();
    let lost = 1.0 - llama[1].predicted / llama[0].predicted;
    assert!((0.03..=0.10).contains(&lost), "{lost}");
}
