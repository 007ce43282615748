//! A world of replicas that share a store, in virtual time.
//!
//! Three replicas are the product's own code: `loquent-resumable` with its tasks, and
//! `loquent-store` with its client. The store behind them is simulated. It speaks Redis's protocol
//! over connections in memory, and runs the scripts' files as they are. In a model's place is a
//! service whose texts depend on the question alone. A seed decides questions, readers, faults and
//! every random number, and one thread runs everything in turns: the same seed gives the same
//! history (docs/world.md).

mod background;
mod chats;
mod datagrams;
mod deletion;
mod dice;
mod glue;
mod history;
mod hosts;
mod laws;
mod news;
mod pipe;
mod plan;
mod planted;
mod reader;
mod replica;
mod requests;
mod resp;
mod responses;
mod service;
mod store;
mod stored_chats;
mod world;

pub use glue::WorldPlanting;
pub use history::WorldHistory;
pub use planted::{PLANTED, PlantedChange};
pub use world::{WorldReport, run};
