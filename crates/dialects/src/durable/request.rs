//! Parameters of a Durable Streams request, from its query.

use std::time::Duration;

use http::Uri;

use super::content::Format;
use loquent_serving::error::ApiError;

/// Maximum and default wait of a long poll.
const MAX_POLL: Duration = Duration::from_secs(20);

/// Position at which to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At a log offset.
    At(u64),
    /// At the current end of the stream.
    Now,
}

/// Way of following the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Return the available content only.
    CatchUp,
    /// Wait for the next content, once.
    LongPoll {
        /// Maximum wait.
        timeout: Duration,
    },
    /// Follow the stream as server-sent events.
    Events,
}

/// A read of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRequest {
    /// Position at which to begin.
    pub start: Start,
    /// Way of following the stream.
    pub mode: Mode,
    /// Format of the content.
    pub format: Format,
    /// Cursor of the previous response.
    pub cursor: Option<String>,
}

impl ReadRequest {
    /// Parses the query of `uri`; `None` if it is no Durable Streams read.
    ///
    /// # Errors
    /// 400 with the invalid parameter.
    pub fn parse(uri: &Uri) -> Result<Option<Self>, ApiError> {
        let fields =
            || uri.query().unwrap_or_default().split('&').filter_map(|it| it.split_once('='));
        let values = |wanted: &'static str| {
            fields().filter(move |(name, _)| *name == wanted).map(|(_, value)| value)
        };
        // Counted, since caches and servers disagree on which of two the right one is.
        let (offsets, live) = (values("offset").count(), values("live").next());
        if offsets == 0 && live.is_none() {
            return Ok(None);
        }
        let offset = match (offsets, live) {
            (1, _) => values("offset").next().unwrap_or_default(),
            (0, _) => return Err(wrong("offset", "is required with 'live'.")),
            _ => return Err(wrong("offset", "may be given once.")),
        };
        let mode = match live {
            None => Mode::CatchUp,
            Some("long-poll") => Mode::LongPoll { timeout: timeout(values("timeout").next())? },
            Some("sse") => Mode::Events,
            Some(_) => return Err(wrong("live", "must be long-poll or sse.")),
        };
        let format = match values("as").next() {
            None | Some("chunks") => Format::Chunks,
            Some("text") => Format::Text,
            Some(_) => return Err(wrong("as", "must be chunks or text.")),
        };
        let cursor = values("cursor").next().map(str::to_owned);
        Ok(Some(Self { start: start(offset)?, mode, format, cursor }))
    }
}

fn start(offset: &str) -> Result<Start, ApiError> {
    match offset {
        "-1" => Ok(Start::At(0)),
        "now" => Ok(Start::Now),
        // `parse` alone would also take a plus sign.
        digits if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            let offset = digits.parse().map_err(|_| wrong("offset", "is too large."))?;
            Ok(Start::At(offset))
        }
        _ => Err(wrong("offset", "must be -1, now, or an offset that this server gave.")),
    }
}

fn timeout(text: Option<&str>) -> Result<Duration, ApiError> {
    let Some(text) = text else { return Ok(MAX_POLL) };
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0);
    let seconds = seconds.ok_or_else(|| wrong("timeout", "must be seconds above 0."))?;
    Ok(Duration::from_secs(seconds).min(MAX_POLL))
}

fn wrong(name: &str, message: &str) -> ApiError {
    ApiError::invalid_param(name, format!("'{name}' {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Option<ReadRequest>, ApiError> {
        ReadRequest::parse(&format!("/v1/streams/x?{query}").parse().unwrap())
    }

    #[test]
    fn the_query_says_what_to_read() {
        assert_eq!(parse("token=1&from=3").unwrap(), None);
        let read = parse("offset=-1").unwrap().unwrap();
        let expected = ReadRequest {
            start: Start::At(0),
            mode: Mode::CatchUp,
            format: Format::Chunks,
            cursor: None,
        };
        assert_eq!(read, expected);
        let read = parse("as=text&cursor=7&live=long-poll&offset=00000000000000000042").unwrap();
        let read = read.unwrap();
        assert_eq!((read.start, read.format), (Start::At(42), Format::Text));
        assert_eq!(read.mode, Mode::LongPoll { timeout: MAX_POLL });
        assert_eq!(read.cursor.as_deref(), Some("7"));
        let read = parse("offset=now&live=long-poll&timeout=3").unwrap().unwrap();
        assert_eq!(read.mode, Mode::LongPoll { timeout: Duration::from_secs(3) });
        assert_eq!(read.start, Start::Now);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for query in [
            "live=sse",
            "offset=",
            "offset=1&offset=1",
            "offset=a",
            "offset=1,2",
            "offset=-2",
            "offset=1%202",
            "offset=99999999999999999999",
            "offset=1&live=x",
            "offset=1&as=x",
            "offset=1&live=long-poll&timeout=0",
        ] {
            assert!(parse(query).is_err(), "{query}");
        }
    }
}
