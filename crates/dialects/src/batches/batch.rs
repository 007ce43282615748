//! A batch of `/v1/batches`: the request that creates it, its object, and its states.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use loquent_serving::api::fields::Fields;
use loquent_serving::api::parameter_table::{Parameter, ignored, sift, supported};
use loquent_serving::api::stored_chat::parse_metadata;
use loquent_serving::error::{ApiError, quoted};

/// Time in which a batch must be complete: the only `completion_window`.
const WINDOW_S: u64 = 24 * 60 * 60;

/// Support status of each parameter of `POST /v1/batches`.
pub const PARAMETERS: &[Parameter] = &[
    supported("input_file_id", "a file with the purpose `batch`"),
    supported(
        "endpoint",
        "`/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` or `/v1/responses`",
    ),
    supported("completion_window", "`24h`"),
    supported("metadata", "at most 16 pairs"),
    ignored("output_expires_after", "the output is kept as long as `--store-ttl-s` says"),
];

/// Endpoint to which all requests of a batch go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchEndpoint {
    /// Chat completions.
    #[serde(rename = "/v1/chat/completions")]
    Chat,
    /// Completions of text.
    #[serde(rename = "/v1/completions")]
    Text,
    /// Embeddings.
    #[serde(rename = "/v1/embeddings")]
    Embeddings,
    /// Responses.
    #[serde(rename = "/v1/responses")]
    Responses,
}

impl BatchEndpoint {
    /// Returns the endpoint's path.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Text => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Responses => "/v1/responses",
        }
    }

    fn of_path(path: &str) -> Option<Self> {
        let all = [Self::Chat, Self::Text, Self::Embeddings, Self::Responses];
        all.into_iter().find(|one| one.path() == path)
    }
}

/// A valid request for a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewBatch {
    /// The file with its requests.
    pub input_file_id: String,
    /// Their endpoint.
    pub endpoint: BatchEndpoint,
    /// The client's own pairs.
    pub metadata: Value,
    /// Names of parameters without effect.
    pub ignored: Vec<String>,
}

impl NewBatch {
    /// Reads a request.
    ///
    /// # Errors
    /// 400 with the name of the first invalid parameter.
    pub fn read(mut fields: Fields) -> Result<Self, ApiError> {
        let ignored = sift(&mut fields, PARAMETERS)?;
        let required = |fields: &mut Fields, name: &str| {
            let value = fields.string(name)?;
            value.ok_or_else(|| fields.error(name, "is required."))
        };
        let input_file_id = required(&mut fields, "input_file_id")?;
        let path = required(&mut fields, "endpoint")?;
        let endpoint = BatchEndpoint::of_path(&path).ok_or_else(|| {
            fields.error("endpoint", format!("cannot be '{}' in a batch.", quoted(&path)))
        })?;
        if required(&mut fields, "completion_window")? != "24h" {
            return Err(fields.error("completion_window", "must be '24h'."));
        }
        let metadata = parse_metadata(&mut fields)?;
        Ok(Self { input_file_id, endpoint, metadata, ignored })
    }
}

/// State of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchStatus {
    /// Its input waits to be checked.
    Validating,
    /// Its input was refused.
    Failed,
    /// Its requests are answered.
    InProgress,
    /// Its output is written.
    Finalizing,
    /// All requests have an answer or an error.
    Completed,
    /// The time ran out; what was answered by then is in the output.
    Expired,
    /// Its client has cancelled it, and what was answered is being written.
    Cancelling,
    /// Cancelled; what was answered by then is in the output.
    Cancelled,
}

impl BatchStatus {
    /// Returns true for a state that never changes again.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }

    const fn may_follow(self, before: Self) -> bool {
        match before {
            Self::Validating => {
                matches!(self, Self::InProgress | Self::Failed | Self::Expired | Self::Cancelling)
            }
            Self::InProgress => {
                matches!(self, Self::Finalizing | Self::Failed | Self::Expired | Self::Cancelling)
            }
            Self::Finalizing => matches!(self, Self::Completed),
            Self::Cancelling => matches!(self, Self::Cancelled),
            Self::Failed | Self::Completed | Self::Expired | Self::Cancelled => false,
        }
    }
}

/// An error in a batch's input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineError {
    /// Kind of the error.
    pub code: String,
    /// Number of the line, from 1.
    pub line: Option<u64>,
    /// Message for people.
    pub message: String,
    /// Member of the line that is wrong.
    pub param: Option<String>,
}

impl LineError {
    /// Returns an error of the whole file.
    pub fn of_file(code: &str, message: String) -> Self {
        Self { code: code.into(), line: None, message, param: None }
    }
}

/// A list of errors, in OpenAI's form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineErrors {
    object: String,
    data: Vec<LineError>,
}

/// Numbers of a batch's requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// All requests.
    pub total: usize,
    /// Requests with an answer.
    pub completed: usize,
    /// Requests with an error.
    pub failed: usize,
}

/// A batch, as the API shows it and as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestBatch {
    /// Id, from the server.
    pub id: String,
    object: String,
    /// Endpoint of its requests.
    pub endpoint: BatchEndpoint,
    errors: Option<LineErrors>,
    /// The file with its requests.
    pub input_file_id: String,
    completion_window: String,
    /// State.
    pub status: BatchStatus,
    /// The file with the answers, once written.
    pub output_file_id: Option<String>,
    /// The file with the errors, once written.
    pub error_file_id: Option<String>,
    /// Creation time, Unix time in seconds.
    pub created_at: u64,
    in_progress_at: Option<u64>,
    /// Time by which it must be complete.
    pub expires_at: u64,
    finalizing_at: Option<u64>,
    completed_at: Option<u64>,
    failed_at: Option<u64>,
    expired_at: Option<u64>,
    cancelling_at: Option<u64>,
    cancelled_at: Option<u64>,
    /// Numbers of its requests.
    pub request_counts: RequestCounts,
    metadata: Value,
}

impl RequestBatch {
    /// Creates the batch `id` at `now_s`.
    pub fn new(id: String, asked: NewBatch, now_s: u64) -> Self {
        Self {
            id,
            object: "batch".into(),
            endpoint: asked.endpoint,
            errors: None,
            input_file_id: asked.input_file_id,
            completion_window: "24h".into(),
            status: BatchStatus::Validating,
            output_file_id: None,
            error_file_id: None,
            created_at: now_s,
            in_progress_at: None,
            expires_at: now_s + WINDOW_S,
            finalizing_at: None,
            completed_at: None,
            failed_at: None,
            expired_at: None,
            cancelling_at: None,
            cancelled_at: None,
            request_counts: RequestCounts::default(),
            metadata: asked.metadata,
        }
    }

    /// Moves the batch to the state `next` at `now_s`.
    ///
    /// # Panics
    /// If that state cannot follow.
    pub fn enter(&mut self, next: BatchStatus, now_s: u64) {
        assert!(next.may_follow(self.status), "{:?} after {:?}", next, self.status);
        self.status = next;
        let at = match next {
            BatchStatus::Validating => return,
            BatchStatus::Failed => &mut self.failed_at,
            BatchStatus::InProgress => &mut self.in_progress_at,
            BatchStatus::Finalizing => &mut self.finalizing_at,
            BatchStatus::Completed => &mut self.completed_at,
            BatchStatus::Expired => &mut self.expired_at,
            BatchStatus::Cancelling => &mut self.cancelling_at,
            BatchStatus::Cancelled => &mut self.cancelled_at,
        };
        *at = Some(now_s);
    }

    /// Ends the batch at `now_s` because of `errors` in its input.
    pub fn fail(&mut self, errors: Vec<LineError>, now_s: u64) {
        self.errors = Some(LineErrors { object: "list".into(), data: errors });
        self.enter(BatchStatus::Failed, now_s);
    }

    /// Writes the object.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("text and numbers are JSON")
    }

    /// Reads a stored batch; `None` if the bytes are invalid.
    pub fn decode(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<NewBatch, ApiError> {
        NewBatch::read(Fields::parse(body.to_string().as_bytes()).unwrap())
    }

    fn asked() -> Value {
        json!({"input_file_id": "file-1", "endpoint": "/v1/embeddings", "completion_window": "24h"})
    }

    #[test]
    fn a_request_names_its_file_its_endpoint_and_the_window() {
        assert_eq!(read(asked()).unwrap().endpoint, BatchEndpoint::Embeddings);
        for name in ["input_file_id", "endpoint", "completion_window"] {
            let mut body = asked();
            body[name] = Value::Null;
            let error = read(body.clone()).unwrap_err();
            assert_eq!(error.json()["error"]["param"], name);
            body[name] = "other".into();
            assert_eq!(read(body).is_ok(), name == "input_file_id");
        }
    }

    #[test]
    fn each_state_has_its_time_and_final_ones_stay() {
        let mut batch = RequestBatch::new("batch_1".into(), read(asked()).unwrap(), 100);
        batch.enter(BatchStatus::InProgress, 101);
        batch.enter(BatchStatus::Finalizing, 102);
        batch.enter(BatchStatus::Completed, 103);
        let object: Value = serde_json::from_str(&batch.json()).unwrap();
        let times = ["created_at", "in_progress_at", "finalizing_at", "completed_at"];
        assert_eq!(times.map(|name| object[name].as_u64()), [100, 101, 102, 103].map(Some));
        assert_eq!((&object["status"], &object["failed_at"]), (&json!("completed"), &Value::Null));
        assert_eq!(object["expires_at"], 100 + 24 * 60 * 60);
        assert_eq!(RequestBatch::decode(batch.json().as_bytes()), Some(batch));
        use BatchStatus::*;
        for end in [Failed, Completed, Expired, Cancelled] {
            for next in [Validating, InProgress, Finalizing, Cancelling, Completed] {
                assert!(end.is_final() && !next.may_follow(end));
            }
        }
    }
}
