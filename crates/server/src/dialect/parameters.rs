//! What becomes of each parameter of an API: the lowering of requests reads these tables, and
//! `docs/compatibility.md` is made from them.

/// What becomes of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It does what its API says.
    Supported,
    /// It is accepted without effect, and named in `x-loquent-ignored-parameters`.
    Ignored,
    /// A request with it gets 400: its answer would not be what was asked for.
    Refused,
}

/// A parameter of a request.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// Its name in the JSON.
    pub name: &'static str,
    /// What becomes of it.
    pub support: Support,
    /// Bounds, or why it is refused; may be empty.
    pub note: &'static str,
}

/// A parameter with full support.
pub const fn supported(name: &'static str, note: &'static str) -> Parameter {
    Parameter { name, support: Support::Supported, note }
}

/// A parameter without effect.
pub const fn ignored(name: &'static str, note: &'static str) -> Parameter {
    Parameter { name, support: Support::Ignored, note }
}

/// A parameter that is refused.
pub const fn refused(name: &'static str, note: &'static str) -> Parameter {
    Parameter { name, support: Support::Refused, note }
}
