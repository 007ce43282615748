//! Models by name, with the real binary: those of other tools are listed and served, those of the
//! hub are downloaded, and only what may be removed is.
#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::hub_stand_in::{Fault, StandIn};
use serde_json::Value;
use tempfile::TempDir;

const REPO: &str = "acme/Small-GGUF";
const HASH: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

/// A machine's home folder, with the models of several tools in it.
struct Home(TempDir);

impl Home {
    fn empty() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// One model in each place, all with `content`.
    fn with_models(content: &[u8]) -> Self {
        let home = Self::empty();
        let manifest = format!(
            r#"{{"layers": [{{"mediaType": "application/vnd.ollama.image.model",
                "digest": "sha256:{HASH}"}}]}}"#
        );
        let ollama = ".ollama/models";
        let manifests = format!("{ollama}/manifests/registry.ollama.ai/library");
        home.write(&format!("{manifests}/qwen3/0.6b"), manifest.as_bytes());
        home.write(&format!("{ollama}/blobs/sha256-{HASH}"), content);
        home.write(".lmstudio/models/acme/Tiny-GGUF/tiny-Q8_0.gguf", content);
        home.write("models/mine.gguf", content);
        home.write("models/two-00001-of-00002.gguf", content);
        home
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    fn write(&self, below: &str, content: &[u8]) {
        let path = self.path(below);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// `loquent` on this machine.
    fn loquent(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_loquent"));
        command.args(arguments).stdin(Stdio::null());
        for name in ["OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN"] {
            command.env_remove(name);
        }
        for name in ["LOQUENT_MODEL", "LOQUENT_HF", "XDG_CACHE_HOME", "HF_HUB_OFFLINE"] {
            command.env_remove(name);
        }
        command.env("HOME", self.0.path()).env("LOQUENT_MODELS", self.path("models"));
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.loquent(arguments).output().unwrap()
    }

    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command that must fail says.
    fn fails(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Names and places of the models beside the bundled one, which comes first.
    fn listed(&self) -> Vec<(String, String)> {
        let models: Value = serde_json::from_str(&self.succeeds(&["list", "--json"])).unwrap();
        let text = |model: &Value, key: &str| model[key].as_str().unwrap().to_owned();
        let models = models.as_array().unwrap().iter();
        let mut models = models.map(|model| (text(model, "name"), text(model, "place")));
        assert_eq!(models.next().unwrap(), ("tiny".to_owned(), "bundled".to_owned()));
        models.collect()
    }
}

/// The stand-in of a hub with one repository: a model in one file, and another in two.
fn hub() -> StandIn {
    let content = |len: usize| vec![b'x'; len];
    StandIn::start(
        REPO,
        &[
            ("small-Q4_K_M.gguf", content(70_000)),
            ("small-BF16-00001-of-00002.gguf", content(40_000)),
            ("small-BF16-00002-of-00002.gguf", content(30_000)),
        ],
    )
}

#[test]
fn models_of_every_tool_are_listed() {
    let home = Home::with_models(b"GGUF");
    let expected = [
        ("mine", "folder"),
        ("two", "folder"),
        ("qwen3:0.6b", "ollama"),
        ("acme/Tiny-GGUF:Q8_0", "lm-studio"),
    ];
    let expected = expected.map(|(name, place)| (name.to_owned(), place.to_owned()));
    assert_eq!(home.listed(), expected);
    let table = home.succeeds(&["list", "--paths"]);
    assert!(table.contains("mine.gguf") && table.contains("incomplete"), "{table}");
    assert!(table.lines().nth(1).unwrap().starts_with("tiny "), "{table}");
}

#[test]
fn without_models_the_list_says_where_it_looked() {
    let output = Home::empty().output(&["list"]);
    let advice = String::from_utf8(output.stderr).unwrap();
    for place in [".ollama", ".lmstudio", "huggingface", "loquent pull"] {
        assert!(advice.contains(place), "{place}: {advice}");
    }
}

#[test]
fn a_files_name_cannot_rewrite_the_screen() {
    let home = Home::empty();
    home.write("models/a\u{1b}[2Jb\nforged  1 B  Ollama.gguf", b"GGUF");
    let table = home.succeeds(&["list", "--paths"]);
    assert!(!table.contains('\u{1b}') && !table.contains("\nforged"), "{table:?}");
}

#[test]
fn a_model_is_removed_by_every_name_that_serves_it() {
    let home = Home::with_models(b"GGUF");
    let file = home.path("models/mine.gguf");
    home.succeeds(&["rm", "--yes", file.to_str().unwrap()]);
    assert!(!file.exists() && !home.listed().iter().any(|(name, _)| name == "mine"));
    let hub = hub();
    // Without a quantisation, as a short name leads to it.
    home.succeeds(&["pull", "--hf-endpoint", &hub.url(), REPO]);
    assert!(home.listed().iter().any(|(_, place)| place == "hugging-face"), "{:?}", home.listed());
    home.succeeds(&["rm", "--yes", REPO]);
    assert!(!home.listed().iter().any(|(_, place)| place == "hugging-face"));
    assert!(home.fails(&["rm", "--yes", "tiny"]).contains("inside this program"));
    let foreign = home.path("elsewhere.gguf");
    std::fs::write(&foreign, b"GGUF").unwrap();
    let told = home.fails(&["rm", "--yes", foreign.to_str().unwrap()]);
    assert!(told.contains("delete the file itself"), "{told}");
    assert!(home.fails(&["rm", "--yes", "nobody"]).contains("there is no model"));
}

#[test]
fn a_pulled_model_is_complete_and_can_be_removed() {
    let (home, hub) = (Home::empty(), hub());
    // The connection breaks in the middle of the second part.
    hub.inject(Fault::CutAfter(40_000));
    hub.inject(Fault::CutAfter(1000));
    let name = format!("{REPO}:BF16");
    let pull = ["pull", "--hf-endpoint", &hub.url(), &name];
    let path = home.succeeds(&pull);
    let first = Path::new(path.trim());
    assert_eq!(fs::metadata(first).unwrap().len(), 40_000);
    let second = first.with_file_name("small-BF16-00002-of-00002.gguf");
    assert_eq!(fs::metadata(second).unwrap().len(), 30_000);
    let output = home.output(&pull);
    assert!(String::from_utf8_lossy(&output.stderr).contains("is up to date"), "{output:?}");

    assert_eq!(home.listed(), [(name.clone(), "hugging-face".to_owned())]);
    let error = home.fails(&["rm", &name]);
    assert!(error.contains("--yes"), "nobody can be asked: {error}");
    home.succeeds(&["rm", "--yes", &name]);
    assert!(home.listed().is_empty());
    let blobs = home.path(".cache/huggingface/hub/models--acme--Small-GGUF/blobs");
    assert_eq!(fs::read_dir(blobs).unwrap().count(), 0, "the content is gone too");
}

#[test]
fn what_cannot_be_pulled_says_why() {
    let (home, hub) = (Home::empty(), hub());
    let fails = |name: &str| home.fails(&["pull", "--hf-endpoint", &hub.url(), name]);
    assert!(fails("tiny").contains("part of this program"));
    assert!(fails("./a.gguf").contains("is a file"));
    assert!(fails("qwen3:99b").contains("qwen3:0.6b"), "similar names are suggested");
    assert!(fails("acme/Other").contains("check the spelling"));
    assert!(fails(&format!("{REPO}:Q2_K")).contains("small-Q4_K_M.gguf"));
}

#[test]
fn an_unknown_model_is_named_before_the_prompt_is_read() {
    // Standard input is empty.
    let told = Home::empty().fails(&["run", "nobody"]);
    assert!(told.contains("there is no model") && !told.contains("prompt"), "{told}");
    let told = Home::empty().fails(&["run", "tiny"]);
    assert!(told.contains("the prompt is empty"), "{told}");
}

#[test]
fn the_models_of_other_tools_are_theirs_to_remove() {
    let home = Home::with_models(b"GGUF");
    let error = home.fails(&["rm", "--yes", "qwen3:0.6b"]);
    assert!(error.contains("ollama rm qwen3:0.6b"), "{error}");
    home.succeeds(&["rm", "--yes", "acme/Tiny-GGUF:q8_0"]);
    assert!(!home.path(".lmstudio/models/acme/Tiny-GGUF/tiny-Q8_0.gguf").exists());
    assert!(home.path("models/mine.gguf").exists());
}

#[cfg(feature = "llama")]
mod served {
    use loquent_formats::gguf::{
        GgufWriter, Header, ReadLimits, TensorInfo, TensorSpec, Value as Entry, ValueKind,
    };
    use serde_json::json;

    use super::*;
    use crate::process::{Process, ask, bundled, get};

    /// Serves a model, asks it, and returns its card.
    fn serves(home: &Home, arguments: &[&str]) -> Value {
        let fixed = ["serve", "--port", "0", "--threads", "1", "--no-quic"];
        let mut command = home.loquent(&[&fixed, arguments].concat());
        let server = Process::spawn(&mut command, " on http://");
        let question = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4});
        let answer = ask(&server.address, "/v1/chat/completions", &question);
        assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() > 0, "{answer}");
        let (_, models) = get(&server.address, "/v1/models");
        let json = &models[models.find('{').unwrap()..=models.rfind('}').unwrap()];
        serde_json::from_str::<Value>(json).unwrap()["data"][0].clone()
    }

    #[test]
    fn another_tools_model_is_served_by_its_name() {
        let Some(model) = bundled() else { return };
        let home = Home::with_models(&fs::read(model).unwrap());
        let card = serves(&home, &["qwen3:0.6b"]);
        assert_eq!(card["meta"]["n_ctx_train"], card["max_model_len"]);
        let card = serves(&home, &["mine", "--context", "4096"]);
        assert_eq!(card["max_model_len"], 4096);
        assert_eq!(card["meta"]["n_ctx_train"], 2048, "what the model learnt is said");
    }

    #[test]
    fn what_is_not_there_is_refused_before_anything_is_downloaded() {
        let home = Home::with_models(b"GGUF");
        let serve = |name: &str| home.fails(&["serve", "--port", "0", "--no-quic", name]);
        assert!(serve("no/such/file.gguf").contains("model file not found: no/such/file.gguf"));
        assert!(serve("qwen3:99b").contains("qwen3:0.6b"));
        assert!(serve("two").contains("two-00002-of-00002.gguf"));
        let part = home.path("models/two-00001-of-00002.gguf");
        let error = serve(part.to_str().unwrap());
        assert!(error.contains("two-00002-of-00002.gguf"), "{error}");
    }

    #[test]
    fn a_model_in_two_files_is_served_by_either() {
        let Some(model) = bundled() else { return };
        let home = Home::empty();
        fs::create_dir(home.path("models")).unwrap();
        let parts = [1, 2].map(|n| home.path(&format!("models/tiny2-0000{n}-of-00002.gguf")));
        halve(&model, &parts);
        serves(&home, &["tiny2"]);
        serves(&home, &[parts[1].to_str().unwrap()]);
        fs::write(&parts[1], b"GGUF").unwrap();
        let error = home.fails(&["serve", "--port", "0", "--no-quic", "tiny2"]);
        assert!(error.contains("tiny2-00002-of-00002.gguf"), "the broken part: {error}");
    }

    /// Writes a model as two files, as llama.cpp's `gguf-split` does.
    fn halve(model: &Path, parts: &[PathBuf; 2]) {
        let header = Header::open(model, ReadLimits::with_arrays()).unwrap();
        let content = fs::read(model).unwrap();
        let (first, second) = header.tensors.split_at(header.tensors.len() / 2);
        for (number, tensors) in [first, second].into_iter().enumerate() {
            let mut metadata = if number == 0 { header.metadata.clone() } else { Vec::new() };
            metadata.extend([
                ("split.no".to_owned(), Entry::Unsigned(ValueKind::U16, number as u64)),
                ("split.count".to_owned(), Entry::Unsigned(ValueKind::U16, 2)),
                (
                    "split.tensors.count".to_owned(),
                    Entry::Signed(ValueKind::I32, header.tensors.len() as i64),
                ),
            ]);
            let specs: Vec<TensorSpec> = tensors.iter().map(spec).collect();
            let file = fs::File::create(&parts[number]).unwrap();
            let mut writer = GgufWriter::start(file, &metadata, &specs).unwrap();
            for tensor in tensors {
                let from = (header.data_offset + tensor.offset) as usize;
                let len = tensor.bytes().unwrap().unwrap() as usize;
                writer.data(&content[from..from + len]).unwrap();
            }
            writer.finish().unwrap();
        }
    }

    fn spec(tensor: &TensorInfo) -> TensorSpec {
        TensorSpec { name: tensor.name.clone(), dims: tensor.dims.clone(), kind: tensor.kind }
    }
}
