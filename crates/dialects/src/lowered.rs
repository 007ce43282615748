//! A request of a dialect, as fields of a completion.

use loquent_serving::api::fields::Fields;
use loquent_serving::api::request::Endpoint;

/// A dialect's request, translated to a completion.
pub struct Lowered<T> {
    /// The endpoint to which the fields belong.
    pub endpoint: Endpoint,
    /// The fields of a completion.
    pub fields: Fields,
    /// Names of the dialect's parameters that have no effect.
    pub ignored: Vec<String>,
    /// Data that only the dialect needs for its answer.
    pub kept: T,
}
