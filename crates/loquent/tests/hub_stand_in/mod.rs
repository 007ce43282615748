//! A stand-in of the hub: its listing, its redirecting file addresses and, on a second port, the
//! storage that they lead to. It answers one connection per thread and can be told to misbehave.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

/// What the storage does wrong, once, with the next request for content.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Closes the connection after this many bytes of the body.
    CutAfter(usize),
    /// Answers this status.
    Status(u16),
    /// Sends everything although a range was asked for.
    IgnoreRange,
    /// Sends the last byte inverted.
    FlipLastByte,
    /// Announces and sends this many bytes more than the listing says.
    ExtraBytes(usize),
    /// Sends this many bytes more, with no length announced.
    ExtraBytesUnannounced(usize),
    /// Announces and sends this many bytes fewer.
    MissingBytes(usize),
}

/// One request as it came.
#[derive(Clone)]
struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
}

impl Request {
    fn header(&self, name: &str) -> Option<String> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    }
}

struct State {
    repo: String,
    files: Vec<(String, Vec<u8>)>,
    faults: VecDeque<Fault>,
    token: Option<String>,
    announced_bytes: Option<usize>,
    omit_hashes: bool,
    outside_lfs: bool,
    requests: Vec<Request>,
    storage: SocketAddr,
}

/// A running stand-in; its threads end with the test process.
pub struct StandIn {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

impl StandIn {
    /// Serves one repository of the given files.
    pub fn start(repo: &str, files: &[(&str, Vec<u8>)]) -> StandIn {
        let api = TcpListener::bind("127.0.0.1:0").unwrap();
        let storage = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = api.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State {
            repo: repo.to_owned(),
            files: files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect(),
            faults: VecDeque::new(),
            token: None,
            announced_bytes: None,
            omit_hashes: false,
            outside_lfs: false,
            requests: Vec::new(),
            storage: storage.local_addr().unwrap(),
        }));
        for (listener, answer) in [(api, answer_api as Answer), (storage, answer_storage as Answer)]
        {
            let state = state.clone();
            std::thread::spawn(move || serve(&listener, &state, answer));
        }
        StandIn { address, state }
    }

    /// Base URL for `HF_ENDPOINT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The commit that `main` stands for.
    pub fn commit(&self) -> String {
        COMMIT.to_owned()
    }

    /// Hex SHA-256 of a file.
    pub fn sha256(&self, file: &str) -> String {
        let state = self.state.lock().unwrap();
        hex_sha256(&state.files.iter().find(|(name, _)| name == file).unwrap().1)
    }

    /// Queues a fault for the next request for content.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().unwrap().faults.push_back(fault);
    }

    /// From now on the repository is gated.
    pub fn require_token(&self, token: &str) {
        self.state.lock().unwrap().token = Some(token.to_owned());
    }

    /// From now on the listing says that each file has this size.
    pub fn announce(&self, bytes: usize) {
        self.state.lock().unwrap().announced_bytes = Some(bytes);
    }

    /// From now on the listing holds names only, as some mirrors' do.
    pub fn omit_hashes(&self) {
        self.state.lock().unwrap().omit_hashes = true;
    }

    /// From now on the repository keeps its files outside LFS, named by git's ids.
    pub fn leave_lfs(&self) {
        self.state.lock().unwrap().outside_lfs = true;
    }

    /// How many requests had this in their target.
    pub fn count(&self, part: &str) -> usize {
        self.state.lock().unwrap().requests.iter().filter(|r| r.target.contains(part)).count()
    }

    /// One header of each GET whose target has `part`, in the order they came.
    pub fn headers(&self, part: &str, name: &str) -> Vec<Option<String>> {
        let state = self.state.lock().unwrap();
        let gets = state.requests.iter().filter(|r| r.method == "GET" && r.target.contains(part));
        gets.map(|request| request.header(name)).collect()
    }
}

type Answer = fn(&Mutex<State>, &Request, &mut TcpStream) -> std::io::Result<()>;

fn serve(listener: &TcpListener, state: &Arc<Mutex<State>>, answer: Answer) {
    for stream in listener.incoming() {
        let (mut stream, state) = (stream.unwrap(), state.clone());
        std::thread::spawn(move || {
            if let Some(request) = read_request(&stream) {
                state.lock().unwrap().requests.push(request.clone());
                // A client that went away is its own test's business.
                let _ = answer(&state, &request, &mut stream);
            }
        });
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let headers = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_lowercase(), value.trim().to_owned()))
    });
    Some(Request { method, target, headers: headers.collect() })
}

fn answer_api(
    state: &Mutex<State>,
    request: &Request,
    stream: &mut TcpStream,
) -> std::io::Result<()> {
    let state = state.lock().unwrap();
    let listing = format!("/api/models/{}/revision/main", state.repo);
    let resolve = format!("/{}/resolve/{COMMIT}/", state.repo);
    let allowed = state.token.as_ref().map(|token| format!("Bearer {token}"));
    let denied = allowed.is_some() && request.header("authorization") != allowed;
    if request.target.contains("/Old-Name/") {
        let name = state.repo.split('/').next_back().unwrap();
        let location = request.target.replace("Old-Name", name);
        return respond(stream, 307, &format!("location: {location}\r\n"), b"");
    }
    let path = request.target.split('?').next().unwrap();
    if let Some(file) = path.strip_prefix(&resolve) {
        if denied {
            let status = if request.header("authorization").is_some() { 403 } else { 401 };
            return respond(stream, status, "x-error-code: GatedRepo\r\n", b"gated");
        }
        let Some((_, bytes)) = state.files.iter().find(|(name, _)| name == file) else {
            return respond(stream, 404, "x-error-code: EntryNotFound\r\n", b"");
        };
        let headers = format!(
            "location: http://{}/storage/{file}?signature=abc\r\nx-linked-etag: \"{}\"\r\nx-linked-size: {}\r\n",
            state.storage,
            hex_sha256(bytes),
            bytes.len()
        );
        return respond(stream, 302, &headers, b"");
    }
    if path == listing {
        return respond(stream, 200, "", listing_of(&state).as_bytes());
    }
    respond(stream, 404, "x-error-code: RepoNotFound\r\n", b"{}")
}

fn listing_of(state: &State) -> String {
    let describe = |(name, bytes): &(String, Vec<u8>)| {
        if state.omit_hashes {
            return serde_json::json!({ "rfilename": name });
        }
        let size = state.announced_bytes.unwrap_or(bytes.len());
        if state.outside_lfs {
            let id = git_blob_id(bytes);
            return serde_json::json!({ "rfilename": name, "size": size, "blobId": id });
        }
        serde_json::json!({
            "rfilename": name,
            "size": size,
            "blobId": "89abcdef0123456789abcdef0123456789abcdef",
            "lfs": { "sha256": hex_sha256(bytes), "size": size, "pointerSize": 134 },
        })
    };
    let siblings: Vec<_> = state.files.iter().map(describe).collect();
    serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string()
}

fn answer_storage(
    state: &Mutex<State>,
    request: &Request,
    stream: &mut TcpStream,
) -> std::io::Result<()> {
    let (mut bytes, fault) = {
        let mut state = state.lock().unwrap();
        let name = request.target.trim_start_matches("/storage/").split('?').next().unwrap();
        let file = state.files.iter().find(|(file, _)| file == name).unwrap().1.clone();
        (file, state.faults.pop_front())
    };
    let mut from = request.header("range").map_or(0, |range| {
        range.trim_start_matches("bytes=").trim_end_matches('-').parse().unwrap()
    });
    match fault {
        Some(Fault::Status(status)) => return respond(stream, status, "", b""),
        Some(Fault::IgnoreRange) => from = 0,
        Some(Fault::FlipLastByte) => *bytes.last_mut().unwrap() ^= 0xff,
        Some(Fault::ExtraBytes(n) | Fault::ExtraBytesUnannounced(n)) => bytes.extend(vec![0; n]),
        Some(Fault::MissingBytes(n)) => bytes.truncate(bytes.len() - n),
        Some(Fault::CutAfter(_)) | None => {}
    }
    let total = bytes.len();
    let mut head = match from {
        0 => "HTTP/1.1 200 OK\r\nconnection: close\r\n".to_owned(),
        _ => format!(
            "HTTP/1.1 206 Partial Content\r\nconnection: close\r\ncontent-range: bytes {from}-{}/{total}\r\n",
            total - 1
        ),
    };
    if !matches!(fault, Some(Fault::ExtraBytesUnannounced(_))) {
        head += &format!("content-length: {}\r\n", total - from);
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    let body = &bytes[from..];
    let sent = if let Some(Fault::CutAfter(n)) = fault { n } else { body.len() };
    stream.write_all(&body[..sent])
}

fn respond(stream: &mut TcpStream, status: u16, headers: &str, body: &[u8]) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status} Status\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

fn git_blob_id(bytes: &[u8]) -> String {
    let object = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
    sha1::Sha1::digest(object).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hex_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
