//! Short names of well-known models, with their repositories on the hub.
//!
//! The names are Ollama's, so that commands found elsewhere work here. The list is deliberately
//! short: any other model can be given as `OWNER/REPO`.

/// Short names with their repositories on the hub.
const MODELS: [(&str, &str); 24] = [
    ("qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF"),
    ("qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF"),
    ("qwen3:4b", "Qwen/Qwen3-4B-GGUF"),
    ("qwen3:8b", "Qwen/Qwen3-8B-GGUF"),
    ("qwen3:14b", "Qwen/Qwen3-14B-GGUF"),
    ("qwen3:32b", "Qwen/Qwen3-32B-GGUF"),
    ("qwen3:30b-a3b", "Qwen/Qwen3-30B-A3B-GGUF"),
    ("qwen2.5:0.5b", "Qwen/Qwen2.5-0.5B-Instruct-GGUF"),
    ("qwen2.5:1.5b", "Qwen/Qwen2.5-1.5B-Instruct-GGUF"),
    ("qwen2.5:3b", "Qwen/Qwen2.5-3B-Instruct-GGUF"),
    ("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct-GGUF"),
    ("qwen2.5-coder:1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"),
    ("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF"),
    ("gemma3:270m", "ggml-org/gemma-3-270m-it-GGUF"),
    ("gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF"),
    ("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF"),
    ("gemma3:12b", "ggml-org/gemma-3-12b-it-GGUF"),
    ("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF"),
    ("llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF"),
    ("llama3.1:8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"),
    ("mistral:7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF"),
    ("smollm2:135m", "bartowski/SmolLM2-135M-Instruct-GGUF"),
    ("smollm3:3b", "ggml-org/SmolLM3-3B-GGUF"),
    ("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF"),
];

/// Returns the repository of the model called `name`.
pub(super) fn find(name: &str) -> Option<&'static str> {
    let mut models = MODELS.iter();
    models.find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, repo)| *repo)
}

/// Returns all names with their repositories.
pub(super) fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    MODELS.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::HubSpec;

    #[test]
    fn the_documentation_has_the_same_table() {
        let docs = include_str!("../../../../docs/models.md");
        let rows = all().map(|(name, repo)| {
            format!("| `{name}` | [{repo}](https://huggingface.co/{repo}) |\n")
        });
        let table: String = rows.collect();
        assert!(docs.ends_with(&table), "docs/models.md ends with:\n{table}");
    }

    #[test]
    fn every_name_is_found_and_leads_to_a_repository() {
        for (name, repo) in all() {
            assert_eq!(find(&name.to_uppercase()), Some(repo));
            assert!(repo.parse::<HubSpec>().is_ok(), "{repo}");
            assert!(name.parse::<HubSpec>().is_err(), "{name} could be a repository");
        }
    }
}
