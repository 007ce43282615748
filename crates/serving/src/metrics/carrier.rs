//! Transports by which streamed answers reach their readers.

use std::fmt;

/// Transport of a stream from the server to its reader.
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
    /// All carriers, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Http, Self::Quic, Self::WebTransport];

    /// Returns the carrier's name in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Quic => "quic",
            Self::WebTransport => "webtransport",
        }
    }
}

/// Set of carriers of one answer: several if a reader resumed it over another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Carriers(u8);

impl Carriers {
    /// Adds a carrier.
    pub fn note(&mut self, carrier: StreamCarrier) {
        self.0 |= 1 << carrier as u8;
    }
}

impl fmt::Display for Carriers {
    /// Writes the names separated by plus signs. An answer without a stream counts as HTTP.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = StreamCarrier::ALL.into_iter().filter(|one| self.0 & (1 << *one as u8) != 0);
        for (at, carrier) in used.enumerate() {
            let between = if at > 0 { "+" } else { "" };
            write!(formatter, "{between}{}", carrier.label())?;
        }
        if self.0 == 0 { formatter.write_str(StreamCarrier::Http.label()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answers_carriers_are_named_once() {
        let mut carriers = Carriers::default();
        assert_eq!(carriers.to_string(), "http");
        carriers.note(StreamCarrier::Quic);
        assert_eq!(carriers.to_string(), "quic");
        carriers.note(StreamCarrier::Http);
        carriers.note(StreamCarrier::Quic);
        assert_eq!(carriers.to_string(), "http+quic");
    }
}
