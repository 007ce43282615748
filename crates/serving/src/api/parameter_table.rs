//! Tables of each API's parameters and their support status: the translation of requests reads
//! them, and `docs/compatibility.md` is generated from them.

use serde_json::Value;

use crate::api::fields::Fields;
use crate::error::ApiError;

/// Support status of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// Works as its API specifies.
    Supported,
    /// Accepted without effect, and named in `x-loquent-ignored-parameters`.
    Ignored,
    /// Rejected with 400, because the answer would not be the requested one.
    Refused,
}

/// A parameter of a request.
#[derive(Debug, Clone, Copy)]
pub struct Parameter {
    /// Name in the JSON.
    pub name: &'static str,
    /// Support status.
    pub support: Support,
    /// Bounds, or the reason for a refusal; may be empty.
    pub note: &'static str,
}

/// Returns a parameter with full support.
pub const fn supported(name: &'static str, note: &'static str) -> Parameter {
    Parameter { name, support: Support::Supported, note }
}

/// Returns a parameter without effect.
pub const fn ignored(name: &'static str, note: &'static str) -> Parameter {
    Parameter { name, support: Support::Ignored, note }
}

/// Returns a parameter that is refused.
pub const fn refused(name: &'static str, note: &'static str) -> Parameter {
    Parameter { name, support: Support::Refused, note }
}

/// Removes parameters without effect from `fields` and returns their names: those that the table
/// `known` lists as ignored, and those that it does not list.
///
/// # Errors
/// 400 with the name of a parameter that is refused, unless its value is empty.
pub fn sift(fields: &mut Fields, known: &[Parameter]) -> Result<Vec<String>, ApiError> {
    let entry = |name: &str| known.iter().find(|one| one.name == name);
    let names: Vec<String> = fields.map().keys().cloned().collect();
    let mut without_effect = Vec::new();
    for name in names {
        match entry(&name).map(|one| (one.support, one.note)) {
            Some((Support::Supported, _)) => {}
            Some((Support::Refused, why)) => {
                if fields.take(&name).is_some_and(|value| !is_empty(&value)) {
                    return Err(fields.error(&name, format!("is not supported: {why}.")));
                }
            }
            Some((Support::Ignored, _)) | None => {
                if fields.take(&name).is_some() {
                    without_effect.push(name);
                }
            }
        }
    }
    Ok(without_effect)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_kept_named_or_refused() {
        let known = [supported("a", ""), ignored("b", ""), refused("c", "")];
        let sifted = |json: &str| {
            let mut fields = Fields::parse(json.as_bytes()).unwrap();
            let names = sift(&mut fields, &known);
            (names, fields.map().keys().cloned().collect::<Vec<_>>())
        };
        let (names, left) = sifted(r#"{"a": 1, "b": 2, "d": 3, "e": null, "c": []}"#);
        assert_eq!((names.unwrap(), left), (vec!["b".into(), "d".into()], vec!["a".to_owned()]));
        let error = sifted(r#"{"c": [1]}"#).0.unwrap_err();
        assert_eq!(error.json()["error"]["param"], "c");
    }
}
