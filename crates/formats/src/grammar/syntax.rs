//! Formats of tool calls in model output: the formats by name, and their tags. The parsers of
//! answers (`loquent-server`) and the grammars (`calls.rs`) both follow this table.

/// Format in which a model writes a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallSyntax {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, each on lines of its own
    /// (Hermes, Qwen).
    Tagged,
    /// The whole answer is `{"name": …, "parameters": …}` (Llama 3).
    Bare,
    /// Messages in channels: a call is one to `functions.NAME` (gpt-oss).
    Harmony,
    /// `<function=NAME>` with a `<parameter=KEY>` for each argument (Qwen3-Coder).
    QwenXml,
    /// `<tool_call>NAME` with `<arg_key>` and `<arg_value>` for each argument (GLM).
    GlmXml,
    /// `[TOOL_CALLS]` and an array of objects (Mistral until 2024).
    MistralList,
    /// `[TOOL_CALLS]NAME[ARGS]{…}` (Mistral since).
    MistralArgs,
    /// Special tokens around a name and a fenced object (DeepSeek V3, R1).
    DeepSeekFenced,
    /// Special tokens around a name and an object (DeepSeek V3.1).
    DeepSeek,
    /// Elements marked by a special token, in a list called `function_calls` (DeepSeek V3.2).
    DsmlFunctions,
    /// Same, in a list called `tool_calls` (DeepSeek since).
    DsmlTools,
}

/// The tags around a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkTags {
    /// `<think>` and `</think>`, of most models.
    Angle,
    /// `[THINK]` and `[/THINK]` (Magistral and Mistral's models since).
    Square,
}

impl ThinkTags {
    /// All tags.
    pub const ALL: [Self; 2] = [Self::Angle, Self::Square];

    /// Finds the tags that a chat template contains.
    pub fn of_template(source: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tags| source.contains(tags.pair()[0]))
    }

    /// The tag that begins reasoning, and the one that ends it.
    pub const fn pair(self) -> [&'static str; 2] {
        match self {
            Self::Angle => ["<think>", "</think>"],
            Self::Square => ["[THINK]", "[/THINK]"],
        }
    }

    /// The end of reasoning as models write it.
    pub(super) const fn ending(self) -> &'static str {
        match self {
            Self::Angle => "\n</think>\n\n",
            Self::Square => "[/THINK]",
        }
    }
}

/// The tags of Harmony's messages.
const HARMONY: &[&str] =
    &["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"];
const QWEN: &[&str] =
    &["<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"];
const GLM: &[&str] =
    &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"];
const MISTRAL: &[&str] = &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"];
/// Common part of its tags, which are `<｜DSML｜invoke …>` and so on.
const DSML: &[&str] = &["｜DSML｜"];
const DEEPSEEK: &[&str] = &[
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
];

impl CallSyntax {
    /// Detects the format that a chat template uses, by its tags.
    pub fn of_template(source: &str) -> Self {
        let has = |tag: &str| source.contains(tag);
        // The particular first: newer formats have the tags of older ones beside their own.
        match () {
            () if has("<|channel|>") && has("<|message|>") => Self::Harmony,
            () if has(DSML[0]) && has("function_calls") => Self::DsmlFunctions,
            () if has(DSML[0]) => Self::DsmlTools,
            () if has(DEEPSEEK[1]) && has("```json") => Self::DeepSeekFenced,
            () if has(DEEPSEEK[1]) => Self::DeepSeek,
            () if has("[TOOL_CALLS]") && has("[ARGS]") => Self::MistralArgs,
            () if has("[TOOL_CALLS]") => Self::MistralList,
            () if has("<arg_key>") => Self::GlmXml,
            () if has("<function=") => Self::QwenXml,
            () if has("<tool_call>") => Self::Tagged,
            // A template with tools and none of the tags has the model write bare JSON; one without
            // tools gets them described, with the tags that the description names.
            () if has("tools") || has("tool_calls") => Self::Bare,
            () => Self::Tagged,
        }
    }

    /// Tags used by the format. If they are control tokens in a vocabulary, and so have no text,
    /// their names must be inserted before the answer is parsed.
    pub const fn tags(self) -> &'static [&'static str] {
        match self {
            // The outer pair; a range as an index is not `const`.
            Self::Tagged => QWEN.split_at(2).0,
            Self::Bare => &[],
            Self::Harmony => HARMONY,
            Self::QwenXml => QWEN,
            Self::GlmXml => GLM,
            Self::MistralList | Self::MistralArgs => MISTRAL,
            Self::DeepSeekFenced | Self::DeepSeek => DEEPSEEK,
            Self::DsmlFunctions | Self::DsmlTools => DSML,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_shows_its_format() {
        for (source, syntax) in [
            (
                "<|start|>assistant<|channel|>commentary to=functions.x<|message|>",
                CallSyntax::Harmony,
            ),
            ("<tool_call>\\n<function={{ f.name }}>", CallSyntax::QwenXml),
            ("<tool_call>{{ f.name }}<arg_key>{{ k }}</arg_key>", CallSyntax::GlmXml),
            ("[TOOL_CALLS][{{ tool_call }}]", CallSyntax::MistralList),
            ("[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}", CallSyntax::MistralArgs),
            ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>x\\n```json", CallSyntax::DeepSeekFenced),
            ("<｜tool▁call▁begin｜>x<｜tool▁sep｜>{}", CallSyntax::DeepSeek),
            ("{% set d = '｜DSML｜' %}<{{ d }}function_calls>", CallSyntax::DsmlFunctions),
            ("<｜DSML｜tool_calls><｜DSML｜invoke name=", CallSyntax::DsmlTools),
            ("{% if tools %}<tool_call>", CallSyntax::Tagged),
            ("{% if tools %}", CallSyntax::Bare),
            ("{{ messages }}", CallSyntax::Tagged),
        ] {
            assert_eq!(CallSyntax::of_template(source), syntax, "{source}");
        }
    }

    #[test]
    fn a_template_shows_the_tags_around_reasoning() {
        assert_eq!(ThinkTags::of_template("{{ '<think>' }}"), Some(ThinkTags::Angle));
        assert_eq!(ThinkTags::of_template("[THINK]…[/THINK]"), Some(ThinkTags::Square));
        assert_eq!(ThinkTags::of_template("{{ messages }}"), None);
    }
}
