//! Files of the prefix store: each has the keys and values of one block of tokens.
//!
//! A block is named by a hash of everything that its keys and values depend on: the engine, the
//! cache domain, its tokens and all tokens before them. So a block that is found under its name is
//! the right one, prompts with the same beginning share its blocks, and the names tell nothing.

use loquent_infer::tenant::CacheDomain;
use loquent_infer::token::TokenId;
use loquent_proto::hex;
use sha2::{Digest, Sha256};

/// Tokens of a block. With fewer the files get many; the beginning of a prompt is restored up to
/// the last whole block, and the rest of it is computed.
pub const BLOCK_TOKENS: u32 = 128;
/// Maximum bytes of a file: a larger one is not read.
pub const MAX_FILE_BYTES: u64 = 1 << 30;
/// Bytes before the state.
pub const HEAD_BYTES: usize = 88;
/// File name extension of blocks.
pub const EXTENSION: &str = "kv";

/// First bytes of a file.
const MAGIC: &[u8; 8] = b"LOQUENTp";
/// Version of the format, and of everything that is hashed.
const VERSION: u32 = 1;

/// Hash of everything that a block's keys and values depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockKey(pub [u8; 32]);

impl BlockKey {
    /// Returns the name of the block's file.
    pub fn file_name(&self) -> String {
        format!("{}.{EXTENSION}", hex::encode(&self.0))
    }

    /// Returns the key of the block in the file called `name`; `None` if that is another file.
    pub fn of_file_name(name: &str) -> Option<Self> {
        let digits = name.strip_suffix(EXTENSION)?.strip_suffix('.')?.as_bytes();
        let mut key = [0; 32];
        if digits.len() != 2 * key.len() {
            return None;
        }
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| match digit {
                b'0'..=b'9' => Some(digit - b'0'),
                b'a'..=b'f' => Some(digit - b'a' + 10),
                _ => None,
            };
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(key))
    }
}

/// Returns the keys of the whole blocks of `tokens`, in order, for an engine that is named by
/// `fingerprint`.
pub fn block_keys<'a>(
    fingerprint: &str,
    domain: CacheDomain,
    tokens: &'a [TokenId],
) -> impl Iterator<Item = BlockKey> + use<'a> {
    let mut hash = Sha256::new();
    hash.update(MAGIC);
    hash.update(VERSION.to_le_bytes());
    hash.update((fingerprint.len() as u64).to_le_bytes());
    hash.update(fingerprint);
    hash.update(domain.0.to_le_bytes());
    let mut before: [u8; 32] = hash.finalize().into();
    tokens.chunks_exact(BLOCK_TOKENS as usize).map(move |block| {
        let mut hash = Sha256::new();
        hash.update(before);
        block.iter().for_each(|token| hash.update(token.to_le_bytes()));
        before = hash.finalize().into();
        BlockKey(before)
    })
}

/// Reason why a file is not the block that its name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Its first bytes are not those of a block.
    #[error("it is no file of this cache")]
    Foreign,
    /// Its format is another version's.
    #[error("it was written by another version (format {0})")]
    Version(u32),
    /// Its length is not that of its contents.
    #[error("it is cut off or too long")]
    Length,
    /// It is another block.
    #[error("it has another block's name")]
    Name,
    /// Its hash is wrong.
    #[error("its checksum is wrong")]
    Checksum,
}

/// The beginning of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    checksum: [u8; 32],
    state_bytes: u64,
}

impl Head {
    /// Creates the head of the block `key` with `state`.
    pub fn of(key: &BlockKey, state: &[u8]) -> Self {
        let state_bytes = state.len() as u64;
        Self { checksum: checksum(key, state), state_bytes }
    }

    /// Returns the bytes of the head of the block `key`.
    pub fn encode(&self, key: &BlockKey) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[12..16].copy_from_slice(&BLOCK_TOKENS.to_le_bytes());
        head[16..48].copy_from_slice(&key.0);
        head[48..56].copy_from_slice(&self.state_bytes.to_le_bytes());
        head[56..].copy_from_slice(&self.checksum);
        head
    }

    /// Parses the head of a file of `file_bytes` bytes that should be the block `key`.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn parse(head: &[u8; HEAD_BYTES], key: &BlockKey, file_bytes: u64) -> Result<Self, Damage> {
        let number = |at: usize| {
            let bytes = head[at..].first_chunk().expect("the head is longer");
            u32::from_le_bytes(*bytes)
        };
        if head[..8] != *MAGIC {
            return Err(Damage::Foreign);
        }
        if number(8) != VERSION || number(12) != BLOCK_TOKENS {
            return Err(Damage::Version(number(8)));
        }
        if head[16..48] != key.0 {
            return Err(Damage::Name);
        }
        let state_bytes = u64::from(number(48)) | u64::from(number(52)) << 32;
        if file_bytes > MAX_FILE_BYTES
            || state_bytes.checked_add(HEAD_BYTES as u64) != Some(file_bytes)
        {
            return Err(Damage::Length);
        }
        let checksum = *head[56..].first_chunk().expect("the head ends with it");
        Ok(Self { checksum, state_bytes })
    }

    /// Length of the state in bytes.
    pub fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    /// Checks the state of the block `key`.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn check(&self, key: &BlockKey, state: &[u8]) -> Result<(), Damage> {
        if state.len() as u64 != self.state_bytes {
            return Err(Damage::Length);
        }
        if checksum(key, state) == self.checksum { Ok(()) } else { Err(Damage::Checksum) }
    }
}

fn checksum(key: &BlockKey, state: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(key.0);
    hash.update(state);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    //! Names depend on everything; whatever is wrong with a file is found.
    use proptest::prelude::*;

    use super::*;

    const KEY: BlockKey = BlockKey([7; 32]);

    fn keys(fingerprint: &str, domain: u64, tokens: &[TokenId]) -> Vec<BlockKey> {
        block_keys(fingerprint, CacheDomain(domain), tokens).collect()
    }

    #[test]
    fn a_block_is_named_by_all_that_it_depends_on() {
        let tokens: Vec<TokenId> = (0..400).collect();
        let all = keys("engine", 1, &tokens);
        assert_eq!(all.len(), 3, "a part of a block has no name");
        assert_eq!(keys("engine", 1, &tokens[..256]), all[..2]);
        assert!(keys("engine", 2, &tokens).iter().all(|key| !all.contains(key)));
        assert!(keys("other", 1, &tokens).iter().all(|key| !all.contains(key)));
        let mut other = tokens;
        other[130] = 0;
        let other = keys("engine", 1, &other);
        assert_eq!(other[0], all[0]);
        assert!(other[1] != all[1] && other[2] != all[2], "what comes before counts too");
    }

    #[test]
    fn file_names_lead_back() {
        let name = KEY.file_name();
        assert_eq!(BlockKey::of_file_name(&name), Some(KEY));
        for other in ["", ".kv", "secret", &name[1..], &name.to_uppercase(), &format!("x{name}")] {
            assert_eq!(BlockKey::of_file_name(other), None, "{other}");
        }
    }

    /// Reads a whole file as the store does.
    fn read(file: &[u8], key: &BlockKey) -> Result<Vec<u8>, Damage> {
        let (head, state) = file.split_first_chunk().ok_or(Damage::Length)?;
        let head = Head::parse(head, key, file.len() as u64)?;
        head.check(key, state)?;
        Ok(state.to_vec())
    }

    fn file(state: &[u8]) -> Vec<u8> {
        let mut file = Head::of(&KEY, state).encode(&KEY).to_vec();
        file.extend_from_slice(state);
        file
    }

    proptest! {
        #[test]
        fn a_block_reads_as_it_was_written(state in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(read(&file(&state), &KEY), Ok(state));
        }

        #[test]
        fn a_changed_or_cut_file_is_never_taken(
            state in prop::collection::vec(any::<u8>(), 0..300),
            at: prop::sample::Index,
            bit in 0..8u8,
            cut: prop::sample::Index,
        ) {
            let mut damaged = file(&state);
            let at = at.index(damaged.len());
            damaged[at] ^= 1 << bit;
            prop_assert!(read(&damaged, &KEY).is_err());
            let whole = file(&state);
            prop_assert!(read(&whole[..cut.index(whole.len())], &KEY).is_err());
            prop_assert!(read(&[&whole[..], &[0]].concat(), &KEY).is_err());
        }

        #[test]
        fn any_head_is_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), HEAD_BYTES)) {
            let mut head: [u8; HEAD_BYTES] = bytes.try_into().unwrap();
            prop_assert_eq!(Head::parse(&head, &KEY, 100), Err(Damage::Foreign));
            head[..8].copy_from_slice(MAGIC);
            prop_assert!(Head::parse(&head, &KEY, 100).is_err());
        }
    }
}
