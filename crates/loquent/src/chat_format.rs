//! The model's chat template as the server's chat format.

use std::sync::Arc;

use loquent_engine::llama::Model as Weights;
use loquent_infer::runner::TokenId;
use loquent_infer::vocab::{Encode, Vocab};
use loquent_server::api::message::Message;
use loquent_server::model::ChatFormat;

/// A chat template and the tokens it speaks of.
pub struct TemplateFormat;

impl TemplateFormat {
    /// The template of a model.
    pub fn new(_weights: &Arc<Weights>) -> anyhow::Result<Self> {
        Ok(Self)
    }
}

impl ChatFormat for TemplateFormat {
    fn encode(&self, vocab: &dyn Vocab, messages: &[Message]) -> Result<Vec<TokenId>, String> {
        let mut text = String::new();
        for message in messages {
            text += &format!(
                "<|im_start|>{}\n{}<|im_end|>\n",
                message.role.name(),
                message.content
            );
        }
        text += "<|im_start|>assistant\n";
        vocab
            .encode(
                &text,
                Encode {
                    add_bos: false,
                    parse_special: true,
                },
            )
            .map_err(|error| error.to_string())
    }
}
