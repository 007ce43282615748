//! Measures decoding on this machine: tokens per second by batch size, and the time that
//! sampling a row takes.
//!
//! `cargo run --release -p loquent-engine --example decode_speed -- MODEL.gguf [THREADS] [POLL]
//! [TEMPERATURE] [f32|f16|q8_0] [llama.cpp|"AVX2"|…]`
//!
//! The last argument names the kernels: llama.cpp's, or ours for an instruction set. The shortest
//! step is worth more than the mean on a machine that computes other things as well.

use std::error::Error;
use std::num::NonZeroU16;
use std::path::Path;
use std::time::Instant;

use loquent_engine::KvType;
use loquent_engine::llama::{self, Isa, LlamaModel, LlamaRunner, LoadOptions, RunnerOptions};
use loquent_infer::runner::{Batch, Runner, Slot};
use loquent_infer::sampling::{Sampler, Sampling, Scratch};

const BATCHES: [u16; 6] = [1, 2, 4, 8, 16, 32];
const PROMPT_TOKENS: u32 = 32;
const STEPS: u32 = 48;
/// A vocabulary as large as Qwen3's.
const WIDE: usize = 151_936;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("the first argument is a model file")?;
    let threads = arguments.next().map(|n| n.parse()).transpose()?.and_then(NonZeroU16::new);
    let poll = arguments.next().map_or(Ok(0), |n| n.parse())?;
    let temperature = arguments.next().map_or(Ok(0.0), |n| n.parse())?;
    let kv_type = arguments.next().map_or(Ok(KvType::default()), |name| name.parse())?;
    let sampling = Sampling { temperature, top_p: 0.95, ..Sampling::default() };
    let kernels = arguments.next();
    let isa = Isa::ALL.into_iter().find(|isa| Some(isa.name()) == kernels.as_deref());
    isa.map_or(Ok(()), Isa::choose)?;
    let own_kernels = kernels.as_deref() != Some("llama.cpp");

    let started = Instant::now();
    let load = LoadOptions { own_kernels, ..LoadOptions::default() };
    let model = LlamaModel::load(Path::new(&path), &load, |_| true)?;
    println!("{} in {:?}", model.info().description, started.elapsed());
    println!("llama.cpp: {}", llama::system_info());
    let options = RunnerOptions { slots: 32, threads, poll, kv_type, ..RunnerOptions::default() };
    let mut runner = LlamaRunner::new(model, &options)?;
    runner.warm_up()?;

    println!("threads {:?}, poll {poll}, temperature {temperature}", threads);
    println!("{:>5} {:>12} {:>12} {:>12}", "batch", "ms/step", "shortest", "tokens/s");
    for rows in BATCHES {
        let (step_s, least_s) = decode(&mut runner, rows, &sampling)?;
        let (step_ms, least_ms) = (step_s * 1e3, least_s * 1e3);
        println!("{rows:>5} {step_ms:>12.2} {least_ms:>12.2} {:>12.1}", f64::from(rows) / step_s);
    }
    println!("sampling one row of {WIDE}: {:.0} us", sample_us(&sampling));
    Ok(())
}

/// Mean seconds per step of `rows` sequences, and those of the shortest.
fn decode(
    runner: &mut LlamaRunner,
    rows: u16,
    how: &Sampling,
) -> Result<(f64, f64), Box<dyn Error>> {
    let mut next = vec![0; rows.into()];
    let (mut started, mut least_s) = (Instant::now(), f64::INFINITY);
    let (mut batch, mut sampled) = (Batch::default(), Vec::new());
    for step in 0..=STEPS {
        batch.clear();
        for row in 0..rows {
            if step == 0 {
                let prompt: Vec<u32> = (1..=PROMPT_TOKENS).collect();
                runner.assign(Slot(row), Sampler::new(how.clone(), &prompt, &[]));
                // In parts, so that 32 prompts fit a batch.
                let mut part = Batch::default();
                part.push(Slot(row), 0, &prompt[1..], false);
                runner.run(&part, &mut sampled)?;
            }
            batch.push(Slot(row), PROMPT_TOKENS - 1 + step, &[next[usize::from(row)]], true);
        }
        sampled.clear();
        let begun = Instant::now();
        runner.run(&batch, &mut sampled)?;
        least_s = least_s.min(begun.elapsed().as_secs_f64());
        for row in &sampled {
            next[row.slot.index()] = row.outcome.as_ref().map_err(Clone::clone)?.token;
        }
        if step == 0 {
            started = Instant::now();
        }
    }
    let step_s = started.elapsed().as_secs_f64() / f64::from(STEPS);
    (0..rows).for_each(|row| runner.truncate(Slot(row), 0));
    Ok((step_s, least_s))
}

/// Microseconds to sample one row of noise, the worst case for top-p.
fn sample_us(how: &Sampling) -> f64 {
    let noise = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 22) as f32;
    let logits: Vec<f32> = (0..WIDE).map(noise).collect();
    let mut sampler = Sampler::new(how.clone(), &[], &[]);
    let (mut scratch, rounds) = (Scratch::default(), 200);
    let mut row = logits.clone();
    let started = Instant::now();
    for _ in 0..rounds {
        row.copy_from_slice(&logits);
        let _ = std::hint::black_box(sampler.sample(&mut row, &mut scratch));
    }
    started.elapsed().as_secs_f64() * 1e6 / f64::from(rounds)
}
