//! What becomes of prompts before they are tokens: places stay with the work, and prompts that
//! cannot fit are not tokenized.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use http::StatusCode;
use http_body_util::BodyExt;
use loquent_infer::sim_vocab::SimVocab;
use loquent_infer::token::TokenId;
use loquent_infer::vocab::{Encode, EncodeError, Vocab};
use loquent_server::LoadedEngine;
use serde_json::{Value, json};

use super::harness::{self, Server};

/// Text that is tokenized only when the test lets it.
const SLOW: &str = "slow prompt";

/// The simulated vocabulary, with a tokenizer that reports what it gets.
struct WatchedVocab {
    encoded: Mutex<Sender<usize>>,
    go: Mutex<Receiver<()>>,
}

impl Vocab for WatchedVocab {
    fn size(&self) -> usize {
        SimVocab.size()
    }

    fn encode(&self, text: &str, how: Encode) -> Result<Vec<TokenId>, EncodeError> {
        self.encoded.lock().unwrap().send(text.len()).unwrap();
        if text.contains(SLOW) {
            self.go.lock().unwrap().recv().unwrap();
        }
        SimVocab.encode(text, how)
    }

    fn piece(&self, token: TokenId) -> &[u8] {
        SimVocab.piece(token)
    }

    fn name(&self, token: TokenId) -> &[u8] {
        SimVocab.name(token)
    }

    fn is_end(&self, token: TokenId) -> bool {
        SimVocab.is_end(token)
    }

    fn longest_token_bytes(&self) -> Option<usize> {
        SimVocab.longest_token_bytes()
    }
}

/// A server with that vocabulary; the lengths of what is tokenized, and what lets a slow prompt go.
fn watched() -> (Server, Receiver<usize>, Sender<()>) {
    let ((encoded, lengths), (go, may_go)) = (channel(), channel());
    let mut loaded: LoadedEngine = harness::loaded();
    let (encoded, go_on) = (Mutex::new(encoded), Mutex::new(may_go));
    loaded.model.vocab = Arc::new(WatchedVocab { encoded, go: go_on });
    (Server::over(loaded, |config| config.tokenize_workers = 1), lengths, go)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_up_while_a_prompt_is_tokenized_makes_no_room_for_another() {
    let (server, lengths, go) = watched();
    let server = Arc::new(server);
    let client = server.clone();
    let asked = tokio::spawn(async move {
        client.post("/v1/completions", &json!({"prompt": SLOW, "n": 3})).await
    });
    let lengths = tokio::task::spawn_blocking(move || {
        assert_eq!(lengths.recv().unwrap(), SLOW.len());
        lengths
    });
    let lengths = lengths.await.unwrap();
    asked.abort();
    assert!(asked.await.unwrap_err().is_cancelled());
    assert_eq!(server.service.in_flight(), 3, "the tokenizer is still at it");
    go.send(()).unwrap();
    server.until_idle().await;
    assert!(lengths.try_recv().is_err(), "nothing more was tokenized");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_that_cannot_fit_is_refused_without_being_tokenized() {
    let (server, lengths, _go) = watched();
    let most = 16_384 * SimVocab.longest_token_bytes().unwrap();
    let long = "a".repeat(most + 1);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": long})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": long}]})),
    ] {
        let (status, body) = server.post(path, &body).await;
        let body = body.collect().await.unwrap().to_bytes();
        let error: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{error}");
        assert_eq!(error["error"]["code"], "context_length_exceeded");
        assert!(lengths.try_iter().all(|length| length == 0), "{path}");
    }
    // A prompt of the longest tokens only: as long as one can be that fits.
    let word = "<|endoftext|>";
    let fits = word.repeat(16_383);
    let (status, _) =
        server.post("/v1/completions", &json!({"prompt": fits, "max_tokens": 1})).await;
    assert_eq!(status, StatusCode::OK);
}
