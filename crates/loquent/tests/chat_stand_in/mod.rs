//! A stand-in of an OpenAI-compatible server that gives prepared replies in turn.
#![allow(dead_code)] // each test file needs another part of it

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// How one question is answered.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The pieces, a finish reason, usage (a token per piece and one that shows no text), `[DONE]`.
    Full { pieces: Vec<String> },
    /// These deltas of chunks, a finish reason, `[DONE]`.
    Deltas { deltas: Vec<Value>, finish_reason: &'static str },
    /// These deltas and then nothing, until the client goes away.
    HangAfter { deltas: Vec<Value> },
    /// The pieces and then the end of the body, as HTTP wants it or by a closed connection.
    Cut { pieces: Vec<String>, clean: bool },
    /// The pieces and `[DONE]`.
    DoneWithoutFinish { pieces: Vec<String> },
    /// The pieces and an error event.
    ErrorInStream { pieces: Vec<String>, message: String },
    /// The pieces and then nothing, until the client goes away.
    Hang { pieces: Vec<String> },
    /// A status and OpenAI's error body.
    Refuse { status: u16, message: String },
}

impl Reply {
    /// A complete answer of these pieces.
    pub fn full(pieces: &[&str]) -> Reply {
        Reply::Full { pieces: pieces.iter().map(|piece| (*piece).to_owned()).collect() }
    }
}

/// Body and `Authorization` of a question.
type Question = (Value, Option<String>);

/// A running stand-in; its threads end with the test process.
pub struct StandIn {
    address: SocketAddr,
    questions: Arc<Mutex<Vec<Question>>>,
    hung_up: Receiver<()>,
    silent: Arc<AtomicBool>,
}

struct Shared {
    silent: Arc<AtomicBool>,
    replies: Mutex<VecDeque<Reply>>,
    questions: Arc<Mutex<Vec<Question>>>,
    hung_up: Mutex<Sender<()>>,
}

impl StandIn {
    /// Answers the questions to come with these replies, in order.
    pub fn start(replies: impl IntoIterator<Item = Reply>) -> StandIn {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let questions = Arc::new(Mutex::new(Vec::new()));
        let (sender, hung_up) = mpsc::channel();
        let silent = Arc::new(AtomicBool::new(false));
        let shared = Arc::new(Shared {
            silent: silent.clone(),
            replies: Mutex::new(replies.into_iter().collect()),
            questions: questions.clone(),
            hung_up: Mutex::new(sender),
        });
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.unwrap(), shared.clone());
                // A client that goes away is what some tests want.
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        StandIn { address, questions, hung_up, silent }
    }

    /// Base URL.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The questions so far.
    pub fn questions(&self) -> Vec<Question> {
        self.questions.lock().unwrap().clone()
    }

    /// Never answers requests for the models any more. Each counts as a question.
    pub fn fall_silent(&self) {
        self.silent.store(true, Ordering::Release);
    }

    /// Waits until the client of a [`Reply::Hang`] has closed its connection.
    pub fn hung_up(&self, within: Duration) -> bool {
        self.hung_up.recv_timeout(within).is_ok()
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let (mut length, mut authorization) = (0, None);
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.trim_end().split_once(':') else {
                break;
            };
            match name.to_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap(),
                "authorization" => authorization = Some(value.trim().to_owned()),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        if line.starts_with("GET /v1/models ") {
            if shared.silent.load(Ordering::Acquire) {
                shared.questions.lock().unwrap().push((Value::Null, authorization));
                assert_eq!(reader.read(&mut [0])?, 0, "the client waits and goes away");
                return Ok(());
            }
            let models = json!({ "object": "list", "data": [{ "id": "first-model" }] });
            plain(&mut stream, 200, &models)?;
            continue;
        }
        if line.starts_with("GET /props?model=") {
            let params = json!({ "temperature": 0.8, "repeat_penalty": 1.1 });
            let props = json!({ "default_generation_settings": { "params": params } });
            plain(&mut stream, 200, &props)?;
            continue;
        }
        if line.starts_with("GET /.well-known/loquent ") {
            plain(&mut stream, 404, &json!({ "error": { "message": "no such path" } }))?;
            continue;
        }
        assert!(line.starts_with("POST /v1/chat/completions "), "unexpected request {line}");
        let question = (serde_json::from_slice(&body).unwrap(), authorization);
        shared.questions.lock().unwrap().push(question);
        let reply = shared.replies.lock().unwrap().pop_front().expect("a reply for the question");
        if !answer(&mut stream, &reply)? {
            if matches!(reply, Reply::Hang { .. } | Reply::HangAfter { .. }) {
                let gone = reader.read(&mut [0])?;
                assert_eq!(gone, 0, "the client sent more on a connection in use");
                let _ = shared.hung_up.lock().unwrap().send(());
            }
            return Ok(());
        }
    }
}

/// Whether the connection may be used again.
fn answer(stream: &mut TcpStream, reply: &Reply) -> std::io::Result<bool> {
    let content = |pieces: &[String]| pieces.iter().map(|it| json!({ "content": it })).collect();
    let (deltas, end, complete): (Vec<Value>, _, _) = match reply {
        Reply::Refuse { status, message } => {
            let error = json!({ "error": { "message": message, "type": "t", "code": null } });
            plain(stream, *status, &error)?;
            return Ok(true);
        }
        Reply::Full { pieces } => {
            let finish = json!({ "choices": [{ "delta": {}, "finish_reason": "stop" }] });
            let tokens = pieces.len() + 1;
            let usage = json!({ "prompt_tokens": 3, "completion_tokens": tokens });
            let usage = json!({ "choices": [], "usage": usage });
            (content(pieces), format!("data: {finish}\n\ndata: {usage}\n\ndata: [DONE]\n\n"), true)
        }
        Reply::Deltas { deltas, finish_reason } => {
            let finish = json!({ "choices": [{ "delta": {}, "finish_reason": finish_reason }] });
            (deltas.clone(), format!("data: {finish}\n\ndata: [DONE]\n\n"), true)
        }
        Reply::HangAfter { deltas } => (deltas.clone(), String::new(), false),
        Reply::Cut { pieces, clean } => (content(pieces), String::new(), *clean),
        Reply::DoneWithoutFinish { pieces } => {
            (content(pieces), "data: [DONE]\n\n".to_owned(), true)
        }
        Reply::ErrorInStream { pieces, message } => {
            let error = json!({ "error": { "message": message } });
            (content(pieces), format!("data: {error}\n\n"), false)
        }
        Reply::Hang { pieces } => (content(pieces), String::new(), false),
    };
    stream.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    )?;
    chunk(stream, ": heartbeat\n\n")?;
    for delta in deltas {
        let event = json!({ "choices": [{ "delta": delta, "finish_reason": null }] });
        chunk(stream, &format!("data: {event}\n\n"))?;
    }
    if !end.is_empty() {
        chunk(stream, &end)?;
    }
    if complete {
        stream.write_all(b"0\r\n\r\n")?;
    }
    Ok(complete)
}

fn chunk(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}

fn plain(stream: &mut TcpStream, status: u16, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    let length = body.len();
    stream.write_all(
        format!("HTTP/1.1 {status} Status\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes(),
    )
}
