//! HTTP headers with which client and server identify an answer (S-4.9, S-5.1), and the hop-by-hop
//! headers.

/// Response: the answer's id.
pub const ID_HEADER: &str = "x-loquent-stream-id";
/// Answer's token: in the response, and in requests for more of the answer.
pub const TOKEN_HEADER: &str = "x-loquent-stream-token";
/// Request: key by which a server recognises a repeated request (S-4.9).
pub const REPEAT_HEADER: &str = "idempotency-key";
/// Response: the names of the request's parameters that had no effect.
pub const IGNORED_HEADER: &str = "x-loquent-ignored-parameters";
/// Response: why the answer may be worse than its reader expects.
pub const WARNING_HEADER: &str = "x-loquent-warning";

/// Headers that apply to a single connection (RFC 9110, section 7.6.1), or that each hop sets
/// itself.
pub const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
