//! How much a request has the model reason: an effort for its chat template, and a budget.

use super::fields::Fields;
use crate::error::{ApiError, quoted};

/// The efforts that OpenAI and its peers name, least first.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// What the budget is called: by llama-server, and by vLLM.
const BUDGETS: [&str; 2] = ["thinking_budget_tokens", "thinking_token_budget"];

/// How much to reason, and how much to say; by default as the model does by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReasoningParams {
    /// `reasoning_effort`: one of OpenAI's names.
    pub effort: Option<String>,
    /// `verbosity`: a word for the chat template.
    pub verbosity: Option<String>,
    /// Most tokens of reasoning, and what the request calls that.
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

/// A number of tokens; llama-server writes -1 for no limit.
fn parse_budget(fields: &mut Fields, name: &str) -> Result<Option<u32>, ApiError> {
    let tokens = fields.integer(name, -1..=i64::from(u32::MAX))?;
    Ok(tokens.and_then(|tokens| u32::try_from(tokens).ok()))
}

/// The effort among the three that gpt-oss knows.
pub fn of_three(effort: &str) -> &'static str {
    match effort {
        "none" | "minimal" | "low" => "low",
        "medium" => "medium",
        _ => "high",
    }
}
