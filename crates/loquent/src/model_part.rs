//! Files in GGUF format that are not a whole model: stages of a split one, and projectors for
//! images.

use loquent_formats::gguf::split::StageKeys;
use loquent_formats::gguf::{Header, Value};

/// Part of a model.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ModelPart {
    /// Description of the part, to follow "is".
    pub(crate) what: String,
    /// Next step for a user who wants to serve the model.
    pub(crate) advice: &'static str,
    /// True if `loquent serve --stages` serves this file.
    pub(crate) is_entry: bool,
}

/// Returns what the file with this `header` is a part of; `None` for a whole model.
pub(crate) fn part_of_model(header: &Header) -> Option<ModelPart> {
    if let Some(keys) = StageKeys::of(header) {
        return Some(match keys.is_entry() {
            true => ModelPart {
                what: "the entry file of a split model".to_owned(),
                advice: "name its stages: --stages",
                is_entry: true,
            },
            false => ModelPart {
                what: format!(
                    "a stage of a split model (layers {} to {} of {})",
                    keys.first_layer + 1,
                    keys.first_layer + keys.layers,
                    keys.all_layers
                ),
                advice: "serve the entry file with this one in --stages, or compute it by `loquent \
                         stage`",
                is_entry: false,
            },
        });
    }
    let is_projector = header.architecture() == Some("clip")
        || header.get("general.type").and_then(Value::as_str) == Some("mmproj");
    is_projector.then(|| ModelPart {
        what: "a projector for images, which goes with a model".to_owned(),
        advice: "name the model's own file; Loquent reads text only",
        is_entry: false,
    })
}
