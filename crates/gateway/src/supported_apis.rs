//! Detects which APIs besides chat completions an upstream supports. Requests to an API that it
//! does not know are translated to chat completions here; the others are passed on, since only the
//! upstream implements all of the API.

use std::future::Future;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::server::PROBE_TIMEOUT;
use loquent_serving::clock::Clock;
use loquent_serving::error::ApiError;

/// Validity of a probe's result: an upstream may be replaced by a newer version.
const FRESH: Duration = Duration::from_secs(600);
/// Time after an unanswered probe until the next one, which holds up the requests of its time.
const AFTER_SILENCE: Duration = Duration::from_secs(30);

/// Statuses of a server that lacks the path, or lacks it for POST.
const UNKNOWN_PATH: [u16; 3] = [404, 405, 501];
/// Statuses of a server that has the path and rejects an empty request.
const WRONG_REQUEST: [u16; 2] = [400, 422];
/// Status of a server that fails on an empty request, or on a path that it does not have.
const FAILED: u16 = 500;

/// An API that some upstreams support.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamApi {
    /// OpenAI's `/v1/responses`.
    Responses,
    /// Anthropic's `/v1/messages`.
    Messages,
}

impl UpstreamApi {
    /// Returns the common prefix of the API's paths.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
        }
    }
}

/// Routing of a request on a server with an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Answered here: completions, which are relayed, and requests translated to them.
    Here,
    /// Passed on, if the route is on the list.
    PassedOn,
    /// Passed on if the upstream supports this API, otherwise answered here.
    IfSpoken(UpstreamApi),
}

impl Way {
    /// Returns the routing of a request for `path`, for which this server has a route.
    pub fn of(path: &str) -> Self {
        let path = path.strip_prefix("/v1").unwrap_or(path);
        let first = path.split('/').nth(1).unwrap_or_default();
        match first {
            "models" | "tokenize" | "detokenize" | "embeddings" | "props" => Self::PassedOn,
            "responses" => Self::IfSpoken(UpstreamApi::Responses),
            "messages" => Self::IfSpoken(UpstreamApi::Messages),
            _ => Self::Here,
        }
    }
}

/// Cached knowledge about the APIs that an upstream supports: until when it is valid, and whether
/// it supports the API.
#[derive(Debug, Default)]
pub struct SupportedApis {
    responses: Mutex<Option<(Duration, bool)>>,
    messages: Mutex<Option<(Duration, bool)>>,
}

impl SupportedApis {
    /// Returns true if the upstream supports `api`. From time to time, `probe` sends it an empty
    /// request and returns the status.
    ///
    /// # Errors
    /// The errors of `probe`.
    pub async fn speaks<F>(
        &self,
        api: UpstreamApi,
        clock: Clock,
        probe: impl FnOnce() -> F,
    ) -> Result<bool, ApiError>
    where
        F: Future<Output = Result<u16, ApiError>>,
    {
        let known = match api {
            UpstreamApi::Responses => &self.responses,
            UpstreamApi::Messages => &self.messages,
        };
        // Held while asking, so that of many requests at once only the first probes.
        let mut known = known.lock().await;
        if let Some((until, speaks)) = *known
            && clock.now() < until
        {
            return Ok(speaks);
        }
        let Ok(status) = tokio::time::timeout(PROBE_TIMEOUT, probe()).await else {
            // Silence proves nothing.
            let speaks = known.is_some_and(|(_, speaks)| speaks);
            *known = Some((clock.now() + AFTER_SILENCE, speaks));
            return Ok(speaks);
        };
        let status = status?;
        // What is translated works at any upstream, so that doubt decides for it.
        let speaks = !UNKNOWN_PATH.contains(&status) && status != FAILED;
        // A refusal for another reason than the request itself proves nothing: it goes to the
        // client, and the next request asks again.
        let proves =
            UNKNOWN_PATH.contains(&status) || status < 300 || WRONG_REQUEST.contains(&status);
        *known = proves.then(|| (clock.now() + FRESH, speaks));
        Ok(speaks)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use super::*;

    #[test]
    fn each_path_has_its_way() {
        for (path, way) in [
            ("/v1/chat/completions", Way::Here),
            ("/v1/chat/completions/chatcmpl-1/messages", Way::Here),
            ("/v1/completions", Way::Here),
            ("/chat/completions", Way::Here),
            ("/api/chat", Way::Here),
            ("/v1/models", Way::PassedOn),
            ("/v1/models/a/b", Way::PassedOn),
            ("/tokenize", Way::PassedOn),
            ("/props", Way::PassedOn),
            ("/v1/embeddings", Way::PassedOn),
            ("/v1/responses", Way::IfSpoken(UpstreamApi::Responses)),
            ("/v1/responses/resp_1/cancel", Way::IfSpoken(UpstreamApi::Responses)),
            ("/v1/messages/count_tokens", Way::IfSpoken(UpstreamApi::Messages)),
            ("/", Way::Here),
        ] {
            assert_eq!(Way::of(path), way, "{path}");
        }
    }

    #[tokio::test]
    async fn an_upstream_is_asked_once_unless_it_says_nothing_of_the_api() {
        let clock = Clock::start();
        for (status, speaks, asked_twice) in [
            (404, false, false),
            (405, false, false),
            (501, false, false),
            (400, true, false),
            (422, true, false),
            (200, true, false),
            (500, false, true),
            (401, true, true),
            (503, true, true),
        ] {
            let (apis, asked) = (SupportedApis::default(), Cell::new(0));
            let probe = || {
                asked.set(asked.get() + 1);
                async move { Ok(status) }
            };
            for _ in 0..2 {
                assert_eq!(apis.speaks(UpstreamApi::Messages, clock, probe).await, Ok(speaks));
            }
            assert_eq!(asked.get(), 1 + usize::from(asked_twice), "{status}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_upstream_is_translated_for_and_asked_again_later() {
        let (clock, apis, asked) = (Clock::start(), SupportedApis::default(), Cell::new(0));
        let silent = || {
            asked.set(asked.get() + 1);
            pending()
        };
        for _ in 0..3 {
            assert_eq!(apis.speaks(UpstreamApi::Messages, clock, silent).await, Ok(false));
        }
        assert_eq!(asked.get(), 1, "the others do not wait too");
        tokio::time::advance(AFTER_SILENCE).await;
        let speaks = apis.speaks(UpstreamApi::Messages, clock, || async { Ok(200) }).await;
        assert_eq!(speaks, Ok(true));
        tokio::time::advance(FRESH).await;
        let speaks = apis.speaks(UpstreamApi::Messages, clock, silent).await;
        assert_eq!(speaks, Ok(true), "silence proves nothing");
    }
}
