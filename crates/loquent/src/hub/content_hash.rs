//! The two content hashes that identify files on the hub.

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Kind of a content hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HashKind {
    /// SHA-256 of the bytes, for files in LFS.
    Sha256,
    /// The id of git's blob object, SHA-1 of `blob SIZE\0` and the bytes, for files outside LFS.
    GitBlob,
}

/// A hash that is being computed.
pub(super) enum ContentHash {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl ContentHash {
    /// Starts the hash of a content of `size_bytes`.
    pub(super) fn start(kind: HashKind, size_bytes: u64) -> Self {
        match kind {
            HashKind::Sha256 => Self::Sha256(Sha256::new()),
            HashKind::GitBlob => {
                Self::GitBlob(Sha1::new_with_prefix(format!("blob {size_bytes}\0")))
            }
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
        }
    }

    /// Returns the hash in lower-case hex.
    pub(super) fn finish(self) -> String {
        match self {
            Self::Sha256(hash) => hex(&hash.finalize()),
            Self::GitBlob(hash) => hex(&hash.finalize()),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_git_and_sha256sum() {
        let of = |kind| {
            let mut hash = ContentHash::start(kind, 6);
            hash.update(b"hel");
            hash.update(b"lo\n");
            hash.finish()
        };
        // `printf 'hello\n' | git hash-object --stdin`
        assert_eq!(of(HashKind::GitBlob), "ce013625030ba8dba906f756967f9e9ca394464a");
        let sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert_eq!(of(HashKind::Sha256), sha256);
    }
}
