// The questions that can be asked, typed: whatever OpenAI's own types describe fits, Loquent's
// further parameters are named, and a misspelt one is an error of the compiler. What a parameter
// does, and which have no effect, is in docs/compatibility.md of the repository.

/** A part of a message's content. */
export interface ContentPart {
  readonly type: string;
  readonly text?: string | undefined;
  readonly refusal?: string | undefined;
  readonly image_url?: object | undefined;
  readonly input_audio?: object | undefined;
  readonly file?: object | undefined;
  readonly prompt_cache_breakpoint?: object | undefined;
}

/** A call of a tool in a message of the assistant's. */
export interface ToolCallRequest {
  readonly id: string;
  readonly type: string;
  readonly function?: { readonly name: string; readonly arguments: string } | undefined;
  readonly custom?: { readonly name: string; readonly input: string } | undefined;
}

/** One message of a conversation. */
export interface ChatMessage {
  readonly role: "system" | "developer" | "user" | "assistant" | "tool" | "function";
  readonly content?: string | readonly ContentPart[] | null | undefined;
  readonly name?: string | undefined;
  readonly refusal?: string | null | undefined;
  /** What the model thought before it answered. */
  readonly reasoning_content?: string | null | undefined;
  readonly tool_calls?: readonly ToolCallRequest[] | undefined;
  /** Which call a message of the role `tool` answers. */
  readonly tool_call_id?: string | undefined;
  readonly audio?: object | null | undefined;
  readonly function_call?: object | null | undefined;
}

/** A tool that the model may call. */
export interface Tool {
  readonly type: string;
  readonly function?:
    | {
        readonly name: string;
        readonly description?: string | undefined;
        /** A JSON Schema. */
        readonly parameters?: object | undefined;
        readonly strict?: boolean | null | undefined;
      }
    | undefined;
  readonly custom?: object | undefined;
}

/** What a stream carries beside the answer. */
export interface StreamOptions {
  readonly include_usage?: boolean | undefined;
  readonly include_obfuscation?: boolean | undefined;
  readonly continuous_usage_stats?: boolean | undefined;
  readonly include_timings?: boolean | undefined;
}

/** Parameters that both kinds of question have. `null` counts as not given. */
interface SharedParameters {
  readonly model?: string | null | undefined;
  /** Added by the client. */
  readonly stream?: boolean | null | undefined;
  readonly stream_options?: StreamOptions | null | undefined;
  readonly max_tokens?: number | null | undefined;
  readonly max_completion_tokens?: number | null | undefined;
  readonly temperature?: number | null | undefined;
  readonly top_p?: number | null | undefined;
  readonly top_k?: number | null | undefined;
  readonly min_p?: number | null | undefined;
  readonly presence_penalty?: number | null | undefined;
  readonly frequency_penalty?: number | null | undefined;
  readonly repetition_penalty?: number | null | undefined;
  readonly seed?: number | null | undefined;
  readonly logit_bias?: Readonly<Record<string, number>> | null | undefined;
  readonly stop?: string | readonly string[] | null | undefined;
  readonly include_stop_reason?: boolean | null | undefined;
  readonly n?: number | null | undefined;
  readonly response_format?: object | null | undefined;
  readonly structured_outputs?: object | null | undefined;
  readonly guided_json?: object | string | null | undefined;
  readonly guided_regex?: string | null | undefined;
  readonly guided_choice?: readonly string[] | null | undefined;
  readonly guided_grammar?: string | null | undefined;
  readonly grammar?: string | null | undefined;
  readonly json_schema?: object | null | undefined;
  readonly ignore_eos?: boolean | null | undefined;
  /** Tokens per chunk, or `auto`. */
  readonly stream_interval?: number | "auto" | null | undefined;
  /** News of the queue and the prompt until the first token, see `progress` and `pause` of an answer. */
  readonly return_progress?: boolean | null | undefined;
  readonly priority?: number | null | undefined;
  readonly cache_salt?: string | null | undefined;
  readonly user?: string | null | undefined;
  readonly metadata?: Readonly<Record<string, string>> | null | undefined;
  readonly store?: boolean | null | undefined;
  readonly service_tier?: string | null | undefined;
  readonly safety_identifier?: string | null | undefined;
  readonly prompt_cache_key?: string | null | undefined;
  readonly prompt_cache_retention?: string | null | undefined;
  readonly prompt_cache_options?: object | null | undefined;
}

/** A question to `/v1/chat/completions`. */
export interface ChatRequest extends SharedParameters {
  readonly messages: readonly ChatMessage[];
  readonly tools?: readonly Tool[] | null | undefined;
  readonly tool_choice?: string | object | null | undefined;
  readonly parallel_tool_calls?: boolean | null | undefined;
  readonly chat_template_kwargs?: object | null | undefined;
  readonly reasoning_effort?: string | null | undefined;
  readonly reasoning?: object | null | undefined;
  readonly thinking_budget_tokens?: number | null | undefined;
  readonly thinking_token_budget?: number | null | undefined;
  readonly verbosity?: string | null | undefined;
  readonly continue_final_message?: boolean | null | undefined;
  readonly add_generation_prompt?: boolean | null | undefined;
  readonly logprobs?: boolean | null | undefined;
  readonly top_logprobs?: number | null | undefined;
  /** Named by OpenAI's types; Loquent refuses them, see docs/compatibility.md. */
  readonly audio?: object | null | undefined;
  readonly modalities?: readonly string[] | null | undefined;
  readonly moderation?: object | null | undefined;
  readonly prediction?: object | null | undefined;
  readonly web_search_options?: object | null | undefined;
  readonly functions?: readonly object[] | null | undefined;
  readonly function_call?: string | object | null | undefined;
}

/** A question to `/v1/completions`. */
export interface CompletionRequest extends SharedParameters {
  /** Text or token ids. */
  readonly prompt: string | readonly string[] | readonly number[] | readonly (readonly number[])[] | null;
  readonly suffix?: string | null | undefined;
  readonly echo?: boolean | null | undefined;
  readonly logprobs?: number | null | undefined;
  readonly best_of?: number | null | undefined;
}
