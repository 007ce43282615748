//! Start of an answer in the engine: at once, or for a request that has waited for its model.

use std::sync::Arc;
use std::time::Duration;

use loquent_infer::runner::RunnerAbilities;

use super::{Backend, Service};
use crate::active_request::{ActiveRequest, AdmittedRequest, FlushSource};
use crate::admission::Permit;
use crate::api::head::AnswerHead;
use crate::api::request::{Prompt, Request};
use crate::awaited::EngineAnswer;
use crate::error::ApiError;
use crate::output::OutputHandle;

impl Service {
    /// Starts an answer in the engine.
    pub(super) async fn generate(
        self: &Arc<Self>,
        output: &OutputHandle,
        request: Request,
        arrived: Duration,
    ) -> Result<(ActiveRequest, Vec<String>), ApiError> {
        self.check_model(request.model.as_deref())?;
        // Before tokenizing: a server at its limit must refuse without spending time on the prompt.
        let permits = self.admit_request(&request)?;
        let head = self.head(request.endpoint);
        let accepted = self.clock.now();
        let mut admitted = admitted_request(&request, head, arrived, accepted);
        let begun = self.begin(output, request, permits).await?;
        admitted.prompt_tokens = begun.prompt_tokens;
        admitted.tokenized = begun.tokenized;
        let flushes = FlushSource::Engine(begun.flushes);
        Ok((ActiveRequest::new(admitted, flushes, self.observers()), begun.echo))
    }

    /// Starts the answer to `request`, which has waited with its `permits` until the model was
    /// loaded.
    ///
    /// # Errors
    /// 400 for prompts that the model cannot take, 503 while draining.
    pub async fn begin_admitted(
        self: &Arc<Self>,
        mut request: Request,
        permits: Vec<Permit>,
    ) -> Result<EngineAnswer, ApiError> {
        self.ready()?;
        self.adopt(&mut request);
        let Backend::Engine { output, abilities, .. } = &self.backend else {
            return Err(ApiError::internal("An upstream server is not loaded."));
        };
        self.check_able(*abilities, &request)?;
        self.begin(output, request, permits).await
    }

    /// Completes a request that was parsed before its model was loaded, as the model's template
    /// requires.
    pub fn adopt(&self, request: &mut Request) {
        for prompt in &mut request.prompts {
            if let Prompt::Chat(chat) = prompt {
                for name in self.model.give_reasoning(chat) {
                    if !request.ignored.iter().any(|known| known == name) {
                        request.ignored.push(name.to_owned());
                    }
                }
            }
        }
    }

    async fn begin(
        self: &Arc<Self>,
        output: &OutputHandle,
        request: Request,
        permits: Vec<Permit>,
    ) -> Result<EngineAnswer, ApiError> {
        let (mut prepared, permits) = self.prepare(request, permits).await?;
        let echo = std::mem::take(&mut prepared.echo);
        // Compiling a grammar counts as tokenizing: both delay the first token on the same workers.
        let tokenized = self.clock.now();
        let lens = prepared.prompts.iter().map(Vec::len);
        let n = prepared.request.n as usize;
        let prompt_tokens = lens.flat_map(|len| std::iter::repeat_n(len, n)).collect();
        let flushes = output.start(self.completions(&prepared, permits)?);
        Ok(EngineAnswer { held: None, prompt_tokens, tokenized, flushes, echo })
    }

    /// Checks that the engine can answer `request`.
    pub(super) fn check_able(
        &self,
        abilities: RunnerAbilities,
        request: &Request,
    ) -> Result<(), ApiError> {
        if abilities.generates {
            if request.prompt_logprobs().is_some() && !abilities.scores_prompts {
                let why = "'logprobs' with 'echo': a split model gives none for prompts.";
                return Err(ApiError::invalid_param("logprobs", why));
            }
            return Ok(());
        }
        let name = &self.model.name;
        let why = format!("The model '{name}' makes embeddings only: ask /v1/embeddings.");
        Err(ApiError::invalid_param("model", why))
    }
}

/// Returns the description of an answer to `request` before its prompts are tokenized.
pub fn admitted_request(
    request: &Request,
    head: AnswerHead,
    arrived: Duration,
    accepted: Duration,
) -> AdmittedRequest {
    AdmittedRequest {
        head,
        stream: request.stream.unwrap_or_default(),
        prompt_tokens: vec![0; request.choices()],
        n: request.n as usize,
        arrived,
        accepted,
        tokenized: accepted,
        trace_parent: request.trace_parent.clone(),
        span: None,
        id: request.id.clone(),
        key: request.identity.key.clone(),
    }
}
