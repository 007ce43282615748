//! A model that a request uses.

use std::ops::Deref;
use std::sync::Arc;

use crate::service::Service;

/// What a request holds for as long as it uses a model; the model stays in memory until then.
pub type HeldModel = Arc<dyn Send + Sync>;

/// A model that a request uses, for as long as it does.
#[derive(Clone)]
pub struct ModelUse {
    service: Arc<Service>,
    held: Option<HeldModel>,
}

impl ModelUse {
    /// A use of a model that is always there.
    pub fn of(service: Arc<Service>) -> Self {
        Self { service, held: None }
    }

    /// A use of a model that may go once `held` is dropped.
    pub fn holding(service: Arc<Service>, held: HeldModel) -> Self {
        Self { service, held: Some(held) }
    }

    /// What keeps the model in memory; `None` where it is always there.
    pub fn held(&self) -> Option<HeldModel> {
        self.held.clone()
    }
}

impl Deref for ModelUse {
    type Target = Arc<Service>;

    fn deref(&self) -> &Arc<Service> {
        &self.service
    }
}
