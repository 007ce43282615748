//! Counters of a server before and after a run, from Prometheus text format.

use std::collections::BTreeMap;

/// Maximum number of series kept from one scrape; the rest is ignored.
const MAX_SERIES: usize = 20_000;

/// Values by series (name and labels as written).
pub type Series = BTreeMap<String, f64>;

/// Parses counters: series named `…_total`, `…_count` or `…_sum`, and series declared by a `# TYPE
/// … counter` line.
pub fn counters(text: &str) -> Series {
    let mut declared = std::collections::HashSet::new();
    let mut series = Series::new();
    for line in text.lines() {
        if let Some(name) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.strip_suffix(" counter"))
        {
            declared.insert(name.trim());
        }
        let Some((key, value)) = sample(line) else {
            continue;
        };
        let name = key.split('{').next().unwrap_or(key);
        let counts = ["_total", "_count", "_sum"].iter().any(|suffix| name.ends_with(suffix));
        if (counts || declared.contains(name)) && series.len() < MAX_SERIES {
            series.insert(key.to_owned(), value);
        }
    }
    series
}

/// Returns series and value of one line; `None` for comments and malformed lines.
fn sample(line: &str) -> Option<(&str, f64)> {
    if line.starts_with('#') {
        return None;
    }
    let end_of_key = match line.rfind('}') {
        Some(brace) => brace + 1,
        None => line.find(' ')?,
    };
    let (key, rest) = line.split_at(end_of_key);
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some((key.trim(), value))
}

/// Returns the growth of each counter; unchanged counters are left out.
pub fn growth(before: &Series, after: &Series) -> Series {
    let grew = |(key, value): (&String, &f64)| {
        let by = value - before.get(key).copied().unwrap_or(0.0);
        (by != 0.0).then(|| (key.clone(), by))
    };
    after.iter().filter_map(grew).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP a_total Things.
# TYPE a_total counter
a_total{x=\"1 } 2\"} 5
# TYPE odd counter
odd 3 1700000000
gauge 7
h_bucket{le=\"1\"} 2
h_sum 1.5e2
h_count 4
broken
also_total NaN
";

    #[test]
    fn only_counters_are_kept() {
        let expected: Series =
            [("a_total{x=\"1 } 2\"}", 5.0), ("odd", 3.0), ("h_sum", 150.0), ("h_count", 4.0)]
                .map(|(key, value)| (key.to_owned(), value))
                .into();
        assert_eq!(counters(TEXT), expected);
    }

    #[test]
    fn growth_counts_new_series_from_zero() {
        let before = counters("a_total 1\nb_total 2\n");
        let after = counters("a_total 4\nb_total 2\nc_total 5\n");
        let expected: Series = [("a_total".to_owned(), 3.0), ("c_total".to_owned(), 5.0)].into();
        assert_eq!(growth(&before, &after), expected);
    }

    #[test]
    fn rubbish_is_ignored() {
        assert!(counters("}\n{ }\n\u{0} \u{0}\n_total").is_empty());
    }
}
