//! A store that replicas of a server share: Redis or Valkey, reached over its own protocol.
//!
//! | part | does |
//! | --- | --- |
//! | [`address`] | where it is, without showing the password |
//! | [`connection`] | calls with bounds, whether the store works, and that this replica lives |
//! | [`reply`] | reads what it returns |
//! | [`objects`] | stored objects |
//!
//! Every key begins with a prefix that carries the number of the format, so that versions which do
//! not understand each other do not meet. All that must hold together is one script, which the
//! store runs as a whole; so it has to be one server (with replicas of its own as one likes), and
//! not a cluster that spreads keys.

pub mod address;
pub mod connection;
pub mod objects;
pub mod reply;
#[cfg(test)]
pub mod test_server;
