//! Reasoning controls of a request: an effort for the chat template, and a token budget.

use super::fields::Fields;
use crate::error::{ApiError, quoted};

/// The efforts that OpenAI and its peers name, lowest first.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// Names of the token budget: llama-server's and vLLM's.
const BUDGETS: [&str; 2] = ["thinking_budget_tokens", "thinking_token_budget"];

/// Requested effort, verbosity and reasoning budget; unset fields leave the choice to the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReasoningParams {
    /// `reasoning_effort`: one of OpenAI's names.
    pub effort: Option<String>,
    /// `verbosity`: a word for the chat template.
    pub verbosity: Option<String>,
    /// Maximum number of reasoning tokens, with the name of the parameter that sets it.
    pub budget: Option<(u32, &'static str)>,
}

impl ReasoningParams {
    /// Takes `reasoning_effort`, `verbosity`, `thinking_budget_tokens` (as llama-server has it),
    /// `thinking_token_budget` (vLLM), and `reasoning` with `effort` and `max_tokens` (OpenRouter).
    ///
    /// # Errors
    /// 400 with the name of the wrong field.
    pub fn parse(fields: &mut Fields) -> Result<Self, ApiError> {
        let mut params = Self {
            effort: parse_effort(fields, "reasoning_effort")?,
            verbosity: fields.string("verbosity")?,
            budget: None,
        };
        for name in BUDGETS {
            params.budget =
                parse_budget(fields, name)?.map(|tokens| (tokens, name)).or(params.budget);
        }
        if let Some(mut nested) = fields.object("reasoning")? {
            params.effort = parse_effort(&mut nested, "effort")?.or(params.effort);
            let budget = parse_budget(&mut nested, "max_tokens")?;
            params.budget = budget.map(|tokens| (tokens, "reasoning.max_tokens")).or(params.budget);
            fields.ignore_rest(nested);
        }
        Ok(params)
    }
}

fn parse_effort(fields: &mut Fields, name: &str) -> Result<Option<String>, ApiError> {
    let effort = fields.string(name)?;
    match effort.as_deref() {
        Some(other) if !EFFORTS.contains(&other) => {
            let known = EFFORTS.join(", ");
            Err(fields.error(name, format!("must be one of {known}, not '{}'.", quoted(other))))
        }
        _ => Ok(effort),
    }
}

/// Takes a number of tokens; -1, llama-server's notation for no limit, becomes `None`.
fn parse_budget(fields: &mut Fields, name: &str) -> Result<Option<u32>, ApiError> {
    let tokens = fields.integer(name, -1..=i64::from(u32::MAX))?;
    Ok(tokens.and_then(|tokens| u32::try_from(tokens).ok()))
}

/// Maps `effort` to one of the three efforts that gpt-oss knows.
pub fn of_three(effort: &str) -> &'static str {
    match effort {
        "none" | "minimal" | "low" => "low",
        "medium" => "medium",
        _ => "high",
    }
}
