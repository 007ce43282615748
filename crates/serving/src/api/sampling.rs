//! Sampling parameters that a request may leave open, and the places that state them instead: the
//! operator's flags, the model's file, the model's vendor, and last a default of the API.

use serde_json::{Map, Value, json};

/// Sampling parameters as one place states them; `None` where it states nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StatedSampling {
    /// Within `0..=2`; 0 is greedy.
    pub temperature: Option<f32>,
    /// Samples from the k most likely tokens; 0 from all.
    pub top_k: Option<u32>,
    /// Within `0..=1`; samples from the smallest set of tokens with this total probability.
    pub top_p: Option<f32>,
    /// Within `0..=1`; drops tokens less likely than this fraction of the most likely one.
    pub min_p: Option<f32>,
    /// Within `0.01..=10`; 1 is off.
    pub repetition_penalty: Option<f32>,
}

impl StatedSampling {
    /// Returns these parameters, completed by those of `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            repetition_penalty: self.repetition_penalty.or(other.repetition_penalty),
        }
    }

    /// Returns these parameters, completed by those of `general`.
    pub fn resolve(self, general: GeneralSampling) -> ResolvedSampling {
        let general = general.values();
        ResolvedSampling {
            temperature: self.temperature.unwrap_or(general.temperature),
            top_k: self.top_k.unwrap_or(general.top_k),
            top_p: self.top_p.unwrap_or(general.top_p),
            min_p: self.min_p.unwrap_or(general.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(general.repetition_penalty),
        }
    }

    /// Returns for each parameter, by its name in requests, whether it is stated.
    fn is_stated(&self) -> [(&'static str, bool); 5] {
        [
            ("temperature", self.temperature.is_some()),
            ("top_k", self.top_k.is_some()),
            ("top_p", self.top_p.is_some()),
            ("min_p", self.min_p.is_some()),
            ("repetition_penalty", self.repetition_penalty.is_some()),
        ]
    }
}

/// Sampling parameters, none of which is open.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResolvedSampling {
    /// Temperature; 0 is greedy.
    pub temperature: f32,
    /// Samples from the k most likely tokens; 0 from all.
    pub top_k: u32,
    /// Samples from the smallest set of tokens with this total probability; 1 from all.
    pub top_p: f32,
    /// Drops tokens less likely than this fraction of the most likely one; 0 drops none.
    pub min_p: f32,
    /// Divides the logits of tokens that have occurred; 1 is off.
    pub repetition_penalty: f32,
}

impl ResolvedSampling {
    /// Returns the parameters as an object, under their names in requests.
    pub fn to_json(self) -> Value {
        json!({
            "temperature": shortest(self.temperature),
            "top_k": self.top_k,
            "top_p": shortest(self.top_p),
            "min_p": shortest(self.min_p),
            "repetition_penalty": shortest(self.repetition_penalty),
        })
    }

    /// Reads what [`Self::to_json`] returned; `None` if a parameter is missing or out of bounds.
    pub fn from_json(json: &Value) -> Option<Self> {
        let number = |name: &str, [least, most]: [f64; 2]| {
            let number = json.get(name)?.as_f64()?;
            (least..=most).contains(&number).then_some(number as f32)
        };
        Some(Self {
            temperature: number("temperature", [0.0, 2.0])?,
            top_k: u32::try_from(json.get("top_k")?.as_u64()?).ok()?,
            top_p: number("top_p", [0.0, 1.0])?,
            min_p: number("min_p", [0.0, 1.0])?,
            repetition_penalty: number("repetition_penalty", [0.01, 10.0])?,
        })
    }
}

impl From<ResolvedSampling> for StatedSampling {
    fn from(it: ResolvedSampling) -> Self {
        Self {
            temperature: Some(it.temperature),
            top_k: Some(it.top_k),
            top_p: Some(it.top_p),
            min_p: Some(it.min_p),
            repetition_penalty: Some(it.repetition_penalty),
        }
    }
}

/// Parameters for what neither the request nor the operator nor the model states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GeneralSampling {
    /// The defaults of llama.cpp's server (`tools/server/README.md` there).
    #[default]
    LlamaServer,
    /// The defaults of Ollama (`DefaultOptions` in its `api/types.go`), for requests to `/api/*`.
    Ollama,
}

impl GeneralSampling {
    /// Returns the number of latest tokens to which the repetition penalty applies, `u32::MAX` for
    /// all.
    pub const fn repeat_last_n(self) -> u32 {
        match self {
            // vLLM's rule: the same endpoints know its name of the penalty, and have no default.
            Self::LlamaServer => u32::MAX,
            // Its penalty is on by default. Of all of a long prompt, it would spoil quotations.
            Self::Ollama => 64,
        }
    }

    /// Returns the parameters.
    pub const fn values(self) -> ResolvedSampling {
        match self {
            Self::LlamaServer => ResolvedSampling {
                temperature: 0.8,
                top_k: 40,
                top_p: 0.95,
                min_p: 0.05,
                repetition_penalty: 1.0,
            },
            Self::Ollama => ResolvedSampling {
                temperature: 0.8,
                top_k: 40,
                top_p: 0.9,
                min_p: 0.0,
                repetition_penalty: 1.1,
            },
        }
    }
}

/// Sampling parameters of one model for requests that leave them open, by the place that states
/// them. An earlier place has precedence.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingDefaults {
    /// The operator's flags.
    pub operator: StatedSampling,
    /// The model's file.
    pub file: StatedSampling,
    /// The documentation of the model's vendor.
    pub vendor: StatedSampling,
}

impl SamplingDefaults {
    /// Returns the parameters that any of the places states.
    pub fn stated(&self) -> StatedSampling {
        self.operator.or(self.file).or(self.vendor)
    }

    /// Returns the parameters that hold for a request that sets none, as an object, and under
    /// `from` the place that states each: `flag`, `model`, `vendor` or `default`.
    pub fn to_json(self) -> Value {
        let mut json = self.stated().resolve(GeneralSampling::default()).to_json();
        let (operator, file) = (self.operator.is_stated(), self.file.is_stated());
        let places = self.vendor.is_stated().into_iter().enumerate().map(|(at, (name, vendor))| {
            let place = match (operator[at].1, file[at].1, vendor) {
                (true, ..) => "flag",
                (_, true, _) => "model",
                (_, _, true) => "vendor",
                _ => "default",
            };
            (name.to_owned(), place.into())
        });
        json["from"] = Value::Object(places.collect::<Map<_, _>>());
        json
    }
}

/// Returns a number as the shortest text that means it: 0.8, not 0.800000011920929.
pub fn shortest(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temperature(value: f32) -> StatedSampling {
        StatedSampling { temperature: Some(value), ..StatedSampling::default() }
    }

    #[test]
    fn an_earlier_place_has_precedence_and_each_parameter_has_its_own() {
        let file = StatedSampling { top_k: Some(7), min_p: Some(0.0), ..temperature(0.5) };
        let vendor = StatedSampling { top_p: Some(0.7), top_k: Some(9), ..temperature(0.6) };
        let defaults = SamplingDefaults { operator: temperature(0.1), file, vendor };
        let asked = StatedSampling { top_k: Some(3), ..StatedSampling::default() };
        let holds = asked.or(defaults.stated()).resolve(GeneralSampling::LlamaServer);
        let expected = ResolvedSampling {
            temperature: 0.1,
            top_k: 3,
            top_p: 0.7,
            min_p: 0.0,
            repetition_penalty: 1.0,
        };
        assert_eq!(holds, expected);
        let ollama = asked.or(defaults.stated()).resolve(GeneralSampling::Ollama);
        assert_eq!(ollama, ResolvedSampling { repetition_penalty: 1.1, ..expected });
        let shown = json!({
            "temperature": 0.1, "top_k": 7, "top_p": 0.7, "min_p": 0.0, "repetition_penalty": 1.0,
            "from": {
                "temperature": "flag", "top_k": "model", "top_p": "vendor", "min_p": "model",
                "repetition_penalty": "default",
            },
        });
        assert_eq!(defaults.to_json(), shown);
    }

    #[test]
    fn without_any_place_the_general_ones_hold() {
        let none = SamplingDefaults::default().stated();
        let values = |general| {
            let it = none.resolve(general);
            [it.temperature, it.top_k as f32, it.top_p, it.min_p, it.repetition_penalty]
        };
        assert_eq!(values(GeneralSampling::LlamaServer), [0.8, 40.0, 0.95, 0.05, 1.0]);
        assert_eq!(values(GeneralSampling::Ollama), [0.8, 40.0, 0.9, 0.0, 1.1]);
    }

    #[test]
    fn resolved_ones_come_back_from_their_json_and_others_do_not() {
        for least in [true, false] {
            let pick = |low: f32, high: f32| if least { low } else { high };
            let sampling = ResolvedSampling {
                temperature: pick(0.0, 0.123_456_79),
                top_k: if least { 0 } else { u32::MAX },
                top_p: pick(0.0, 1.0),
                min_p: pick(0.0, 0.05),
                repetition_penalty: pick(0.01, 10.0),
            };
            let text = sampling.to_json().to_string();
            let read = serde_json::from_str(&text).unwrap();
            assert_eq!(ResolvedSampling::from_json(&read), Some(sampling));
            for (name, wrong) in [
                ("temperature", json!(2.5)),
                ("temperature", json!("hot")),
                ("top_k", json!(-1)),
                ("top_p", json!(1.5)),
                ("min_p", Value::Null),
                ("repetition_penalty", json!(0)),
            ] {
                let mut read: Value = serde_json::from_str(&text).unwrap();
                read[name] = wrong;
                assert_eq!(ResolvedSampling::from_json(&read), None, "{name}");
            }
        }
    }
}
