//! Health of a service: its engine may be lost for a while or for good, and the server may drain.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use loquent_infer::remote::RemoteStages;

use loquent_serving::engine_watch::EngineWatch;
use loquent_serving::error::ApiError;

/// `Retry-After` in seconds while the server shuts down.
const DRAIN_RETRY_S: u64 = 5;

/// Health of a service. With an upstream server, which has health checks of its own, only the drain
/// counts.
pub struct ServiceHealth {
    watch: Option<EngineWatch>,
    stages: Option<Arc<dyn RemoteStages>>,
    /// True once the server shuts down.
    draining: AtomicBool,
}

impl ServiceHealth {
    /// Health of an engine with `watch` and, for a split model, `stages`.
    pub fn new(watch: Option<EngineWatch>, stages: Option<Arc<dyn RemoteStages>>) -> Self {
        Self { watch, stages, draining: AtomicBool::new(false) }
    }

    /// Returns the watch of the engine; `None` with an upstream server.
    pub fn engine_watch(&self) -> Option<&EngineWatch> {
        self.watch.as_ref()
    }

    /// Returns the stages of a split model; `None` if all layers are in this process, or with an
    /// upstream server.
    pub fn stages(&self) -> Option<&Arc<dyn RemoteStages>> {
        self.stages.as_ref()
    }

    /// Refuses new requests from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Checks that new requests are accepted.
    ///
    /// # Errors
    /// 503 while the server drains, after the engine has failed, or while the engine's process or
    /// the stages of a split model are lost.
    pub fn ready(&self) -> Result<(), ApiError> {
        self.alive()?;
        self.check_draining()?;
        self.outage().map_or(Ok(()), |why| Err(ApiError::engine_away(&why)))
    }

    /// Returns why nothing can be computed at present; `None` while the engine works, or if it has
    /// failed for good.
    pub fn outage(&self) -> Option<String> {
        let stages = self.stages.as_ref().and_then(|stages| stages.outage());
        let outage = || self.watch.as_ref()?.outage().map(|outage| outage.why.to_string());
        stages.or_else(outage)
    }

    /// Checks that the engine works, or may work again without a restart.
    ///
    /// # Errors
    /// 503 after the engine has failed.
    pub fn alive(&self) -> Result<(), ApiError> {
        match self.failure() {
            None => Ok(()),
            Some(_) => {
                let message = "The engine has failed. The server ends, and must be started again.";
                Err(ApiError::unavailable(message, DRAIN_RETRY_S))
            }
        }
    }

    /// Returns why the engine failed; `None` if it has not.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.watch.as_ref()?.failure()
    }

    /// Waits until the engine fails; never resolves if it does not.
    pub async fn failed(&self) -> Arc<str> {
        if let Some(watch) = &self.watch
            && let Some(why) = watch.failed().await
        {
            return why;
        }
        std::future::pending().await
    }

    /// Checks that requests are accepted, even if they have to wait for the engine.
    ///
    /// # Errors
    /// 503 if they are not.
    pub fn check_open(&self) -> Result<(), ApiError> {
        self.alive()?;
        self.check_draining()?;
        self.check_outage()
    }

    /// Checks that the server does not drain.
    ///
    /// # Errors
    /// 503 while it does.
    pub fn check_draining(&self) -> Result<(), ApiError> {
        if self.draining.load(Ordering::Relaxed) {
            return Err(ApiError::unavailable("The server is shutting down.", DRAIN_RETRY_S));
        }
        Ok(())
    }

    /// Checks that requests may wait for a lost engine. They wait like the active answers, and as
    /// long: the engine's process returns within seconds, and an operator restarts lost stages.
    fn check_outage(&self) -> Result<(), ApiError> {
        match self.watch.as_ref().and_then(EngineWatch::outage) {
            Some(outage) if outage.is_given_up => Err(ApiError::engine_away(&outage.why)),
            _ => Ok(()),
        }
    }
}
