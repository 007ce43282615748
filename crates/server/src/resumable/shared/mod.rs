//! Resumable answers of several replicas, in the store that these share ([`crate::store::shared`]).
//!
//! | part | does |
//! | --- | --- |
//! | [`logs`] | all logs that this replica shares |
//! | [`epochs`] | the owners that a log has had, and where each began |
//! | [`state`] | what an answer's task and the store tell each other |
//! | [`slot`] | what waits to be written of one answer's log |
//! | [`writer`] | writes what is due of all logs with one command |
//! | [`follower`] | reads what other replicas write, for each [`followed`] log |
//! | [`lookup`] | finds, stops and loads another replica's answer |
//! | [`kept_request`] | an answer's request, for another owner |
//! | [`takeover`] | generates the answer of a replica that has ended once more |
//! | [`reply`] | decodes what the store says |
//!
//! The replica that generates an answer owns it, and only it appends to the answer's log in the
//! store: a fence, a number that grows with each owner, refuses one that was asleep while another
//! took over. At any other replica the answer is a *mirror*: a task like its owner's, whose log
//! comes from the store in place of an engine. So it has the same offsets, and every transport
//! serves it.

pub mod epochs;
pub mod followed;
pub mod follower;
pub mod kept_request;
pub mod logs;
pub mod lookup;
pub mod reply;
pub mod slot;
pub mod state;
pub mod takeover;
pub mod writer;

use std::sync::Arc;
use std::time::Duration;

use crate::store::shared::connection::SharedConnection;
use logs::SharedLogs;

/// Shares logs by `connection`; those of answers that have ended are kept for `ended`.
pub fn start(connection: SharedConnection, ended: Duration) -> Arc<SharedLogs> {
    let logs = Arc::new(SharedLogs::new(connection, ended));
    tokio::spawn(logs.clone().keep_written());
    tokio::spawn(logs.clone().keep_shelved());
    tokio::spawn(logs.clone().keep_followed());
    logs
}
