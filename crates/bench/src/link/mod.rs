//! `loquent link`: real packets over the simulator's link.
//!
//! The [`emulator`] decides what becomes of a packet, by the same model and the same draws as the
//! simulator; [`relay`] is the thread that carries packets through it in real time. They come from
//! a pair of TUN devices in two network namespaces ([`tun`], needs root) or from UDP sockets
//! ([`udp`], needs nothing). The namespaces ([`netns`]) have no names: the kernel removes
//! them with everything in them when this program ends, however it ends, so nothing stale is left.

pub mod cli;
pub mod emulator;
pub mod forward;
pub mod netns;
pub mod observer;
pub mod options;
pub mod packet_stats;
pub mod realtime;
pub mod relay;
pub mod tun;
pub mod udp;

pub(crate) mod command;

use std::io;

/// Why a link cannot be set up or carried on.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Options contradict each other or are out of range.
    #[error("{0}")]
    Options(String),
    /// The namespaces or TUN devices cannot be had.
    #[error(
        "{what}: {source}; namespaces and TUN devices need root and /dev/net/tun (in a container \
         CAP_NET_ADMIN and CAP_SYS_ADMIN too). Without them --udp-listen and --udp-to relay UDP"
    )]
    Privilege {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused to configure the network of a namespace.
    #[error("{what}: {reason}")]
    Network {
        /// What was tried.
        what: &'static str,
        /// What it said.
        reason: String,
    },
    /// A socket, a file or a command failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl LinkError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
