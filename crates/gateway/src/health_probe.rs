//! Readiness check of an upstream, sent at most once a second: callers of `/ready` need no key, and
//! must not be able to trigger many requests with the operator's key.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use loquent_serving::clock::Clock;
use loquent_serving::error::ApiError;

/// Time for which an outcome is reused.
const FRESH: Duration = Duration::from_secs(1);

type Outcome = Result<(), ApiError>;

/// Latest outcome. Callers that arrive during a check wait for its result.
#[derive(Default)]
pub struct ReadinessProbe {
    latest: Arc<Mutex<Option<(Duration, Outcome)>>>,
}

impl ReadinessProbe {
    /// Returns the latest outcome, or a new one from `ask` if that is more than a second old.
    ///
    /// # Errors
    /// The errors of `ask`.
    pub async fn check<F>(&self, clock: Clock, ask: impl FnOnce() -> F) -> Result<(), ApiError>
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut latest = self.latest.clone().lock_owned().await;
        if let Some((at, outcome)) = &*latest
            && clock.now().saturating_sub(*at) < FRESH
        {
            return outcome.clone();
        }
        let asking = ask();
        // A task of its own: callers that hang up at once must not each begin anew.
        let probing = tokio::spawn(async move {
            let outcome = asking.await;
            *latest = Some((clock.now(), outcome.clone()));
            outcome
        });
        probing.await.unwrap_or_else(|_| Err(ApiError::internal("The probe failed.")))
    }
}
