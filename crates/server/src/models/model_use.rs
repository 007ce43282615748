//! A request's use of a model.

use std::ops::Deref;
use std::sync::Arc;

use crate::service::Service;

/// Keeps a model in memory until dropped.
pub type ModelGuard = Arc<dyn Send + Sync>;

/// A request's use of a model, which stays in memory meanwhile.
#[derive(Clone)]
pub struct ModelUse {
    service: Arc<Service>,
    held: Option<ModelGuard>,
}

impl ModelUse {
    /// Creates a use of a model that is never unloaded.
    pub fn of(service: Arc<Service>) -> Self {
        Self { service, held: None }
    }

    /// Creates a use of a model that may be unloaded once `held` is dropped.
    pub fn holding(service: Arc<Service>, held: ModelGuard) -> Self {
        Self { service, held: Some(held) }
    }

    /// Returns the handle that keeps the model in memory; `None` if it is never unloaded.
    pub fn held(&self) -> Option<ModelGuard> {
        self.held.clone()
    }
}

impl Deref for ModelUse {
    type Target = Arc<Service>;

    fn deref(&self) -> &Arc<Service> {
        &self.service
    }
}
