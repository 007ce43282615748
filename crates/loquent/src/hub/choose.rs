//! Selects the GGUF file that a [`HubSpec`] refers to, or all parts of a split one.

use std::collections::BTreeMap;

use super::error::HubError;
use super::spec::{HubSpec, Selector, is_gguf};

/// Quantisations tried in turn when none was named: the usual size for a CPU or a small GPU, then
/// the nearly lossless one.
const DEFAULT_QUANTS: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// One model of a repository: a single file, or all parts of a split one in order.
pub(crate) type Model<'a> = Vec<&'a str>;

/// Returns the files to fetch for `spec` from the repository's `files`: one, or every part of a
/// split model in order.
pub(super) fn parts<'a>(spec: &HubSpec, files: &[&'a str]) -> Result<Model<'a>, HubError> {
    let models = models(files);
    let missing = |wanted: String| HubError::FileNotFound {
        repo: spec.repo.clone(),
        wanted,
        available: files.iter().filter(|f| is_gguf(f)).map(|f| (*f).to_owned()).collect(),
    };
    if models.is_empty() {
        return Err(HubError::NoGguf { repo: spec.repo.clone() });
    }
    let chosen = match &spec.selector {
        Selector::File(name) => {
            let found = models.into_iter().find(|model| model.contains(&name.as_str()));
            found.ok_or_else(|| missing(name.clone()))?
        }
        Selector::Quant(tag) => {
            one_of(spec, with_quant(&models, tag))?.ok_or_else(|| missing(tag.clone()))?
        }
        Selector::Default => default_model(spec, models)?,
    };
    let whole = is_complete(&chosen).then_some(chosen);
    whole.ok_or_else(|| missing("every part of the split model".to_owned()))
}

fn default_model<'a>(spec: &HubSpec, models: Vec<Model<'a>>) -> Result<Model<'a>, HubError> {
    // Left out only here: a companion that the user names is fetched like any other file.
    let models: Vec<_> = models.into_iter().filter(|model| !is_companion(model[0])).collect();
    for quant in DEFAULT_QUANTS {
        if let Some(model) = one_of(spec, with_quant(&models, quant))? {
            return Ok(model);
        }
    }
    one_of(spec, models)?.ok_or_else(|| HubError::NoGguf { repo: spec.repo.clone() })
}

/// Returns the single candidate. Among several, one in the repository's root wins over those in
/// folders; otherwise the user must choose.
fn one_of<'a>(spec: &HubSpec, found: Vec<Model<'a>>) -> Result<Option<Model<'a>>, HubError> {
    if found.len() <= 1 {
        return Ok(found.into_iter().next());
    }
    // Copies in folders are usually older versions, or parts for other tools.
    let mut in_root: Vec<_> = found.iter().filter(|model| !model[0].contains('/')).collect();
    match (in_root.pop(), in_root.is_empty()) {
        (Some(model), true) => Ok(Some(model.clone())),
        _ => Err(HubError::Ambiguous {
            repo: spec.repo.clone(),
            candidates: found.iter().map(|model| model[0].to_owned()).collect(),
        }),
    }
}

/// Groups the GGUF files into models, by the name shared by the parts of a split one.
pub(crate) fn models<'a>(files: &[&'a str]) -> Vec<Model<'a>> {
    let mut groups: BTreeMap<(&str, usize), Model<'a>> = BTreeMap::new();
    for file in files.iter().copied().filter(|file| is_gguf(file)) {
        // The count is part of the key: a repository may hold the same model split into two and
        // into five parts, and parts of both together are no model.
        let key = split_of(file).map_or((file, 1), |(stem, _, count)| (stem, count));
        groups.entry(key).or_default().push(file);
    }
    for model in groups.values_mut() {
        model.sort_unstable();
    }
    groups.into_values().collect()
}

/// Returns true if all parts of the model are present.
pub(crate) fn is_complete(model: &[&str]) -> bool {
    model.iter().enumerate().all(|(index, file)| match split_of(file) {
        Some((_, number, count)) => number == index + 1 && count == model.len(),
        None => model.len() == 1,
    })
}

/// Returns stem, number and count of `STEM-00001-of-00003.gguf`, llama.cpp's naming of split files.
pub(crate) fn split_of(file: &str) -> Option<(&str, usize, usize)> {
    let stem = without_extension(file)?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let five_digits = |text: &str| {
        let digits = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse::<usize>().ok()).flatten()
    };
    Some((stem, five_digits(number)?, five_digits(count)?))
}

/// Returns `file` without `.gguf`, if it has that extension.
pub(crate) fn without_extension(file: &str) -> Option<&str> {
    is_gguf(file).then(|| &file[..file.len() - ".gguf".len()])
}

/// Returns the suffix that selects one of several `models` after the repository's name: its
/// quantisation if no other has the same, else the name of its (first) file.
pub(crate) fn selector<'a>(models: &[Model<'a>], model: &[&'a str]) -> String {
    let tag = quantisation(model[0]).filter(|tag| {
        let found = with_quant(models, tag);
        found.len() == 1 && found[0] == model
    });
    tag.map_or_else(|| model[0].to_owned(), str::to_ascii_uppercase)
}

/// Returns the quantisation in a file's name, such as `Q4_K_M`.
fn quantisation(file: &str) -> Option<&str> {
    let name = file.rsplit('/').next().unwrap_or(file);
    let stem = split_of(name).map(|(stem, _, _)| stem).or_else(|| without_extension(name))?;
    stem.rsplit(['-', '.']).find(|word| is_quantisation(&word.to_ascii_uppercase()))
}

fn is_quantisation(word: &str) -> bool {
    if matches!(word, "F16" | "F32" | "BF16" | "FP16" | "MXFP4") {
        return true;
    }
    let number = ["IQ", "TQ", "Q"].iter().find_map(|kind| word.strip_prefix(kind));
    let mut rest = number.unwrap_or_default().chars();
    rest.next().is_some_and(|first| first.is_ascii_digit())
        && rest.next() == Some('_')
        && rest.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns the models whose name (file or folder) contains the quantisation tag as a separate word:
/// `Q4_K` is not part of `Q4_K_M`, nor `Q4_XS` of `IQ4_XS`.
fn with_quant<'a>(models: &[Model<'a>], tag: &str) -> Vec<Model<'a>> {
    let tag = tag.to_ascii_uppercase();
    let carries = |model: &&Model<'_>| {
        let name = model[0].to_ascii_uppercase();
        !is_companion(model[0]) && name.match_indices(&tag).any(|(at, _)| is_word(&name, at, &tag))
    };
    models.iter().filter(carries).cloned().collect()
}

fn is_word(name: &str, at: usize, tag: &str) -> bool {
    let before = name[..at].chars().next_back();
    let after = name[at + tag.len()..].chars().next();
    before.is_none_or(|c| !c.is_alphanumeric())
        // An underscore continues a tag (Q4_K, Q4_K_M), but may stand before one (model_Q4_K).
        && after.is_none_or(|c| !c.is_alphanumeric() && c != '_')
}

/// Returns true for GGUF files that accompany a model but are not models: image projectors,
/// importance matrices.
pub(crate) fn is_companion(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file).to_ascii_lowercase();
    name.contains("mmproj") || name.contains("imatrix")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(spec: &str, files: &[&str]) -> Result<Vec<String>, String> {
        let parts = parts(&spec.parse().unwrap(), files).map_err(|e| e.to_string())?;
        Ok(parts.into_iter().map(str::to_owned).collect())
    }

    #[test]
    fn the_default_prefers_q4_k_m_then_q8_0_then_the_only_model() {
        let all =
            ["README.md", "m-IQ4_XS.gguf", "m-q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-Q8_0.gguf"];
        assert_eq!(chosen("a/b", &all).unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(chosen("a/b", &all[..3]).unwrap(), ["m-q8_0.gguf"]);
        assert_eq!(chosen("a/b", &["mmproj.gguf", "m-f16.gguf"]).unwrap(), ["m-f16.gguf"]);
        assert!(chosen("a/b", &["x-f16.gguf", "y-f16.gguf"]).unwrap_err().contains("x-f16.gguf"));
        assert!(chosen("a/b", &["model.safetensors"]).unwrap_err().contains("no GGUF"));
    }

    #[test]
    fn a_models_own_selector_selects_it() {
        let files = [
            "m-Q4_K_M.gguf",
            "m-q8_0.gguf",
            "m-UD-Q4_K_XL.gguf",
            "model_Q6_K.gguf",
            "BF16/m-BF16-00001-of-00002.gguf",
            "BF16/m-BF16-00002-of-00002.gguf",
        ];
        let models = models(&files);
        let selectors: Vec<_> = models.iter().map(|model| selector(&models, model)).collect();
        assert_eq!(selectors, ["BF16", "Q4_K_M", "Q4_K_XL", "Q8_0", "model_Q6_K.gguf"]);
        for (model, selector) in models.iter().zip(&selectors) {
            assert_eq!(&chosen(&format!("a/b:{selector}"), &files).unwrap(), model);
        }
        // Two files of one quantisation are told apart by their names.
        let twice = ["a-Q8_0.gguf", "b-Q8_0.gguf"];
        let models = super::models(&twice);
        assert_eq!(selector(&models, &models[1]), "b-Q8_0.gguf");
    }

    #[test]
    fn a_tag_matches_as_a_whole_word_only() {
        let files = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-IQ4_XS.gguf", "m.q4_k.gguf"];
        assert_eq!(chosen("a/b:Q4_K", &files).unwrap(), ["m.q4_k.gguf"]);
        assert_eq!(chosen("a/b:iq4_xs", &files).unwrap(), ["m-IQ4_XS.gguf"]);
        let error = chosen("a/b:Q4_XS", &files).unwrap_err();
        assert!(error.contains("m-Q4_K_S.gguf"), "the files there are should be listed: {error}");
    }

    #[test]
    fn all_parts_of_a_split_model_are_taken_in_order() {
        let files = [
            "Q8_0/m-00002-of-00002.gguf",
            "Q8_0/m-00001-of-00002.gguf",
            "m-F16-00001-of-00003.gguf",
        ];
        let both = ["Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf"];
        assert_eq!(chosen("a/b:Q8_0", &files).unwrap(), both);
        assert_eq!(chosen("a/b:Q8_0/m-00002-of-00002.gguf", &files).unwrap(), both);
        assert!(chosen("a/b:F16", &files).is_err(), "two of three parts are missing");
    }

    #[test]
    fn a_file_in_the_root_wins_over_folders() {
        let files = ["m-Q4_K_M.gguf", "old/m-Q4_K_M.gguf"];
        assert_eq!(chosen("a/b", &files).unwrap(), ["m-Q4_K_M.gguf"]);
    }
}
