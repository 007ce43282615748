//! Metadata of a stage file: the layers that it holds, and their model.

use crate::gguf::{Header, Value, ValueKind};

/// Version of the keys `loquent.stage.*`.
pub const STAGE_VERSION: u32 = 1;

/// Position of a stage file in the whole model; the metadata keys `loquent.stage.*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageKeys {
    /// Identifies the whole model: equal in all files of one split.
    pub fingerprint: u64,
    /// First layer, counted in the whole model.
    pub first_layer: u32,
    /// Layers in this file.
    pub layers: u32,
    /// Layers of the whole model.
    pub all_layers: u32,
}

impl StageKeys {
    /// Reads the keys of a stage file; `None` for other files.
    pub fn of(header: &Header) -> Option<Self> {
        let number = |key: &str| header.get(&format!("loquent.stage.{key}"))?.as_u64();
        let small = |key: &str| number(key).and_then(|n| u32::try_from(n).ok());
        let keys = Self {
            fingerprint: number("fingerprint")?,
            first_layer: small("first_layer")?,
            layers: small("layers")?,
            all_layers: small("all_layers")?,
        };
        (small("version")? == STAGE_VERSION && keys.is_consistent()).then_some(keys)
    }

    /// Returns true if these layers are within the model: files and other stages may claim
    /// anything.
    pub fn is_consistent(self) -> bool {
        let end = self.first_layer.checked_add(self.layers);
        end.is_some_and(|end| end <= self.all_layers)
    }

    /// Returns true for the entry file: embeddings and tokenizer, no layers.
    pub fn is_entry(self) -> bool {
        self.layers == 0
    }

    /// Returns true if the head is in this file.
    pub fn is_last(self) -> bool {
        let end = self.first_layer.checked_add(self.layers);
        !self.is_entry() && end == Some(self.all_layers)
    }

    pub(super) fn metadata(self) -> Vec<(String, Value)> {
        [
            ("version", Value::u32(STAGE_VERSION)),
            ("fingerprint", Value::Unsigned(ValueKind::U64, self.fingerprint)),
            ("first_layer", Value::u32(self.first_layer)),
            ("layers", Value::u32(self.layers)),
            ("all_layers", Value::u32(self.all_layers)),
        ]
        .map(|(key, value)| (format!("loquent.stage.{key}"), value))
        .into()
    }
}
