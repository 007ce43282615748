//! The source of a service's answers: the built-in engine, or another server.

use std::sync::Arc;

use loquent_infer::remote::RemoteStages;
use loquent_infer::runner::RunnerAbilities;

use super::health::ServiceHealth;
use loquent_gateway::Upstream;
use loquent_serving::api::request::Request;
use loquent_serving::engine_watch::EngineWatch;
use loquent_serving::error::ApiError;
use loquent_serving::output::{OutputHandle, SHUTDOWN};

/// Source of the answers.
#[derive(Clone)]
pub enum Backend {
    /// The built-in engine.
    Engine {
        /// Converts the engine's tokens to flushes.
        output: OutputHandle,
        /// The stages of a split model.
        stages: Option<Arc<dyn RemoteStages>>,
        /// Health of the engine.
        watch: EngineWatch,
        /// Capabilities of the engine.
        abilities: RunnerAbilities,
        /// Completions that it computes at once.
        slots: usize,
    },
    /// Another server.
    Upstream(Arc<Upstream>),
}

impl Backend {
    /// Returns the upstream server; `None` with the built-in engine.
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        match self {
            Self::Engine { .. } => None,
            Self::Upstream(upstream) => Some(upstream),
        }
    }

    /// Returns the health of a service that answers with it.
    pub fn health(&self) -> ServiceHealth {
        match self {
            Self::Engine { watch, stages, .. } => {
                ServiceHealth::new(Some(watch.clone()), stages.clone())
            }
            Self::Upstream(_) => ServiceHealth::new(None, None),
        }
    }

    /// Returns the number of completions that the engine computes at once; `None` with an upstream
    /// server.
    pub fn slots(&self) -> Option<usize> {
        match self {
            Self::Engine { slots, .. } => Some(*slots),
            Self::Upstream(_) => None,
        }
    }

    /// Returns true if the model generates text. Assumed of an upstream server.
    pub fn generates(&self) -> bool {
        match self {
            Self::Engine { abilities, .. } => abilities.generates,
            Self::Upstream(_) => true,
        }
    }

    /// Ends all streams with an error, and lets the engine stop.
    pub fn stop(&self) {
        match self {
            Self::Engine { output, watch, .. } => {
                watch.expect_end();
                output.stop(ApiError::internal(SHUTDOWN));
            }
            Self::Upstream(upstream) => upstream.stop(),
        }
    }

    /// Checks that the engine can answer `request` with the model `name`. An upstream server checks
    /// that itself.
    ///
    /// # Errors
    /// 400 for a model without text generation, and for scores of a prompt that it does not give.
    pub fn check_able(&self, name: &str, request: &Request) -> Result<(), ApiError> {
        let Self::Engine { abilities, .. } = self else { return Ok(()) };
        if !abilities.generates {
            let why = format!("The model '{name}' makes embeddings only: ask /v1/embeddings.");
            return Err(ApiError::invalid_param("model", why));
        }
        if request.prompt_logprobs().is_some() && !abilities.scores_prompts {
            let why = "'logprobs' with 'echo': a split model gives none for prompts.";
            return Err(ApiError::invalid_param("logprobs", why));
        }
        Ok(())
    }
}
