//! A store shared by the replicas of a server: Redis or Valkey, over its own protocol.
//!
//! | module | purpose |
//! | --- | --- |
//! | `address` | address of the store, shown without its password |
//! | [`connection`] | calls with timeouts, the store's health, and this replica's lease |
//! | `socket` | the socket, which bounds what the store sends |
//! | [`reply`] | bounded decoding of replies |
//! | [`objects`] | stored objects |
//!
//! Every key begins with a prefix that carries the format version, so that incompatible versions
//! use separate keys. All changes that must be atomic are one script. The store must therefore be a
//! single server, optionally with replicas of its own, and not a cluster that shards keys.

pub mod connection;
pub mod objects;
pub mod reply;
mod socket;
