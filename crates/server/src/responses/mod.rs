//! Background and stored responses of the Responses API: a response that is generated without a
//! reader, its log of records, and what of it is stored.

pub mod generation;
pub mod live;
pub mod record_log;
pub mod stored;
pub mod storing;
pub mod stream;
