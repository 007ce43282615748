//! A server reached over HTTP.

use futures_util::stream;
use loquent_client::openai::{self, AnswerStream, Arrival, ChunkSummary, Generate};
use loquent_openai::BoxFuture;
use loquent_openai::http::{ConnectionOptions, HttpClient};

use crate::target::{ArrivalStream, RequestFailure, Target};

/// Maximum size of a `/metrics` response, in bytes.
const MAX_METRICS_BYTES: usize = 8 << 20;

/// An OpenAI-compatible server.
pub struct HttpTarget {
    name: String,
    client: HttpClient,
}

impl HttpTarget {
    /// Creates a target for the server of `client`, called `name` in reports.
    pub fn new(name: String, client: HttpClient) -> Self {
        HttpTarget { name, client }
    }
}

impl Target for HttpTarget {
    fn name(&self) -> &str {
        &self.name
    }

    fn models(&self) -> BoxFuture<'_, Result<Vec<String>, RequestFailure>> {
        Box::pin(async { Ok(openai::models(&self.client).await?) })
    }

    fn submit(
        &self,
        request: Generate,
        options: ConnectionOptions,
    ) -> BoxFuture<'_, Result<ArrivalStream, RequestFailure>> {
        Box::pin(async move {
            let answer = openai::generate(&self.client, &request, options).await?;
            Ok(Box::pin(stream::unfold(Some(Box::new(answer)), read)) as ArrivalStream)
        })
    }

    fn tokenize<'a>(
        &'a self,
        model: &'a str,
        text: &'a str,
        add_special: bool,
    ) -> BoxFuture<'a, Result<Vec<u32>, RequestFailure>> {
        Box::pin(async move { Ok(openai::tokenize(&self.client, model, text, add_special).await?) })
    }

    fn metrics(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(async {
            let asked = self.client.get("/metrics", MAX_METRICS_BYTES);
            String::from_utf8(asked.await.ok()?.into()).ok()
        })
    }
}

/// State of the stream of chunks: `None` after the answer's end. Boxed because it moves at every
/// chunk.
type Unread = Option<Box<AnswerStream>>;

async fn read(unread: Unread) -> Option<(Result<Arrival, RequestFailure>, Unread)> {
    let mut answer = unread?;
    match answer.next().await {
        Ok(Some(arrival)) => Some((Ok(arrival), Some(answer))),
        Ok(None) => {
            let at = answer.ended_at()?;
            let last = Arrival { at, delta: ChunkSummary::default(), wire: answer.wire() };
            Some((Ok(last), None))
        }
        Err(error) => Some((Err(error.into()), None)),
    }
}
