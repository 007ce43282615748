//! Checks that the last stage, which may be on a foreign machine, answered as requested.

use loquent_infer::runner::{Batch, Sampled};

use super::wire::Done;

/// Checks that `sampled` has one row for each span that samples, and for the others none but a
/// failure. A missing row would leave its sequence waiting forever, an extra one would put a token
/// into the middle of a prompt. A token beyond `vocab` has no text and no embedding.
///
/// # Errors
/// The stage's error.
pub(super) fn check_rows(batch: &Batch, sampled: &[Sampled], vocab: u64) -> Result<(), String> {
    let tokens = || sampled.iter().filter_map(|row| row.outcome.as_ref().ok());
    if tokens().any(|choice| u64::from(choice.token) >= vocab) {
        return Err("the last stage sampled a token that the model does not have".into());
    }
    for span in &batch.spans {
        let rows = || sampled.iter().filter(|row| row.slot == span.slot);
        let tokens = rows().filter(|row| row.outcome.is_ok()).count();
        if tokens > usize::from(span.sample) || (span.sample && rows().next().is_none()) {
            return Err("the last stage did not answer the rows that it was asked for".into());
        }
    }
    Ok(())
}

/// Checks that an answer has at most one time for each of `stages`: the times of thousands of
/// batches are kept.
///
/// # Errors
/// The stage's error.
pub(super) fn check_timings(done: &Done, stages: usize) -> Result<(), String> {
    match done.timings.len() <= stages {
        true => Ok(()),
        false => Err("the last stage reports times of more stages than there are".into()),
    }
}

#[cfg(test)]
mod tests {
    use loquent_infer::runner::Slot;
    use loquent_infer::sampling::SampledToken;
    use loquent_infer::token::{RowError, TokenId};

    use super::*;
    use crate::staged::wire::StageTiming;

    fn token(slot: u16, token: TokenId) -> Sampled {
        let choice = SampledToken { token, logprobs: None };
        Sampled { slot: Slot(slot), outcome: Ok(choice) }
    }

    fn failure(slot: u16) -> Sampled {
        Sampled { slot: Slot(slot), outcome: Err(RowError::NonFiniteLogits) }
    }

    /// Slot 0 samples, slot 1 computes a part of a prompt.
    fn check(sampled: &[Sampled]) -> Result<(), String> {
        let mut batch = Batch::default();
        batch.push(Slot(0), 3, &[7], true);
        batch.push(Slot(1), 0, &[8, 9], false);
        check_rows(&batch, sampled, 64)
    }

    #[test]
    fn times_of_stages_that_do_not_exist_are_the_stages_fault() {
        let done = |times| Done {
            id: 1,
            timings: vec![StageTiming::default(); times],
            outcome: Ok(vec![]),
        };
        assert_eq!(check_timings(&done(2), 2), Ok(()));
        assert_eq!(check_timings(&done(0), 2), Ok(()), "a batch that was aborted");
        assert!(check_timings(&done(3), 2).is_err());
    }

    #[test]
    fn a_row_for_each_span_that_samples_is_sound() {
        assert_eq!(check(&[token(0, 5)]), Ok(()));
        assert_eq!(check(&[failure(0), failure(1)]), Ok(()));
    }

    #[test]
    fn a_row_that_is_left_out_is_the_stages_fault() {
        assert!(check(&[]).is_err());
        assert!(check(&[failure(1)]).is_err());
    }

    #[test]
    fn a_row_that_was_not_asked_for_is_the_stages_fault() {
        assert!(check(&[token(0, 5), token(1, 5)]).is_err());
        assert!(check(&[token(0, 5), token(0, 6)]).is_err());
        assert!(check(&[token(0, 64)]).is_err());
    }
}
