//! One side's computation in a process of its own: this test's own program, started anew.

use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use loquent_engine::KvType;
use loquent_engine::llama::{Isa, LlamaModel, LlamaRunner, LoadOptions, RunnerOptions};
use loquent_infer::runner::{Batch, Runner, Slot};

use crate::distributions::Distribution;

/// The variable in which the process finds its order, as JSON.
const ORDER: &str = "LOQUENT_TEST_ORDER";
/// Most tokens with distributions in one batch: rows of logits that a runner keeps.
const MOST_SCORED: usize = 48;
/// Most likely tokens that are compared.
const TOP: u8 = u8::MAX;
/// Tokens of each sequence that are computed one by one, all sequences together, after its prompt.
const STEPS: usize = 8;

/// Whose kernels compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// Ours for this instruction set.
    Own(Isa),
    Llama,
    /// llama.cpp's, with a cache of 32-bit floats, and without fused attention.
    Exact,
}

/// What a process is to compute.
pub struct Order {
    pub model: PathBuf,
    pub kernels: Kernels,
    pub prompts: Vec<Vec<u32>>,
}

/// Has a new process compute `order`: distributions behind the last tokens of each prompt, and
/// then of some steps.
pub fn compute(order: &Order, folder: &Path) -> Vec<Distribution> {
    let out = folder.join("distributions.json");
    let kernels = match order.kernels {
        Kernels::Own(isa) => isa.name(),
        Kernels::Llama => "llama",
        Kernels::Exact => "exact",
    };
    let told = serde_json::json!({
        "model": order.model, "kernels": kernels, "prompts": order.prompts, "out": out,
    });
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "process::computes_what_it_is_told", "--nocapture"])
        .env(ORDER, told.to_string())
        .output()
        .expect("this program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let written = std::fs::read(&out).expect("the process wrote its results");
    serde_json::from_slice(&written).expect("distributions")
}

#[test]
#[ignore = "started by the other tests, with an order in its environment"]
fn computes_what_it_is_told() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let told: serde_json::Value = serde_json::from_str(&order).expect("an order");
    let path = |key: &str| PathBuf::from(told[key].as_str().expect("a path"));
    let kernels = match told["kernels"].as_str() {
        Some("llama") => Kernels::Llama,
        Some("exact") => Kernels::Exact,
        name => {
            let isa = Isa::available().find(|isa| Some(isa.name()) == name);
            Kernels::Own(isa.expect("an instruction set of this processor"))
        }
    };
    let own_kernels = match kernels {
        Kernels::Own(isa) => isa.choose().is_ok(),
        Kernels::Llama | Kernels::Exact => false,
    };
    let options = LoadOptions { own_kernels, ..LoadOptions::default() };
    let model = LlamaModel::load(&path("model"), &options, |_| true).expect("the model loads");
    assert_eq!(model.uses_own_kernels(), own_kernels);
    let prompts: Vec<Vec<u32>> =
        serde_json::from_value(told["prompts"].clone()).expect("lists of tokens");
    let found = distributions(model, kernels, &prompts);
    std::fs::write(path("out"), serde_json::to_vec(&found).expect("numbers")).expect("a file");
}

fn distributions(
    model: Arc<LlamaModel>,
    kernels: Kernels,
    prompts: &[Vec<u32>],
) -> Vec<Distribution> {
    let kv_type = if kernels == Kernels::Exact { KvType::F32 } else { KvType::F16 };
    let options = RunnerOptions {
        slots: prompts.len() as u16,
        kv_cells: 1024,
        batch_tokens: 1024,
        kv_type,
        threads: NonZeroU16::new(2),
        ..RunnerOptions::default()
    };
    let mut runner = LlamaRunner::new(model, &options).expect("a context");
    let mut found = Vec::new();
    for (slot, prompt) in (0..).map(Slot).zip(prompts) {
        // All but the last tokens in one batch.
        let (head, tail) = prompt.split_at(prompt.len().saturating_sub(MOST_SCORED));
        if !head.is_empty() {
            let mut batch = Batch::default();
            batch.push(slot, 0, head, false);
            runner.run(&batch, &mut Vec::new()).expect("the prompt runs");
        }
        found.extend(scored(&mut runner, &[(slot, head.len(), tail)]));
    }
    for step in 0..STEPS {
        // Each sequence goes on with tokens of its own beginning: the same on every side.
        let rows: Vec<(Slot, usize, &[u32])> = (0..)
            .zip(prompts)
            .map(|(slot, prompt)| {
                let at = step % prompt.len();
                (Slot(slot), prompt.len() + step, &prompt[at..=at])
            })
            .collect();
        found.extend(scored(&mut runner, &rows));
    }
    found
}

/// Computes spans of tokens, each from its position on, in one batch, and returns the
/// distributions behind all of their tokens.
fn scored(runner: &mut LlamaRunner, spans: &[(Slot, usize, &[u32])]) -> Vec<Distribution> {
    let (mut batch, mut rows) = (Batch::default(), Vec::new());
    for (slot, start, tokens) in spans {
        batch.push(*slot, *start as u32, tokens, false);
        // Which token's own probability is asked for does not matter.
        batch.push_scores(TOP, &vec![0; tokens.len()]);
    }
    runner.run(&batch, &mut rows).expect("the batch runs");
    let top = |row: loquent_infer::runner::Sampled| {
        row.outcome.expect("usable logits").logprobs.expect("asked for").top
    };
    rows.into_iter().map(top).collect()
}
