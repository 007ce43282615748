//! Tokens, and reasons why a row of logits may give none.

/// Index of a token in a model's vocabulary.
pub type TokenId = u32;

/// Failure of one sequence; its neighbours in the batch did not fail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The logits have no finite maximum: the weights are broken, or a value overflowed.
    #[error("the model produced no usable probabilities (NaN or infinite logits)")]
    NonFiniteLogits,
    /// A constraint (logit bias, grammar) forbids every token.
    #[error("every token is forbidden by the request's constraints")]
    NothingAllowed,
    /// A part of the engine holds other positions of the sequence than the batch assumes.
    #[error("the engine has lost its place in this sequence")]
    OutOfStep,
    /// The request's grammar could not be followed further: it is too complex.
    #[error("the answer's grammar cannot be followed: {0}")]
    Constraint(String),
    /// The tokens that the request's grammar allows were not known in time: other work, or the
    /// machine, was in the way.
    #[error("it takes too long to compute what the answer's grammar allows")]
    TooSlow,
}
