//! How streamed answers reach their readers.

/// What carries a stream from the server to its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamCarrier {
    /// Server-sent events, and other bodies of HTTP responses.
    Http,
    /// Datagrams of a QUIC connection.
    Quic,
    /// Datagrams of a browser's WebTransport session.
    WebTransport,
}

impl StreamCarrier {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Http, Self::Quic, Self::WebTransport];

    /// Its name in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Quic => "quic",
            Self::WebTransport => "webtransport",
        }
    }
}
