//! A model of the scripts by which replicas share answers.

mod calls;
mod calm;
mod explore;
mod fingerprint;
mod interpreter;
mod keyspace;
mod log_text;
mod model;
mod planted;
mod scopes;
mod script_store;
mod scripts;
mod steps;
mod store;
mod world;

pub use explore::{CounterExample, Exploration, ExploredScope, explore};
pub use keyspace::{Keyspace, RedisReply};
pub use model::CallerRules;
pub use planted::{PLANTED, PlantedFault};
pub use scopes::{SCOPES, deep_scopes};
pub use script_store::ScriptStore;
pub use scripts::{SCRIPTS, ScriptChange, ScriptName, ScriptTexts};
pub use world::FaultBudget;
