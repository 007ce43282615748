//! The sampling parameters that a model's author stored in its file, and those that the vendors of
//! some families of models publish.

use std::ops::RangeInclusive;

use loquent_formats::gguf::{Header, Value};
use loquent_server::{SamplingDefaults, StatedSampling};

use crate::bundled;

/// Returns the defaults of the model with this `header`; `operator` is what the flags state.
pub(super) fn sampling_defaults(header: &Header, operator: StatedSampling) -> SamplingDefaults {
    let text = |name: &str| header.get(name).and_then(Value::as_str).unwrap_or_default();
    let names = [text("general.name"), text("general.basename")];
    let vendor = of_family(text("general.architecture"), &names.map(plain));
    SamplingDefaults { operator, file: of_file(header), vendor }
}

/// Returns what the file states, under the keys of llama.cpp's converter. Values that would be
/// invalid in a request are ignored, because sampling relies on the bounds.
fn of_file(header: &Header) -> StatedSampling {
    let number = |name: &str, range: RangeInclusive<f32>| match value(header, name)? {
        // NaN is in no range.
        Value::F32(number) if range.contains(number) => Some(*number),
        other => ignore(name, other),
    };
    let top_k = value(header, "top_k").and_then(|number| {
        let k = number.as_u64().and_then(|k| u32::try_from(k).ok());
        k.or_else(|| ignore("top_k", number))
    });
    StatedSampling {
        temperature: number("temp", 0.0..=2.0),
        top_k,
        top_p: number("top_p", 0.0..=1.0),
        min_p: number("min_p", 0.0..=1.0),
        repetition_penalty: number("penalty_repeat", 0.01..=10.0),
    }
}

fn value<'a>(header: &'a Header, name: &str) -> Option<&'a Value> {
    header.get(&format!("general.sampling.{name}"))
}

fn ignore<T>(name: &str, found: &Value) -> Option<T> {
    tracing::warn!("the model file's general.sampling.{name} is ignored: {found:?}");
    None
}

/// Returns a name in lower case, with a hyphen for each space and underscore.
fn plain(name: &str) -> String {
    name.to_lowercase().replace([' ', '_'], "-")
}

/// Returns the parameters that the vendor of a model publishes; none for an unknown family.
///
/// A penalty of 1 is stated where the vendor describes the whole sampling and has no penalty.
fn of_family(architecture: &str, names: &[String]) -> StatedSampling {
    let is_called = |part: &str| names.iter().any(|name| name.contains(part));
    match architecture {
        // It recites: sampled, its sentences would break.
        _ if names.iter().any(|name| name == bundled::NAME) => stated(0.0, 1.0, 0, Some(0.0)),
        // README of deepseek-ai/DeepSeek-R1, "Usage Recommendations"; its distillates have the
        // architectures of others.
        _ if is_called("deepseek-r1") => {
            StatedSampling { top_k: None, ..stated(0.6, 0.95, 0, None) }
        }
        // README of Qwen/Qwen3-Coder-30B-A3B-Instruct, "Best Practices".
        "qwen3" | "qwen3moe" if is_called("qwen3-coder") => {
            StatedSampling { repetition_penalty: Some(1.05), ..stated(0.7, 0.8, 20, None) }
        }
        // README of Qwen/Qwen3-4B-Instruct-2507, "Best Practices": these do not think.
        "qwen3" | "qwen3moe" if is_called("instruct-2507") => stated(0.7, 0.8, 20, Some(0.0)),
        // README of Qwen/Qwen3-0.6B, "Best Practices", for its default, which is to think.
        "qwen3" | "qwen3moe" => stated(0.6, 0.95, 20, Some(0.0)),
        // generation_config.json of google/gemma-3-4b-it; 1 is the temperature of transformers.
        "gemma3" | "gemma3n" => stated(1.0, 0.95, 64, Some(0.0)),
        // README of HuggingFaceTB/SmolLM3-3B, "How to use".
        "smollm3" => StatedSampling { top_k: None, ..stated(0.6, 0.95, 0, None) },
        // README of HuggingFaceTB/SmolLM2-135M-Instruct, "How to use"; it states nothing else.
        "llama" if is_called("smollm2") => {
            StatedSampling { temperature: Some(0.2), top_p: Some(0.9), ..StatedSampling::default() }
        }
        _ => StatedSampling::default(),
    }
}

fn stated(temperature: f32, top_p: f32, top_k: u32, min_p: Option<f32>) -> StatedSampling {
    StatedSampling {
        temperature: Some(temperature),
        top_k: Some(top_k),
        top_p: Some(top_p),
        min_p,
        repetition_penalty: Some(1.0),
    }
}

#[cfg(test)]
mod tests {
    use loquent_formats::gguf::{GgufWriter, ReadLimits};

    use super::*;

    fn defaults(metadata: &[(&str, Value)]) -> SamplingDefaults {
        let metadata: Vec<(String, Value)> =
            metadata.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let file = GgufWriter::start(Vec::new(), &metadata, &[]).unwrap().finish().unwrap();
        let size = file.len() as u64;
        let header = Header::read(file.as_slice(), size, ReadLimits::default()).unwrap();
        sampling_defaults(&header, StatedSampling::default())
    }

    #[test]
    fn the_authors_values_are_used() {
        let found = defaults(&[
            ("general.sampling.temp", Value::F32(0.6)),
            ("general.sampling.top_k", Value::u32(20)),
            ("general.sampling.top_p", Value::F32(0.95)),
            ("general.sampling.min_p", Value::F32(0.0)),
            ("general.sampling.penalty_repeat", Value::F32(1.05)),
        ]);
        let expected =
            StatedSampling { repetition_penalty: Some(1.05), ..stated(0.6, 0.95, 20, Some(0.0)) };
        assert_eq!((found.file, found.vendor), (expected, StatedSampling::default()));
    }

    #[test]
    fn values_that_no_request_could_have_are_ignored() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.5, 1e30] {
            let names = ["temp", "top_p", "min_p", "penalty_repeat"];
            let names = names.map(|name| format!("general.sampling.{name}"));
            let values = names.each_ref().map(|name| (name.as_str(), Value::F32(bad)));
            assert_eq!(defaults(&values), SamplingDefaults::default(), "{bad}");
        }
        let text = [
            ("general.sampling.top_k", Value::string("many")),
            ("general.sampling.temp", Value::string("hot")),
        ];
        assert_eq!(defaults(&text), SamplingDefaults::default());
    }

    #[test]
    fn a_family_has_its_vendors_values_where_the_file_states_none() {
        let of = |architecture: &str, name: &str| {
            let found = defaults(&[
                ("general.architecture", Value::string(architecture)),
                ("general.name", Value::string(name)),
            ]);
            assert_eq!(found.file, StatedSampling::default());
            (found.vendor.temperature, found.vendor.top_p, found.vendor.top_k)
        };
        for (architecture, name, expected) in [
            ("qwen3", "Qwen3 0.6B", (Some(0.6), Some(0.95), Some(20))),
            ("qwen3", "Qwen3 4B Instruct 2507", (Some(0.7), Some(0.8), Some(20))),
            ("qwen3", "Qwen3 4B Thinking 2507", (Some(0.6), Some(0.95), Some(20))),
            ("qwen3moe", "Qwen3 Coder 30B A3B Instruct", (Some(0.7), Some(0.8), Some(20))),
            ("qwen3", "DeepSeek R1 0528 Qwen3 8B", (Some(0.6), Some(0.95), None)),
            ("gemma3", "Gemma 3 270m", (Some(1.0), Some(0.95), Some(64))),
            ("llama", "Smollm2 135M 8k Lc100K Mix1 Ep2", (Some(0.2), Some(0.9), None)),
            ("smollm3", "SmolLM3 3B", (Some(0.6), Some(0.95), None)),
            ("llama", "loquent-tiny", (Some(0.0), Some(1.0), Some(0))),
            ("llama", "Llama 3.2 1B", (None, None, None)),
        ] {
            assert_eq!(of(architecture, name), expected, "{name}");
        }
    }

    #[test]
    fn the_file_wins_over_the_vendor_and_a_flag_over_both() {
        let metadata = [
            ("general.architecture".to_owned(), Value::string("qwen3")),
            ("general.sampling.temp".to_owned(), Value::F32(0.3)),
        ];
        let file = GgufWriter::start(Vec::new(), &metadata, &[]).unwrap().finish().unwrap();
        let size = file.len() as u64;
        let header = Header::read(file.as_slice(), size, ReadLimits::default()).unwrap();
        let flag = StatedSampling { top_k: Some(5), ..StatedSampling::default() };
        let holds = sampling_defaults(&header, flag).stated();
        let holds = (holds.temperature, holds.top_k, holds.top_p);
        assert_eq!(holds, (Some(0.3), Some(5), Some(0.95)));
    }
}
