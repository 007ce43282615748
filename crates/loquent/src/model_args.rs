//! The flags that name a model file, for `serve` and `tune`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use sha2::{Digest, Sha256};

use crate::bundled;
use crate::hub::{self, HubSpec};

/// Where a model comes from.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// Model file in GGUF format [default: the bundled demonstration model]
    #[arg(long, short, env = "LOQUENT_MODEL", value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Model on the Hugging Face hub, as OWNER/REPO[@REVISION][:FILE or quantisation]
    #[arg(long, env = "LOQUENT_HF", value_name = "REPO", conflicts_with = "model")]
    pub(crate) hf: Option<HubSpec>,
    /// SHA-256 that the model's file must have, in hex; checked before the file is used. For a
    /// model in several files, that of the first
    #[arg(long, env = "LOQUENT_MODEL_SHA256", value_name = "HEX", value_parser = parse_sha256)]
    pub(crate) model_sha256: Option<String>,
}

fn parse_sha256(text: &str) -> Result<String, String> {
    let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hash = is_hash.then(|| text.to_lowercase());
    hash.ok_or_else(|| "a SHA-256 has 64 hexadecimal digits".to_owned())
}

impl ModelArgs {
    /// The path of the model's file, which is downloaded or unpacked first where necessary.
    ///
    /// # Errors
    /// When the download fails, the bundled model cannot be written to disk, or the file is not
    /// the one of --model-sha256.
    pub(crate) fn fetch(&self) -> anyhow::Result<PathBuf> {
        let path = match (&self.model, &self.hf) {
            (Some(path), _) => path.clone(),
            (None, Some(spec)) => hub::fetch(spec, &mut hub::progress_bar())?,
            (None, None) => bundled::materialize()?,
        };
        if let Some(expected) = &self.model_sha256 {
            let actual =
                sha256(&path).with_context(|| format!("cannot read {}", path.display()))?;
            ensure!(
                actual == *expected,
                "{} is another model than --model-sha256 names: its SHA-256 is {actual}",
                path.display()
            );
        }
        Ok(path)
    }
}

/// The hash of a file's content in lower-case hex.
fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let (mut hash, mut chunk) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(len) => hash.update(&chunk[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_hash_admits_one_file_only() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hello\n").unwrap();
        let hash = "5891B5B522D5DF086D0FF0B110FBD9D21BB4FC7163AF34D08286A2E846F6BE03";
        let path = file.path().to_owned();
        let pinned = Some(parse_sha256(hash).unwrap());
        let args = ModelArgs { model: Some(path.clone()), hf: None, model_sha256: pinned };
        assert_eq!(args.fetch().unwrap(), path);
        std::fs::write(&path, "hello!\n").unwrap();
        let error = args.fetch().unwrap_err().to_string();
        assert!(error.contains("--model-sha256"), "{error}");
        for bad in ["", "abc", &"g".repeat(64)] {
            assert!(parse_sha256(bad).is_err(), "{bad}");
        }
    }
}
