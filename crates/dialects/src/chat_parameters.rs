//! Support status of each parameter of `/v1/chat/completions` and `/v1/completions`.

use loquent_serving::api::parameter_table::{Parameter, ignored, refused, supported};

/// Parameters that both endpoints share.
const SHARED: &[Parameter] = &[
    supported("model", "any name; of several models, or with `--strict-model`, one that is served"),
    supported("stream", ""),
    supported(
        "stream_options",
        "`include_usage`, `continuous_usage_stats`, `include_timings`, `include_obfuscation`",
    ),
    supported("max_tokens", "-1: as many as fit"),
    supported("max_completion_tokens", "takes precedence over `max_tokens`"),
    supported("n_predict", "llama-server's name for `max_tokens`"),
    supported("temperature", "0 to 2; 0 is greedy; by default the model's"),
    supported("top_p", "by default the model's"),
    supported("top_k", "0 or -1: all tokens; by default the model's"),
    supported("min_p", "by default the model's"),
    supported("presence_penalty", ""),
    supported("frequency_penalty", ""),
    supported("repetition_penalty", "above 0 to 10; 1 is off; by default the model's"),
    supported("repeat_penalty", "llama-server's name for it"),
    supported("repeat_last_n", "llama-server's: tokens that it counts; -1, the default: all"),
    supported("seed", ""),
    supported("logit_bias", "at most 1,024 tokens"),
    supported("stop", "at most 16 strings of 256 bytes"),
    supported("include_stop_reason", "the answer names the stop string that ended it"),
    supported("n", "at most 64 completions of all prompts together"),
    supported("best_of", "equal to `n`; any other is refused"),
    supported("response_format", "`text`, `json_object`, `json_schema`"),
    supported("structured_outputs", "vLLM's: `json`, `regex`, `choice`, `grammar` (GBNF, Lark)"),
    supported("guided_json", "vLLM's older name, like the three below"),
    supported("guided_regex", ""),
    supported("guided_choice", "at most 1,024 texts"),
    supported("guided_grammar", "GBNF or Lark"),
    supported("grammar", "llama-server's: GBNF"),
    supported("json_schema", "llama-server's"),
    supported("ignore_eos", ""),
    supported("stream_interval", "tokens per chunk, or `auto`"),
    supported(
        "return_progress",
        "of a stream: chunks with `prompt_progress` until the first token; comments tell of pauses",
    ),
    supported(
        "timings_per_token",
        "llama-server's: `timings` in the answer, of a stream in a chunk at its end",
    ),
    supported("resumable", "the answer can be resumed after its connection was lost"),
    supported("priority", "lower goes first; limited by the API key"),
    supported("cache_salt", "separates the prefixes that requests may share"),
    ignored("user", ""),
    ignored("service_tier", ""),
    ignored(
        "prompt_cache_key",
        "equal prefixes are reused without it; chooses among several servers behind `--upstream`",
    ),
    ignored("prompt_cache_retention", ""),
    ignored("safety_identifier", ""),
    refused("audio", "no audio output"),
    refused("modalities", "anything but `[\"text\"]`"),
    refused("prediction", ""),
    refused("web_search_options", ""),
    refused("functions", "use `tools`"),
    refused("function_call", "use `tool_choice`"),
];

/// Parameters of `/v1/chat/completions` only.
const CHAT: &[Parameter] = &[
    supported(
        "messages",
        "text parts, joined as lines; images, audio and files are refused, past ones become text",
    ),
    supported("tools", "functions, at most 512"),
    supported("tool_choice", ""),
    supported("parallel_tool_calls", ""),
    supported("chat_template_kwargs", "variables of the model's chat template"),
    supported("reasoning_effort", "ignored by name where the model's template knows no effort"),
    supported("reasoning", "OpenRouter's: `effort`, `max_tokens`"),
    supported("thinking_budget_tokens", "llama-server's; ignored by name without `<think>`"),
    supported("thinking_token_budget", "vLLM's name for it"),
    supported("verbosity", "ignored by name where the model's template knows none"),
    supported("continue_final_message", "the answer goes on with the last message"),
    supported("add_generation_prompt", ""),
    supported("logprobs", ""),
    supported("top_logprobs", "at most 20"),
    refused("suffix", "at `/v1/completions` only"),
    supported("store", "the completion can be listed, read and changed later"),
    supported("metadata", "of stored completions: at most 16 short strings"),
];

/// Parameters of `/v1/completions` only.
const TEXT: &[Parameter] = &[
    supported("prompt", "text or token ids, one or many; or one that mixes both"),
    supported("echo", "with `logprobs`, the prompt's tokens have them too; allows `max_tokens: 0`"),
    supported("suffix", "where the model's vocabulary has tokens to fill in the middle"),
    supported("logprobs", "at most 20"),
    ignored("store", ""),
    ignored("metadata", ""),
];

/// All parameters of `/v1/chat/completions`.
pub fn chat() -> impl Iterator<Item = &'static Parameter> {
    CHAT.iter().chain(SHARED)
}

/// All parameters of `/v1/completions`.
pub fn text() -> impl Iterator<Item = &'static Parameter> {
    TEXT.iter().chain(SHARED)
}
