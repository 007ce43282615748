//! Measures what a chunk of a prompt adds to a step that also decodes, by the chunk's size and
//! by how much of the prompt came before; and the prompt's speed alone on the way there.
//!
//! `cargo run --release -p loquent-engine --example prefill_beside -- MODEL.gguf [ROWS] [own|llama]
//! [THREADS]`

use std::error::Error;
use std::num::NonZeroU16;
use std::path::Path;
use std::time::Instant;

use loquent_engine::llama::{LlamaModel, LlamaRunner, LoadOptions, RunnerOptions};
use loquent_infer::runner::{Batch, Runner, Slot};
use loquent_infer::sampling::{Sampler, Sampling};
use loquent_infer::token::TokenId;

const CHUNKS: [u32; 7] = [0, 4, 8, 16, 24, 40, 72];
const PLACES: [u32; 4] = [256, 1024, 2048, 4096];
const PASS_TOKENS: u32 = 512;
/// What each decoding sequence has behind it.
const PAST_TOKENS: u32 = 200;
const REPEATS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("the first argument is a model file")?;
    let rows: u16 = arguments.next().map_or(Ok(8), |n| n.parse())?;
    let own_kernels = arguments.next().is_none_or(|kernels| kernels != "llama");
    let threads = arguments.next().map(|n| n.parse()).transpose()?.and_then(NonZeroU16::new);
    let load = LoadOptions { own_kernels, ..LoadOptions::default() };
    let model = LlamaModel::load(Path::new(&path), &load, |_| true)?;
    let kv_cells = 2 * PLACES[3] + u32::from(rows) * 2 * PAST_TOKENS;
    let options = RunnerOptions { slots: rows + 1, kv_cells, threads, ..RunnerOptions::default() };
    let mut runner = LlamaRunner::new(model, &options)?;
    for row in 0..rows {
        prefill(&mut runner, row, 0, PAST_TOKENS)?;
        runner.assign(Slot(row), Sampler::new(Sampling::default(), &[], &[]));
    }
    let chunks: String = CHUNKS.iter().map(|chunk| format!("{chunk:>8}")).collect();
    println!(
        "ms a step of {rows} rows and a chunk\n{:>6} {:>14}{chunks}",
        "behind", "ms/token alone"
    );
    let mut behind = 0;
    for place in PLACES {
        let started = Instant::now();
        prefill(&mut runner, rows, behind, place)?;
        let alone_ms = started.elapsed().as_secs_f64() * 1e3 / f64::from(place - behind);
        print!("{place:>6} {alone_ms:>14.2}");
        for chunk in CHUNKS {
            print!("{:>8.1}", mixed_ms(&mut runner, rows, place, chunk)?);
        }
        println!();
        behind = place;
    }
    Ok(())
}

fn prompt(from: u32, to: u32) -> Vec<TokenId> {
    (from..to).map(|i| 100 + i * 7 % 900).collect()
}

fn prefill(runner: &mut LlamaRunner, slot: u16, from: u32, to: u32) -> Result<(), Box<dyn Error>> {
    for start in (from..to).step_by(PASS_TOKENS as usize) {
        let mut batch = Batch::default();
        batch.push(Slot(slot), start, &prompt(start, to.min(start + PASS_TOKENS)), false);
        runner.run(&batch, &mut Vec::new())?;
    }
    Ok(())
}

/// Median step of all rows with `chunk` tokens of the last slot's prompt at `place`.
fn mixed_ms(
    runner: &mut LlamaRunner,
    rows: u16,
    place: u32,
    chunk: u32,
) -> Result<f64, Box<dyn Error>> {
    let mut took_ms = Vec::new();
    for _ in 0..REPEATS {
        let mut batch = Batch::default();
        for row in 0..rows {
            batch.push(Slot(row), PAST_TOKENS, &[100], true);
        }
        if chunk > 0 {
            batch.push(Slot(rows), place, &prompt(place, place + chunk), false);
        }
        let started = Instant::now();
        runner.run(&batch, &mut Vec::new())?;
        took_ms.push(started.elapsed().as_secs_f64() * 1e3);
        for row in 0..rows {
            runner.truncate(Slot(row), PAST_TOKENS);
        }
        if chunk > 0 {
            runner.truncate(Slot(rows), place);
        }
    }
    took_ms.sort_by(f64::total_cmp);
    Ok(took_ms[REPEATS / 2])
}
