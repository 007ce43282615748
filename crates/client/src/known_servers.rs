//! Remembers across runs which transport won for each server, and where QUIC is offered. The file
//! is small; losing it costs only a round trip.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::discovery::DeliveryOffer;
use crate::replaced_file::replace_file;

/// Maximum servers in the file; a further one replaces the oldest.
const MAX_SERVERS: usize = 64;
/// Maximum size of a file to read, in bytes: far more than this client ever writes.
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// The file's name within its folder.
const FILE: &str = "servers.json";

/// Transport of an answer or a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// QUIC: datagrams for answers, streams for other responses.
    Quic,
    /// HTTP/1.1: server-sent events for answers.
    Http,
}

impl Transport {
    /// Returns the name in files and logs: `quic` or `http`.
    pub const fn name(self) -> &'static str {
        match self {
            Transport::Quic => "quic",
            Transport::Http => "http",
        }
    }
}

/// Remembered facts about one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownServer {
    /// The transport that won last.
    pub winner: Transport,
    /// The server's offer of QUIC; `None` if unknown or absent.
    pub offer: Option<DeliveryOffer>,
}

/// Remembers servers by URL, in a file if a folder was given.
#[derive(Debug)]
pub struct KnownServers {
    file: Option<PathBuf>,
    /// Newest last.
    servers: Mutex<Vec<(String, KnownServer)>>,
}

impl KnownServers {
    /// Reads the file in `folder`; without a folder, servers are remembered for this process only.
    /// A file that is missing, too long or unreadable counts as empty.
    pub fn open(folder: Option<&Path>) -> KnownServers {
        let file = folder.map(|folder| folder.join(FILE));
        let servers = file.as_deref().and_then(read_bounded).map(|text| parse(&text));
        KnownServers { file, servers: Mutex::new(servers.unwrap_or_default()) }
    }

    /// Returns the remembered facts about the server at `url`.
    pub fn recall(&self, url: &str) -> Option<KnownServer> {
        let servers = self.lock();
        servers.iter().find(|(name, _)| name == url).map(|(_, known)| *known)
    }

    /// Remembers `known` for the server at `url`. Errors of writing the file are ignored.
    pub fn remember(&self, url: &str, known: KnownServer) {
        if self.recall(url) == Some(known) {
            return;
        }
        // Another process may have written since; its other servers are kept.
        let written = self.file.as_deref().and_then(read_bounded).map(|text| parse(&text));
        let mut servers = self.lock();
        if let Some(written) = written {
            *servers = written;
        }
        servers.retain(|(name, _)| name != url);
        servers.push((url.to_owned(), known));
        let surplus = servers.len().saturating_sub(MAX_SERVERS);
        servers.drain(..surplus);
        if let Some(file) = &self.file
            && let Err(error) = replace_file(file, render(&servers).as_bytes())
        {
            tracing::debug!("cannot write {}: {error}", file.display());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(String, KnownServer)>> {
        // A panic while the list is held leaves it whole enough for a hint.
        self.servers.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn read_bounded(path: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= MAX_FILE_BYTES).then_some(text)
}

pub(crate) fn render(servers: &[(String, KnownServer)]) -> String {
    let servers: Vec<Value> = servers
        .iter()
        .map(|(url, known)| {
            let offer = known.offer.map(|offer| offer.to_json());
            json!({ "url": url, "winner": known.winner.name(), "offer": offer })
        })
        .collect();
    json!({ "servers": servers }).to_string()
}

/// Returns the valid entries of `text`.
pub(crate) fn parse(text: &str) -> Vec<(String, KnownServer)> {
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let servers = value["servers"].as_array().map(Vec::as_slice).unwrap_or_default();
    servers.iter().take(MAX_SERVERS).filter_map(parse_server).collect()
}

fn parse_server(value: &Value) -> Option<(String, KnownServer)> {
    let winner = match value["winner"].as_str()? {
        "quic" => Transport::Quic,
        "http" => Transport::Http,
        _ => return None,
    };
    let offer = DeliveryOffer::parse(value["offer"].to_string().as_bytes()).ok();
    Some((value["url"].as_str()?.to_owned(), KnownServer { winner, offer }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUIC: KnownServer = KnownServer {
        winner: Transport::Quic,
        offer: Some(DeliveryOffer { port: 7, certificate_sha256: Some([3; 32]) }),
    };
    const HTTP: KnownServer = KnownServer { winner: Transport::Http, offer: None };

    #[test]
    fn remembers_across_runs_and_processes() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("new");
        let (one, other) = (KnownServers::open(Some(&folder)), KnownServers::open(Some(&folder)));
        one.remember("http://a", QUIC);
        other.remember("http://b", HTTP);
        one.remember("http://a", HTTP);
        let later = KnownServers::open(Some(&folder));
        assert_eq!((later.recall("http://a"), later.recall("http://b")), (Some(HTTP), Some(HTTP)));
        assert_eq!(later.recall("http://c"), None);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no drafts are left");
    }

    #[test]
    fn is_bounded_and_tolerates_any_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        for bad in ["", "{", "[1]", r#"{"servers":[{"url":1},7,{"url":"x","winner":"tcp"}]}"#] {
            fs::write(&file, bad).unwrap();
            assert_eq!(KnownServers::open(Some(folder.path())).lock().len(), 0, "{bad}");
        }
        fs::write(&file, " ".repeat(MAX_FILE_BYTES as usize + 1)).unwrap();
        let memory = KnownServers::open(Some(folder.path()));
        for server in 0..MAX_SERVERS + 10 {
            memory.remember(&format!("http://{server}"), QUIC);
        }
        assert_eq!(KnownServers::open(Some(folder.path())).lock().len(), MAX_SERVERS);
        assert_eq!(memory.recall("http://9"), None);
        assert_eq!(memory.recall("http://10"), Some(QUIC));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_failure() {
        let memory = KnownServers::open(Some(Path::new("/dev/null/x")));
        memory.remember("http://a", QUIC);
        assert_eq!(memory.recall("http://a"), Some(QUIC));
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[{}\\[\\]\":,a-z0-9]{0,120}") {
            prop_assert!(parse(&text).len() <= MAX_SERVERS);
        }
    }
}
