//! The lines of a batch: one request each in the input, and one answer each in the output.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::batch::{BatchEndpoint, LineError};
use loquent_serving::api::fields::Fields;
use loquent_serving::api::json::count_values;

/// Maximum number of requests in a batch, as at OpenAI.
pub const MAX_LINES: usize = 50_000;
/// Maximum number of errors that a batch lists.
const MAX_ERRORS: usize = 100;
/// Maximum bytes of a `custom_id`.
const MAX_ID_BYTES: usize = 512;

/// The part of a line that is checked before the batch runs.
#[derive(Deserialize)]
struct LineHead<'a> {
    #[serde(borrow)]
    custom_id: Cow<'a, str>,
    method: Cow<'a, str>,
    url: Cow<'a, str>,
    body: BodyHead,
}

/// Members of a body that would make its answer something else than one JSON object.
#[derive(Deserialize)]
struct BodyHead {
    stream: Option<bool>,
    background: Option<bool>,
    resumable: Option<bool>,
}

/// A request of a batch.
#[derive(Deserialize)]
pub struct BatchRequest {
    /// Id, from the client.
    pub custom_id: String,
    /// Body of the request.
    pub body: Map<String, Value>,
}

impl BatchRequest {
    /// Parses a line that [`find_lines`] has found.
    pub fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

/// Finds the requests in the input of a batch for `endpoint`, as places in it.
///
/// # Errors
/// What is wrong with the input, with line numbers from 1.
pub fn find_lines(
    input: &[u8],
    endpoint: BatchEndpoint,
) -> Result<Vec<Range<usize>>, Vec<LineError>> {
    let (mut lines, mut errors, mut ids) = (Vec::new(), Vec::new(), HashSet::new());
    let mut begin = 0;
    for (at, line) in input.split(|byte| *byte == b'\n').enumerate() {
        let place = begin..begin + line.len();
        begin = place.end + 1;
        if line.trim_ascii().is_empty() {
            continue;
        }
        if lines.len() == MAX_LINES {
            let message = format!("A batch has at most {MAX_LINES} requests.");
            return Err(vec![LineError::of_file("too_many_tasks", message)]);
        }
        if let Err((code, param, message)) = check(line, endpoint, &mut ids) {
            let line = Some(at as u64 + 1);
            errors.push(LineError { code: code.into(), line, message, param });
            // More would help nobody.
            if errors.len() == MAX_ERRORS {
                break;
            }
        }
        lines.push(place);
    }
    if lines.is_empty() {
        errors.push(LineError::of_file("empty_file", "The input file has no requests.".into()));
    }
    if errors.is_empty() { Ok(lines) } else { Err(errors) }
}

/// Code, parameter and message of an error.
type Wrong = (&'static str, Option<String>, String);

fn check<'a>(
    line: &'a [u8],
    endpoint: BatchEndpoint,
    ids: &mut HashSet<Cow<'a, str>>,
) -> Result<(), Wrong> {
    let wrong = |code, param: &str, message: &str| Err((code, Some(param.into()), message.into()));
    if Fields::check_values(count_values(line)).is_err() {
        return Err(("invalid_json_line", None, "This line has too many values.".into()));
    }
    let head: LineHead<'_> = serde_json::from_slice(line).map_err(|error| {
        ("invalid_json_line", None, format!("This line is not a request in JSON: {error}."))
    })?;
    // Structs are read from arrays too; requests are objects, and sent again as such.
    if BatchRequest::parse(line).is_none() {
        return Err(("invalid_json_line", None, "The line and its body must be objects.".into()));
    }
    if head.method != "POST" {
        return wrong("invalid_method", "method", "The method must be POST.");
    }
    if head.url != endpoint.path() {
        let message = format!("The URL must be the batch's endpoint, {}.", endpoint.path());
        return Err(("mismatched_endpoint", Some("url".into()), message));
    }
    let BodyHead { stream, background, resumable } = head.body;
    if [stream, background, resumable].contains(&Some(true)) {
        let message = "A batch has whole answers: leave out stream, background and resumable.";
        return wrong("invalid_request", "body", message);
    }
    if !(1..=MAX_ID_BYTES).contains(&head.custom_id.len()) {
        return wrong("invalid_custom_id", "custom_id", "A custom_id has 1 to 512 bytes.");
    }
    match ids.insert(head.custom_id) {
        true => Ok(()),
        false => wrong("duplicate_custom_id", "custom_id", "Another line has this custom_id."),
    }
}

/// Writes the line of an answer, with the response's `body` as it came.
pub fn answer_line(custom_id: &str, request_id: &str, status: u16, body: Value) -> Vec<u8> {
    let response = json!({"status_code": status, "request_id": request_id, "body": body});
    line(request_id, custom_id, &response, &Value::Null)
}

/// Writes the line of a request that has no answer.
pub fn error_line(custom_id: &str, request_id: &str, code: &str, message: &str) -> Vec<u8> {
    let error = json!({"code": code, "message": message});
    line(request_id, custom_id, &Value::Null, &error)
}

fn line(request_id: &str, custom_id: &str, response: &Value, error: &Value) -> Vec<u8> {
    let id = format!("batch_req_{}", request_id.trim_start_matches("req_"));
    let line = json!({"id": id, "custom_id": custom_id, "response": response, "error": error});
    let mut bytes = line.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: &str) -> String {
        format!(
            r#"{{"custom_id":"{id}","method":"POST","url":"/v1/embeddings","body":{{"input":"a"}}}}"#
        )
    }

    fn errors(input: &str) -> Vec<(String, Option<u64>)> {
        let errors = find_lines(input.as_bytes(), BatchEndpoint::Embeddings).unwrap_err();
        errors.into_iter().map(|error| (error.code, error.line)).collect()
    }

    #[test]
    fn lines_are_found_with_gaps_and_without_a_last_line_break() {
        let input = format!("{}\r\n\n{}", request("a"), request("ü"));
        let lines = find_lines(input.as_bytes(), BatchEndpoint::Embeddings).unwrap();
        let read = |place: &Range<usize>| BatchRequest::parse(&input.as_bytes()[place.clone()]);
        let ids: Vec<_> = lines.iter().map(|one| read(one).unwrap().custom_id).collect();
        assert_eq!(ids, ["a", "ü"]);
        assert_eq!(read(&lines[0]).unwrap().body["input"], "a");
    }

    #[test]
    fn errors_have_the_numbers_of_their_lines() {
        let twice = format!("{}\n\n{}\n", request("a"), request("a"));
        assert_eq!(errors(&twice), [("duplicate_custom_id".into(), Some(3))]);
        let wrong = [
            ("not json".to_owned(), "invalid_json_line"),
            ("[]".to_owned(), "invalid_json_line"),
            (request("a").replace("POST", "GET"), "invalid_method"),
            (request("a").replace("/v1/embeddings", "/v1/completions"), "mismatched_endpoint"),
            (request("a").replace(r#""input""#, r#""stream":true,"input""#), "invalid_request"),
            (request(""), "invalid_custom_id"),
            (request("a").replace(r#"{"input":"a"}"#, "7"), "invalid_json_line"),
            (request("a").replace(r#"{"input":"a"}"#, "[null,null,null]"), "invalid_json_line"),
        ];
        for (line, code) in wrong {
            let input = format!("{}\n{line}", request("first"));
            assert_eq!(errors(&input), [(code.into(), Some(2))], "{line}");
        }
        assert_eq!(errors("\n \n"), [("empty_file".into(), None)]);
        assert_eq!(errors(&"x\n".repeat(1000)).len(), MAX_ERRORS);
        let many = (0..=MAX_LINES).map(|at| request(&at.to_string()) + "\n").collect::<String>();
        assert_eq!(errors(&many), [("too_many_tasks".into(), None)]);
    }

    #[test]
    fn output_lines_have_openais_form() {
        let read = |line: Vec<u8>| serde_json::from_slice::<Value>(&line).unwrap();
        let answer = read(answer_line("a", "r", 200, json!({"x": 1})));
        assert_eq!((&answer["custom_id"], &answer["error"]), (&json!("a"), &Value::Null));
        let response = json!({"status_code": 200, "request_id": "r", "body": {"x": 1}});
        assert_eq!((&answer["id"], &answer["response"]), (&json!("batch_req_r"), &response));
        let error = read(error_line("b", "s", "batch_expired", "Too late."));
        assert_eq!(
            (&error["response"], &error["error"]["code"]),
            (&Value::Null, &json!("batch_expired"))
        );
    }
}
