//! Whether an upstream responds, asked once a second at most: whoever calls `/ready` needs no
//! key, and must not be able to have requests sent with the operator's.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::clock::Clock;
use crate::error::ApiError;

/// How long an outcome is given to further callers.
const FRESH: Duration = Duration::from_secs(1);

type Outcome = Result<(), ApiError>;

/// The latest outcome. Callers that come while the upstream is being asked wait for that answer.
#[derive(Default)]
pub struct ReadinessProbe {
    latest: Arc<Mutex<Option<(Duration, Outcome)>>>,
}

impl ReadinessProbe {
    /// The latest outcome, or a new one of `ask` if that is a second old.
    ///
    /// # Errors
    /// Those of `ask`.
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
