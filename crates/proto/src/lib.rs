//! Sans-IO delivery protocol: frames, delta log, coalescer, sender, receiver.
//!
//! Nothing here accesses a clock, a socket or a thread: time ([`Micros`]), randomness and bytes are
//! arguments. `spec/delivery.md` defines the wire format; its rules are cited as `D-n.m` where they
//! are implemented.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod answer_handle;
pub mod assembler;
pub mod backlog;
pub mod chunk;
pub mod coalesce;
pub mod delta;
pub mod error;
pub mod fallback;
pub mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod grease;
pub mod headers;
pub mod hex;
pub mod json;
pub mod link_time;
pub mod log;
pub mod message;
pub mod obfuscation;
pub mod pacing;
pub mod path;
pub mod path_choice;
pub mod playout;
pub mod position;
pub mod printable;
pub mod progress;
pub mod receiver;
pub mod replay;
pub mod sender;
pub mod sse;
pub mod time;
pub mod token_bucket;
pub mod token_lists;
pub mod url_password;
pub mod wire;

pub use answer_handle::AnswerHandle;
pub use assembler::{Assembler, AssemblerLimits};
pub use coalesce::{Coalescer, StreamInterval};
pub use delta::Delta;
pub use error::Error;
pub use fallback::{FallbackEvent, ReliableFallback};
pub use log::Log;
pub use path_choice::{PathChoice, PathMode};
pub use playout::Playout;
pub use position::Position;
pub use progress::Progress;
pub use receiver::{ACK_STEP_BYTES, MAX_PATHS, Receiver, ReceiverConfig, ReceiverEvent};
pub use replay::{Differs, Incomparable, Replay};
pub use sender::{
    AnswerLog, Delivery, ReaderState, Sender, SenderConfig, SenderEvent, SenderState, SentSoFar,
    Transmit,
};
pub use time::Micros;
pub use token_lists::TokenLists;
