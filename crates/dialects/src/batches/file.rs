//! A file of `/v1/files`: its object and its stored form.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Ends the JSON in a stored file; the JSON written here never contains it.
const SEPARATOR: u8 = b'\n';

/// Facts about a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Id, from the server.
    pub id: String,
    /// Name, from the client.
    pub filename: String,
    /// `batch`, or `batch_output` for a file that a batch wrote.
    pub purpose: String,
    /// Creation time, Unix time in seconds.
    pub created_at: u64,
    /// Time from which the file is no longer found.
    pub expires_at: Option<u64>,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// Facts about it.
    pub facts: FileFacts,
    /// Its bytes.
    pub content: Bytes,
}

impl StoredFile {
    /// Encodes the file for the store.
    pub fn encode(&self) -> Bytes {
        let mut bytes = serde_json::to_vec(&self.facts).expect("text and numbers are JSON");
        bytes.push(SEPARATOR);
        bytes.extend_from_slice(&self.content);
        bytes.into()
    }

    /// Decodes a stored file; `None` if the bytes are invalid.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == SEPARATOR)?;
        let facts = serde_json::from_slice(&bytes[..end]).ok()?;
        Some(Self { facts, content: bytes.slice(end + 1..) })
    }

    /// Returns true if the file is no longer to be found at `now_s`.
    pub fn has_expired(&self, now_s: u64) -> bool {
        self.facts.expires_at.is_some_and(|at| now_s >= at)
    }

    /// Returns the file's object in the API.
    pub fn object(&self) -> Value {
        let FileFacts { id, filename, purpose, created_at, expires_at } = &self.facts;
        json!({
            "id": id,
            "object": "file",
            "bytes": self.content.len(),
            "created_at": created_at,
            "expires_at": expires_at,
            "filename": filename,
            "purpose": purpose,
            "status": "processed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_comes_back_from_its_bytes_as_it_was() {
        let facts = FileFacts {
            id: "file-1".into(),
            filename: "two\nlines".into(),
            purpose: "batch".into(),
            created_at: 7,
            expires_at: Some(9),
        };
        let file = StoredFile { facts, content: Bytes::from_static(b"a\nb\n\xff") };
        let read = StoredFile::decode(&file.encode()).unwrap();
        assert_eq!(read, file);
        assert_eq!(read.object()["bytes"], 5);
        assert!(!read.has_expired(8) && read.has_expired(9));
        assert!(StoredFile::decode(&Bytes::from_static(b"no line")).is_none());
        assert!(StoredFile::decode(&Bytes::from_static(b"{}\nx")).is_none());
    }
}
