//! An answer whose model still has to be loaded: progress reports during the wait, and its start.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, EncodeError, Vocab};
use loquent_proto::Progress;
use tokio::time::{Instant, Sleep};

use crate::error::ApiError;
use crate::output::CompletionFlushes;

/// Wait before the first progress report. Shorter waits are not reported.
const FIRST_NEWS: Duration = Duration::from_millis(250);
/// Minimum time between two reports.
const NEWS_PERIOD: Duration = Duration::from_millis(500);
/// Reports become less frequent: the pause grows to this fraction of the elapsed time.
const NEWS_PART: u32 = 20;

/// An answer that an engine has begun.
pub struct EngineAnswer {
    /// Keeps the model in memory during the answer.
    pub held: Option<Arc<dyn Send + Sync>>,
    /// Tokens of each completion's prompt.
    pub prompt_tokens: Vec<usize>,
    /// Time when the prompts were tokenized.
    pub tokenized: Duration,
    /// Flushes of the answer.
    pub flushes: CompletionFlushes,
    /// Texts of the prompts if the request asks to have them repeated, otherwise empty.
    pub echo: Vec<String>,
}

/// Event of a waiting answer.
pub enum WaitEvent {
    /// Progress of loading its model.
    News(Progress),
    /// The answer has begun, or never will.
    Begun(Box<Result<EngineAnswer, ApiError>>),
}

/// Begins an answer once its model is loaded.
pub type Begin = Pin<Box<dyn Future<Output = Result<EngineAnswer, ApiError>> + Send>>;

/// Returns the loading progress after the given time of waiting.
pub type News = Box<dyn Fn(Duration) -> Progress + Send>;

/// An answer that waits for its model. Dropping it ends the wait.
pub struct LoadingAnswer {
    begin: Begin,
    news: Option<News>,
    since: Instant,
    next_news: Pin<Box<Sleep>>,
}

impl LoadingAnswer {
    /// Creates an answer that `begin` begins once the model is loaded, and whose reader gets the
    /// reports of `news`.
    pub fn new(begin: Begin, news: Option<News>) -> Self {
        let next_news = Box::pin(tokio::time::sleep(FIRST_NEWS));
        Self { begin, news, since: Instant::now(), next_news }
    }

    /// Polls for the next event.
    pub fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<WaitEvent> {
        if let Poll::Ready(begun) = self.begin.as_mut().poll(context) {
            return Poll::Ready(WaitEvent::Begun(Box::new(begun)));
        }
        let Some(news) = &self.news else { return Poll::Pending };
        ready!(self.next_news.as_mut().poll(context));
        let waited = self.since.elapsed();
        let rest = NEWS_PERIOD.max(waited / NEWS_PART);
        self.next_news.as_mut().reset(Instant::now() + rest);
        Poll::Ready(WaitEvent::News(news(waited)))
    }
}

/// Vocabulary of a model that still has to be loaded. It has no tokens before that.
#[derive(Default)]
pub struct LateVocab(OnceLock<Arc<dyn Vocab>>);

impl LateVocab {
    /// Sets the vocabulary, once the model is loaded.
    pub fn arrive(&self, vocab: Arc<dyn Vocab>) {
        let _ = self.0.set(vocab);
    }
}

impl Vocab for LateVocab {
    fn size(&self) -> usize {
        self.0.get().map_or(0, |vocab| vocab.size())
    }

    fn encode(&self, text: &str, how: Encode) -> Result<Vec<TokenId>, EncodeError> {
        let unknown = || EncodeError("the model is not loaded".into());
        self.0.get().ok_or_else(unknown)?.encode(text, how)
    }

    fn piece(&self, token: TokenId) -> &[u8] {
        self.0.get().map_or(&[], |vocab| vocab.piece(token))
    }

    fn name(&self, token: TokenId) -> &[u8] {
        self.0.get().map_or(&[], |vocab| vocab.name(token))
    }

    fn is_end(&self, token: TokenId) -> bool {
        self.0.get().is_some_and(|vocab| vocab.is_end(token))
    }
}
