//! The simulated engine: same text alone and with others, correct cells, faults, panics.

use loquent_infer::sampling::Sampling;
use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, Vocab};

use super::*;
use loquent_infer::sim_vocab::SimVocab;

fn tokens(text: &str) -> Vec<TokenId> {
    SimVocab.encode(text, Encode { add_bos: false, parse_special: true }).unwrap()
}

fn small(slots: u16, kv_cells: u32) -> SimOptions {
    let capacity = Capacity { slots, kv_cells, ..SimOptions::default().capacity };
    SimOptions { capacity, ..SimOptions::default() }
}

/// Decodes `steps` tokens of several prompts in one batch each step.
fn generate(
    runner: &mut SimRunner,
    prompts: &[&str],
    how: &Sampling,
    steps: usize,
) -> Vec<Vec<TokenId>> {
    let mut answers = vec![Vec::new(); prompts.len()];
    let mut sampled = Vec::new();
    for step in 0..steps {
        let mut batch = Batch::default();
        for (i, prompt) in prompts.iter().enumerate() {
            let (slot, prompt) = (Slot(i as u16), tokens(prompt));
            if step == 0 {
                runner.assign(slot, Sampler::new(how.clone(), &prompt, &[]));
                batch.push(slot, 0, &prompt, true);
            } else {
                let last = answers[i][step - 1];
                batch.push(slot, (prompt.len() + step - 1) as u32, &[last], true);
            }
        }
        sampled.clear();
        runner.run(&batch, &mut sampled).unwrap();
        for row in &sampled {
            answers[row.slot.index()].push(row.outcome.as_ref().unwrap().token);
        }
    }
    answers
}

#[test]
fn text_depends_on_the_prompt_alone() {
    let how = Sampling { temperature: 1.0, seed: 3, ..Sampling::default() };
    let prompts = ["one", "two", "one"];
    let together = generate(&mut SimRunner::new(small(3, 4096)), &prompts, &how, 40);
    assert_eq!(together[0], together[2]);
    assert_ne!(together[0], together[1]);
    let alone = generate(&mut SimRunner::new(small(1, 4096)), &prompts[..1], &how, 40);
    assert_eq!(alone[0], together[0]);
}

#[test]
fn a_recomputed_sequence_goes_on_alike() {
    let how = Sampling::default();
    let whole = generate(&mut SimRunner::new(small(1, 4096)), &["hello"], &how, 20).remove(0);
    let mut runner = SimRunner::new(small(1, 4096));
    let prompt = tokens("hello");
    runner.assign(Slot(0), Sampler::new(how, &prompt, &whole[..8]));
    let mut batch = Batch::default();
    batch.push(Slot(0), 0, &[&prompt[..], &whole[..8]].concat(), true);
    let mut sampled = Vec::new();
    runner.run(&batch, &mut sampled).unwrap();
    assert_eq!(sampled[0].outcome.as_ref().unwrap().token, whole[8]);
}

#[test]
fn ends_as_asked_unless_forbidden() {
    let mut how = Sampling::default();
    let answer = generate(&mut SimRunner::new(small(1, 4096)), &["tokens=5"], &how, 8).remove(0);
    assert_eq!(answer.iter().position(|&t| SimVocab.is_end(t)), Some(5));
    how.forbidden = (0..SIZE as TokenId).filter(|&t| SimVocab.is_end(t)).collect();
    let answer = generate(&mut SimRunner::new(small(1, 4096)), &["tokens=5"], &how, 8).remove(0);
    assert!(!answer.iter().any(|&t| SimVocab.is_end(t)));
}

#[test]
fn shared_cells_count_once() {
    let mut runner = SimRunner::new(small(3, 10));
    let mut batch = Batch::default();
    batch.push(Slot(0), 0, &[1, 2, 3, 4, 5, 6], false);
    runner.run(&batch, &mut Vec::new()).unwrap();
    runner.fork(Slot(0), Slot(1), 5);
    runner.fork(Slot(1), Slot(2), 3);
    assert_eq!(runner.free_cells(), 4);
    runner.truncate(Slot(0), 0);
    assert_eq!(runner.free_cells(), 5);
    runner.truncate(Slot(1), 4);
    assert_eq!(runner.free_cells(), 6);
    batch.clear();
    batch.push(Slot(0), 0, &[0; 7], false);
    assert_eq!(runner.run(&batch, &mut Vec::new()), Err(RunError::CacheFull));
    assert_eq!(runner.free_cells(), 6);
    runner.truncate(Slot(1), 0);
    runner.truncate(Slot(2), 0);
    assert_eq!(runner.free_cells(), 10);
}

#[test]
fn faults_come_once_and_alone() {
    let broken = RunError::Backend("on purpose".into());
    let faults = vec![
        Fault::Row { slot: Slot(1), step: 0, error: RowError::NonFiniteLogits },
        Fault::Batch { step: 1, error: broken.clone() },
    ];
    let mut runner = SimRunner::new(SimOptions { faults, ..small(2, 100) });
    let mut batch = Batch::default();
    for slot in [Slot(0), Slot(1)] {
        runner.assign(slot, Sampler::new(Sampling::default(), &[7], &[]));
        batch.push(slot, 0, &[7], true);
    }
    let mut sampled = Vec::new();
    runner.run(&batch, &mut sampled).unwrap();
    assert!(sampled[0].outcome.is_ok());
    assert_eq!(sampled[1].outcome, Err(RowError::NonFiniteLogits));
    batch.clear();
    batch.push(Slot(0), 1, &[7], false);
    assert_eq!(runner.run(&batch, &mut sampled), Err(broken));
    runner.run(&batch, &mut sampled).unwrap();
}

#[test]
#[should_panic(expected = "does not go on where it ended")]
fn holes_are_refused() {
    let mut batch = Batch::default();
    batch.push(Slot(0), 1, &[7], false);
    let _ = SimRunner::new(small(1, 10)).run(&batch, &mut Vec::new());
}

#[test]
#[should_panic(expected = "not empty")]
fn forks_into_used_slots_are_refused() {
    let mut runner = SimRunner::new(small(2, 10));
    let mut batch = Batch::default();
    batch.push(Slot(0), 0, &[7], false);
    batch.push(Slot(1), 0, &[7], false);
    runner.run(&batch, &mut Vec::new()).unwrap();
    runner.fork(Slot(0), Slot(1), 1);
}
