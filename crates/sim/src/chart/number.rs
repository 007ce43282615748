//! Formatting of figures.

/// Formats a value with the decimals that suit its size: none for whole numbers, two significant
/// digits below 0.1.
pub fn number(value: f64) -> String {
    match value.abs() {
        _ if value == 0.0 => "0".into(),
        magnitude if value.fract() == 0.0 && magnitude < 1e15 => format!("{value:.0}"),
        magnitude if magnitude >= 100.0 => format!("{value:.1}"),
        magnitude if magnitude >= 1.0 => format!("{value:.2}"),
        magnitude if magnitude >= 0.1 => format!("{value:.3}"),
        magnitude if magnitude >= 1e-6 => {
            let decimals = 1 - magnitude.log10().floor() as i32;
            format!("{value:.*}", decimals.unsigned_abs() as usize)
        }
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> =
            [0.0, 64.0, 1234.56, 12.345, 0.1234, 0.01234, 0.00473, 0.000_123, -0.5, 1e-9]
                .into_iter()
                .map(number)
                .collect();
        let expected = [
            "0", "64", "1234.6", "12.35", "0.123", "0.012", "0.0047", "0.00012", "-0.500", "1.0e-9",
        ];
        assert_eq!(shown, expected);
    }
}
