//! Resumable answers of several replicas, in the store that these share
//! ([`loquent_store::shared`]).
//!
//! | module | purpose |
//! | --- | --- |
//! | [`logs`] | all logs that this replica shares |
//! | [`epochs`] | the owners that a log has had, and where each began |
//! | [`state`] | messages between an answer's task and the store |
//! | [`slot`] | the bytes of one answer's log waiting to be written |
//! | [`writer`] | writes the due pieces of all logs with one command |
//! | [`follower`] | reads other replicas' writes, for each [`followed`] log |
//! | [`lookup`] | finds, stops and loads another replica's answer |
//! | [`kept_request`] | an answer's request, for another owner |
//! | [`takeover`] | generates the answer of a replica that has ended again |
//! | [`offers`] | the models with which each replica can continue answers |
//! | [`reply`] | decodes the store's replies |
//!
//! The replica that generates an answer owns it, and only the owner appends to the answer's log in
//! the store. A fence, a number that grows with each owner, rejects an owner that was suspended
//! while another took over. At any other replica the answer is a *mirror*: a task like the owner's,
//! whose log comes from the store instead of an engine. A mirror's log therefore has the same
//! offsets, and every transport can serve it.

pub mod epochs;
pub mod followed;
pub mod follower;
pub mod kept_request;
pub mod logs;
pub mod lookup;
pub mod offers;
pub mod reply;
pub mod slot;
pub mod state;
pub mod takeover;
pub mod writer;

use std::sync::Arc;
use std::time::Duration;

use logs::SharedLogs;
use loquent_store::shared::connection::SharedConnection;

/// Starts sharing logs over `connection`. The logs of ended answers are kept for `ended`.
pub fn start(connection: SharedConnection, ended: Duration) -> Arc<SharedLogs> {
    let logs = Arc::new(SharedLogs::new(connection, ended));
    tokio::spawn(logs.clone().keep_written());
    tokio::spawn(logs.clone().keep_shelved(writer::TOUCH_ENDED_EVERY));
    tokio::spawn(logs.clone().keep_followed());
    logs
}
