//! The table of formats: the tags that begin a call, and the reader for the text after them.

use loquent_formats::grammar::CallSyntax;

use super::call_reader::{CallReader, CallStart};
use super::deepseek::DeepSeekCalls;
use super::mistral::MistralCalls;
use super::object::ObjectCall;
use super::xml::{DSML, GLM, QWEN, XmlCall};

/// A format of calls.
pub(super) struct CallFamily {
    /// Tags that begin a call or a list of calls. If empty, the answer as a whole is a call.
    pub(super) open: &'static [&'static str],
    /// Tags dropped after a call.
    pub(super) close: &'static [&'static str],
    /// Makes the reader of a call.
    pub(super) reader: fn(CallStart) -> Box<dyn CallReader>,
}

const TAGGED: CallFamily = CallFamily {
    open: &["<tool_call>"],
    close: &["</tool_call>"],
    reader: |start| Box::new(ObjectCall::new(start, None)),
};
const BARE: CallFamily = CallFamily {
    open: &[],
    close: &[],
    reader: |start| {
        let known = start.config.tools.iter().map(|tool| tool.name.clone()).collect();
        Box::new(ObjectCall::new(start, Some(known)))
    },
};
const QWEN_XML: CallFamily = CallFamily {
    // The outer tag is forgotten now and then.
    open: &["<tool_call>", QWEN.head],
    close: &["</tool_call>"],
    reader: |start| Box::new(XmlCall::new(start, &QWEN)),
};
const GLM_XML: CallFamily = CallFamily {
    open: &["<tool_call>"],
    close: &["</tool_call>"],
    reader: |start| Box::new(XmlCall::new(start, &GLM)),
};
const MISTRAL: CallFamily = CallFamily {
    open: &["[TOOL_CALLS]"],
    close: &[],
    reader: |start| Box::new(MistralCalls::new(start)),
};
const DEEPSEEK: CallFamily = CallFamily {
    open: &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
    close: &["<｜tool▁calls▁end｜>"],
    reader: |start| Box::new(DeepSeekCalls::new(start)),
};

const DSML_XML: CallFamily = CallFamily {
    open: &[DSML.trusted[0], DSML.trusted[1], DSML.head],
    close: &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
    reader: |start| Box::new(XmlCall::new(start, &DSML)),
};

/// Returns the family of `syntax`.
pub(super) const fn family(syntax: CallSyntax) -> &'static CallFamily {
    match syntax {
        // Harmony's text has no tags around calls; without its channels there is nothing to find.
        CallSyntax::Tagged | CallSyntax::Harmony => &TAGGED,
        CallSyntax::Bare => &BARE,
        CallSyntax::QwenXml => &QWEN_XML,
        CallSyntax::GlmXml => &GLM_XML,
        CallSyntax::MistralList | CallSyntax::MistralArgs => &MISTRAL,
        CallSyntax::DeepSeekFenced | CallSyntax::DeepSeek => &DEEPSEEK,
        CallSyntax::DsmlFunctions | CallSyntax::DsmlTools => &DSML_XML,
    }
}
