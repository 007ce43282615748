//! Shortens JSON that is too long for a log record, and marks the omission.
//!
//! JSON cannot be split among records as text can. JSON that does not fit in one is an upstream's
//! extension or a long answer's timings, and failing the answer would be worse than leaving it out.
//! The largest members are omitted and named, so that a reader knows.

use loquent_proto::Delta;
use serde_json::{Map, Value, json};

use loquent_serving::error::quoted;
use loquent_serving::records::MAX_JSON_BYTES;

/// Member that names the omitted ones.
const OMITTED: &str = "loquent_omitted";
/// Maximum members omitted one by one; each costs a pass over all of the JSON.
const MAX_ROUNDS: usize = 8;

/// Returns `delta`, shortened if necessary to fit in a record.
pub fn fit_record(mut delta: Delta) -> Delta {
    if let Delta::Logprobs { json, .. } | Delta::Other { json, .. } = &mut delta
        && json.len() > MAX_JSON_BYTES
    {
        tracing::debug!(bytes = json.len(), "JSON is too long for a record");
        *json = shortened(json);
    }
    delta
}

fn shortened(json: &str) -> String {
    let mut members: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
    let mut omitted: Vec<String> = Vec::new();
    while omitted.len() < MAX_ROUNDS {
        omitted.extend(remove_largest(&mut members));
        members.insert(OMITTED.into(), json!(omitted));
        let text = Value::Object(members.clone()).to_string();
        if text.len() <= MAX_JSON_BYTES {
            return text;
        }
        members.shift_remove(OMITTED);
    }
    json!({OMITTED: omitted}).to_string()
}

/// Removes the largest member and returns its path. From an object or a single choice, removes only
/// the largest member, recursively.
fn remove_largest(members: &mut Map<String, Value>) -> Option<String> {
    let sizes = members.iter().map(|(name, value)| (value.to_string().len(), name));
    let name = sizes.max_by_key(|(size, _)| *size)?.1.clone();
    let inner = match members.get_mut(&name)? {
        Value::Object(inner) => Some(inner),
        Value::Array(items) if items.len() == 1 => items[0].as_object_mut(),
        _ => None,
    };
    let short = quoted(&name).into_owned();
    match inner.and_then(remove_largest) {
        Some(path) => Some(format!("{short}.{path}")),
        None => {
            members.shift_remove(&name);
            Some(short)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(json: Value) -> Value {
        let delta = fit_record(Delta::Other { choice: 0, json: json.to_string() });
        let Delta::Other { json, .. } = delta else { panic!("another record") };
        assert!(json.len() <= MAX_JSON_BYTES, "{}", json.len());
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn what_fits_stays_as_it_is() {
        let short = json!({"timings": {"ms": 4}});
        assert_eq!(fitted(short.clone()), short);
    }

    #[test]
    fn long_timings_lose_their_lists_and_say_so() {
        let list: Vec<u64> = (0..5000).collect();
        let timings =
            json!({"request_id": "r", "emit_us": list, "flush_us": [list], "queue_us": 3});
        assert_eq!(
            fitted(json!({"loquent_timings": timings})),
            json!({
                "loquent_timings": {"request_id": "r", "queue_us": 3},
                OMITTED: ["loquent_timings.flush_us", "loquent_timings.emit_us"],
            })
        );
    }

    #[test]
    fn an_extension_of_a_choice_is_named_by_its_path() {
        let long = "x".repeat(MAX_JSON_BYTES);
        let chunk = json!({"choices": [{"index": 0, "delta": {"image": long, "mood": "good"}}]});
        assert_eq!(
            fitted(chunk),
            json!({
                "choices": [{"index": 0, "delta": {"mood": "good"}}],
                OMITTED: ["choices.delta.image"],
            })
        );
    }

    #[test]
    fn any_number_of_members_fits_in_the_end() {
        let many = (0..2000).map(|i| (format!("{i:0200}"), json!("y".repeat(100)))).collect();
        let left = fitted(Value::Object(many));
        assert_eq!(left[OMITTED].as_array().unwrap().len(), MAX_ROUNDS);
    }
}
