//! The sampling parameters that a model's author stored in its file.

use std::ops::RangeInclusive;

use loquent_engine::gguf::{Header, Value};
use loquent_server::SamplingDefaults;

/// Returns the defaults in `header`, and `otherwise` for those that it lacks. Values that would be
/// invalid in a request are ignored, because sampling relies on the bounds.
pub(super) fn sampling_defaults(header: &Header, otherwise: SamplingDefaults) -> SamplingDefaults {
    let number = |name: &str, range: RangeInclusive<f32>, otherwise: f32| match value(header, name)
    {
        None => otherwise,
        // NaN is in no range.
        Some(Value::F32(number)) if range.contains(number) => *number,
        Some(other) => ignore(name, other, otherwise),
    };
    let top_k = match value(header, "top_k") {
        None => otherwise.top_k,
        Some(number) => number
            .as_u64()
            .and_then(|k| u32::try_from(k).ok())
            .unwrap_or_else(|| ignore("top_k", number, otherwise.top_k)),
    };
    SamplingDefaults {
        temperature: number("temp", 0.0..=2.0, otherwise.temperature),
        top_k,
        top_p: number("top_p", 0.0..=1.0, otherwise.top_p),
        min_p: number("min_p", 0.0..=1.0, otherwise.min_p),
    }
}

fn value<'a>(header: &'a Header, name: &str) -> Option<&'a Value> {
    header.get(&format!("general.sampling.{name}"))
}

fn ignore<T>(name: &str, found: &Value, otherwise: T) -> T {
    tracing::warn!("the model file's general.sampling.{name} is ignored: {found:?}");
    otherwise
}

#[cfg(test)]
mod tests {
    use loquent_engine::gguf::{GgufWriter, ReadLimits};

    use super::*;

    fn defaults(values: &[(&str, Value)]) -> SamplingDefaults {
        let metadata: Vec<(String, Value)> = values
            .iter()
            .map(|(name, value)| (format!("general.sampling.{name}"), value.clone()))
            .collect();
        let file = GgufWriter::start(Vec::new(), &metadata, &[]).unwrap().finish().unwrap();
        let size = file.len() as u64;
        let header = Header::read(file.as_slice(), size, ReadLimits::default()).unwrap();
        sampling_defaults(&header, SamplingDefaults::default())
    }

    #[test]
    fn the_authors_values_are_used() {
        let found = defaults(&[
            ("temp", Value::F32(0.6)),
            ("top_k", Value::u32(20)),
            ("top_p", Value::F32(0.95)),
            ("min_p", Value::F32(0.0)),
        ]);
        let expected = SamplingDefaults { temperature: 0.6, top_k: 20, top_p: 0.95, min_p: 0.0 };
        assert_eq!(found, expected);
    }

    #[test]
    fn values_that_no_request_could_have_are_ignored() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.5, 1e30] {
            let names = ["temp", "top_p", "min_p"];
            let values = names.map(|name| (name, Value::F32(bad)));
            assert_eq!(defaults(&values), SamplingDefaults::default(), "{bad}");
        }
        let text = [("top_k", Value::string("many")), ("temp", Value::string("hot"))];
        assert_eq!(defaults(&text), SamplingDefaults::default());
    }
}
