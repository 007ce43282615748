//! One server of an upstream: requests to it, its model names, and its health check.

use std::time::Duration;

use bytes::Bytes;
use http::header;
use http::{HeaderValue, Method, Request as HttpRequest};
use http_body_util::{BodyExt, Limited};
use loquent_openai::http::{HttpClient, HttpResponse, ResponseBody};
use loquent_openai::{BaseUrl, HttpError};
use serde_json::Value;

use super::models::ListedModels;
use loquent_serving::clock::Clock;
use loquent_serving::error::{ApiError, ServerSign};

/// Maximum size of a list of models.
const MAX_LIST_BYTES: usize = 1 << 20;
/// Time limit for connecting to the upstream: its clients wait meanwhile.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a list of models or a health check.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Reason why a server gave no response.
#[derive(Debug)]
pub enum Unanswered {
    /// The server never received the request.
    Unsent(ApiError),
    /// The server may have received the request, and gave no usable response.
    Unheard(ApiError),
}

impl Unanswered {
    /// Returns the error for a client.
    pub fn into_error(self) -> ApiError {
        match self {
            Self::Unsent(error) | Self::Unheard(error) => error,
        }
    }
}

/// One server of an upstream.
pub struct UpstreamServer {
    client: HttpClient,
    models: ListedModels,
}

impl UpstreamServer {
    /// Creates a client of the server at `base`. Sends nothing yet.
    ///
    /// # Errors
    /// When TLS cannot be used with it, or its name is not valid in a header.
    pub fn new(base: BaseUrl) -> Result<Self, HttpError> {
        let client = HttpClient::new(base, None)?.with_connect_timeout(CONNECT_TIMEOUT);
        Ok(Self { client, models: ListedModels::default() })
    }

    /// Returns the server's host and port.
    pub fn authority(&self) -> &str {
        self.client.base().authority()
    }

    /// Returns the server's host.
    pub fn host(&self) -> &str {
        self.client.base().host()
    }

    /// Returns the server's port.
    pub fn port(&self) -> u16 {
        self.client.base().port()
    }

    /// Sends `request` and waits for the response's head. A redirect is an error: following it
    /// would send the key, or the prompts, to a server that the operator has not named.
    ///
    /// # Errors
    /// [`Unanswered`], with a 502 for the client.
    pub async fn send(
        &self,
        request: HttpRequest<Bytes>,
        silence_limit: Duration,
    ) -> Result<HttpResponse, Unanswered> {
        let Ok(sent) = tokio::time::timeout(silence_limit, self.client.send(request)).await else {
            let silence_s = silence_limit.as_secs();
            let message = format!("The upstream server was silent for {silence_s} s.");
            return Err(Unanswered::Unheard(ApiError::bad_gateway(message)));
        };
        let response = sent.map_err(unanswered)?;
        if response.headers().contains_key(header::LOCATION) && response.status().is_redirection() {
            return Err(Unanswered::Unheard(ApiError::bad_gateway(
                "The upstream server redirects, which is not followed. Start this server with \
                 the --upstream URL that it redirects to.",
            )));
        }
        Ok(response)
    }

    /// Requests the list of models. Returns the response whatever its status.
    async fn ask_for_models(&self, key: Option<&HeaderValue>) -> Result<HttpResponse, HttpError> {
        self.client.send(get("/v1/models", key)).await
    }

    /// Checks that the server responds to a request for its models. Stores the list.
    ///
    /// # Errors
    /// 503 if it does not respond.
    pub async fn check_responds(
        &self,
        clock: Clock,
        key: Option<&HeaderValue>,
    ) -> Result<(), ApiError> {
        let authority = self.authority();
        match tokio::time::timeout(PROBE_TIMEOUT, self.ask_for_models(key)).await {
            Ok(Ok(response)) if !response.status().is_server_error() => {
                // It is asked anyway, so the page can name the model in its questions.
                let list = read_list(response.into_body());
                let list = tokio::time::timeout(PROBE_TIMEOUT, list).await.ok().flatten();
                self.models.note(clock, key, list.as_ref()).await;
                Ok(())
            }
            Ok(Ok(response)) => {
                let why = format!("{authority} answers {}", response.status());
                Err(ApiError::upstream_down(why))
            }
            Ok(Err(error)) => Err(ApiError::upstream_down(error.to_string())),
            Err(_) => Err(ApiError::upstream_down(format!("{authority} is silent"))),
        }
    }

    /// Checks the server's health: `/health`, or its list of models if it has no `/health`.
    ///
    /// # Errors
    /// The reason why it cannot be used, for the operator.
    pub async fn check_health(&self, key: Option<&HeaderValue>) -> Result<(), String> {
        let asked = async {
            let health = self.client.send(get("/health", key)).await?;
            match ServerSign::of(health.status()) {
                ServerSign::LacksPath => self.ask_for_models(key).await,
                _ => Ok(health),
            }
        };
        match tokio::time::timeout(PROBE_TIMEOUT, asked).await {
            Ok(Ok(response)) if !response.status().is_server_error() => Ok(()),
            Ok(Ok(response)) => Err(format!("it answers {}", response.status())),
            Ok(Err(error)) => Err(with_advice(error.to_string())),
            Err(_) => Err("it is silent".to_owned()),
        }
    }

    /// Returns the server's name of the model for a client with `key`: `name`, the operator's, if
    /// the server lists it, otherwise its first model.
    pub async fn model_for(
        &self,
        clock: Clock,
        key: Option<&HeaderValue>,
        name: Option<&str>,
    ) -> Option<String> {
        let listed = self.models.of(clock, key, || self.list(key)).await;
        let named = name.filter(|name| listed.iter().any(|listed| listed == name));
        // Without a list, some servers take any name.
        named.or(listed.first().map(String::as_str)).or(name).map(str::to_owned)
    }

    /// Returns the first model of the list that the server last sent.
    pub async fn known_model(&self, key: Option<&HeaderValue>) -> Option<String> {
        self.models.known(key).await
    }

    async fn list(&self, key: Option<&HeaderValue>) -> Option<Value> {
        let listed = async {
            let response = self.ask_for_models(key).await.ok()?;
            let is_success = response.status().is_success();
            if is_success { read_list(response.into_body()).await } else { None }
        };
        tokio::time::timeout(PROBE_TIMEOUT, listed).await.ok().flatten()
    }
}

/// Adds to the reason of a failure what the operator can do about it.
fn with_advice(why: String) -> String {
    match why.contains("UnknownIssuer") {
        true => format!("{why} (SSL_CERT_FILE names a file with other authorities)"),
        false => why,
    }
}

/// Converts an error of the HTTP client.
fn unanswered(error: HttpError) -> Unanswered {
    let is_unsent = matches!(error, HttpError::Connect { .. });
    let error = ApiError::bad_gateway(format!(
        "The upstream server could not be reached: {}. Try again later.",
        with_advice(error.to_string())
    ));
    if is_unsent { Unanswered::Unsent(error) } else { Unanswered::Unheard(error) }
}

fn get(path: &'static str, key: Option<&HeaderValue>) -> HttpRequest<Bytes> {
    request(Method::GET, path, Bytes::new(), key)
}

/// Builds a request for `path` below a server's base URL, with a key.
pub fn request(
    method: Method,
    path: &str,
    body: Bytes,
    key: Option<&HeaderValue>,
) -> HttpRequest<Bytes> {
    let mut request = HttpRequest::new(body);
    *request.method_mut() = method;
    // The path comes from a parsed URI or a constant; the client adds the server's host.
    *request.uri_mut() = path.parse().unwrap_or_default();
    if let Some(key) = key {
        request.headers_mut().insert(header::AUTHORIZATION, key.clone());
    }
    request
}

async fn read_list(body: ResponseBody) -> Option<Value> {
    let list = Limited::new(body, MAX_LIST_BYTES).collect().await.ok()?;
    serde_json::from_slice(&list.to_bytes()).ok()
}
