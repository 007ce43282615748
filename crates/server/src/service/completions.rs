//! The completions of a prepared request: the engine's work, and how its tokens become flushes.

use loquent_formats::grammar::Thinking;
use loquent_formats::template::ControlTokenTags;
use loquent_infer::request::{Tag, Work};
use loquent_infer::sampling::Sampling;

use loquent_serving::admission::{Permit, enqueue_all, refused};
use loquent_serving::api::request::{Endpoint, Request, SamplingParams};
use loquent_serving::cache_domain::CacheDomains;
use loquent_serving::completion::reader::{CallConfig, SplitConfig};
use loquent_serving::completion::{Completion, CompletionConfig, LogprobConfig};
use loquent_serving::error::ApiError;
use loquent_serving::model::ServedModel;
use loquent_serving::output::{NewCompletion, ProgressWish};
use loquent_serving::prompts::Prepared;
use loquent_serving::serving_config::ServingConfig;

/// Builds the completions of one request.
pub struct CompletionBuilder<'a> {
    /// Model that answers.
    pub model: &'a ServedModel,
    /// Settings of the service.
    pub config: &'a ServingConfig,
    /// Domains within which cached prefixes are shared.
    pub cache_domains: &'a CacheDomains,
    /// The request.
    pub prepared: &'a Prepared,
}

impl CompletionBuilder<'_> {
    /// Returns the completions of all prompts, one for each of `permits`.
    ///
    /// # Errors
    /// 429 if the prompts exceed the limits on waiting tokens. Nothing is charged then.
    pub fn completions(&self, mut permits: Vec<Permit>) -> Result<Vec<NewCompletion>, ApiError> {
        let Prepared { request, prompts, .. } = self.prepared;
        let n = request.n as usize;
        let split = self.split_config();
        // Completions of one prompt share it: it waits once, and is charged once.
        let own_prompt = |index: usize| index.is_multiple_of(n).then(|| prompts[index / n].len());
        let waiting: Vec<_> = (0..permits.len()).map(|at| own_prompt(at).unwrap_or(0)).collect();
        enqueue_all(&mut permits, &waiting).map_err(refused)?;
        let mut completions = Vec::with_capacity(permits.len());
        for (index, mut permit) in permits.into_iter().enumerate() {
            if let Some(tokens) = own_prompt(index) {
                permit.charge_prompt(tokens as u64);
            }
            let calls = request.call_ids.map(|ids| ids.wrapping_add(index as u64));
            let config = self.completion_config(index / n, split.for_completion(calls));
            let completion = Completion::new(index as u32, self.model.vocab.clone(), config);
            completions.push(NewCompletion {
                completion,
                work: Box::new(self.work(index)),
                permit,
                // A resumable answer has a reader grace period of its own, and may have no reader.
                exempt_from_stall_limit: request.resumable,
                progress: progress_wish(request, index),
            });
        }
        Ok(completions)
    }

    /// Returns the engine's work for completion `index`.
    fn work(&self, index: usize) -> Work {
        let Prepared { request, prompts, .. } = self.prepared;
        let prompt = &prompts[index / request.n as usize];
        let context = request.context_limit.unwrap_or(u32::MAX).min(self.model.context_tokens);
        let room = context.saturating_sub(prompt.len() as u32);
        Work {
            // The output processor assigns the tag when it knows the completion's index.
            tag: Tag(0),
            prompt: prompt.clone(),
            // More than the context holds is cut instead of refused: clients send huge limits.
            max_tokens: request.max_tokens.unwrap_or(u32::MAX).min(room),
            sampling: Sampling {
                grammar: self.prepared.grammar.clone(),
                ..self.sampling(&request.sampling, index as u64)
            },
            score_prompt: request.prompt_logprobs(),
            priority: request.priority,
            tenant: request.identity.scheduled(),
            cache_domain: self
                .cache_domains
                .of_request(&request.identity, request.cache_salt.as_deref()),
            // The engine looks that up.
            stored_tokens: 0,
        }
    }

    /// Returns the configuration by which the tokens of a completion of prompt `prompt` become
    /// flushes.
    fn completion_config(&self, prompt: usize, split: SplitConfig) -> CompletionConfig {
        let request = &self.prepared.request;
        CompletionConfig {
            stops: request.stop.clone(),
            interval: request.interval.unwrap_or(self.config.interval),
            max_delay: self.config.max_delay,
            timings: request.stream.is_some_and(|stream| stream.include_timings),
            split,
            logprobs: LogprobConfig {
                prompt: self.prepared.scored.get(prompt).cloned(),
                only_prompt: request.max_tokens == Some(0),
                // A chat's entries join to its text; a plain completion has one for each of its
                // tokens, as OpenAI's has.
                keeps_end: request.endpoint == Endpoint::Text,
                keeps_ids: request.token_ids,
            },
            names_stop: request.include_stop_reason.then_some(request.endpoint),
        }
    }

    /// Returns the configuration by which an answer's text is split into reasoning, tool calls and
    /// content.
    fn split_config(&self) -> SplitConfig {
        let calls = self.prepared.request.tools().map(|tools| CallConfig {
            syntax: self.model.call_syntax(),
            tools: tools.callable.clone().into(),
            id: 0,
        });
        let splits = self.config.split_reasoning;
        let thinking = match self.prepared.thinking {
            // All of such an answer is in messages, with reasoning in its text or not.
            Thinking::Channels => Thinking::Channels,
            thinking if splits => thinking,
            _ => Thinking::Never,
        };
        let config =
            SplitConfig { thinking, calls, keeps_reasoning: !splits, ..SplitConfig::default() };
        if !config.is_needed() {
            return config;
        }
        let ControlTokenTags { thinking, all } = self.model.spoken_tags().clone();
        let has_calls = config.calls.is_some() || self.prepared.thinking == Thinking::Channels;
        SplitConfig { spoken: if has_calls { all } else { thinking }, ..config }
    }

    /// Returns the request's sampling parameters, completed by the model's defaults. Each
    /// completion has a different seed, or all `n` would be the same text.
    fn sampling(&self, params: &SamplingParams, index: u64) -> Sampling {
        let holds = params.resolve(&self.model.defaults);
        let seed = params.seed.unwrap_or_else(rand::random);
        Sampling {
            temperature: holds.temperature,
            top_k: holds.top_k,
            top_p: holds.top_p,
            min_p: holds.min_p,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            repetition_penalty: holds.repetition_penalty,
            repeat_last_n: params.repeat_window(),
            // Counted on from one seed: the i-th completion is the same whatever `n` is.
            seed: seed.wrapping_add(index),
            logit_bias: params.logit_bias.clone(),
            logprobs: params.logprobs,
            forbidden: if params.ignore_eos { self.model.end_tokens.clone() } else { Vec::new() },
            grammar: None,
        }
    }
}

/// Returns the progress reports wanted for completion `index`: only the first one reports.
fn progress_wish(request: &Request, index: usize) -> ProgressWish {
    match request.stream {
        Some(stream) if index == 0 && stream.return_progress => ProgressWish::Everything,
        Some(_) if index == 0 => ProgressWish::LongWaits,
        _ => ProgressWish::Nothing,
    }
}
