//! `loquent link`: real packets over the simulator's link.
//!
//! The [`emulator`] decides the fate of each packet, by the same model and the same draws as the
//! simulator; [`relay`] is the thread that carries packets through it in real time. Packets come
//! from a pair of TUN devices in two network namespaces ([`tun`], needs root) or from UDP sockets
//! ([`udp`], needs no privilege). The namespaces ([`netns`]) have no names: the kernel removes them
//! and their contents when this program ends, however it ends, so nothing stale is left.

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

/// Errors of setting up or running a link.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Options contradict each other or are out of range.
    #[error("{0}")]
    Options(String),
    /// The namespaces or TUN devices cannot be created.
    #[error(
        "{what}: {source}; namespaces and TUN devices need root and /dev/net/tun (in a container \
         CAP_NET_ADMIN and CAP_SYS_ADMIN too). Without them --udp-listen and --udp-to relay UDP"
    )]
    Privilege {
        /// The attempted operation.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused to configure the network of a namespace.
    #[error("{what}: {reason}")]
    Network {
        /// The attempted operation.
        what: &'static str,
        /// The kernel's error.
        reason: String,
    },
    /// A socket, a file or a command failed.
    #[error("{what}: {source}")]
    Io {
        /// The attempted operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl LinkError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
