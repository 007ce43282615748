//! Distributions over the next token, and how far two of them are from each other.

use std::collections::HashMap;

/// Log-probabilities of the most likely tokens, the best first.
pub type Distribution = Vec<(u32, f32)>;

/// How far distributions are from the exact ones, over all positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Divergence {
    /// Kullback-Leibler divergence in nats: the mean.
    pub mean_kl: f64,
    /// The same at the middle one of the positions.
    pub median_kl: f64,
    /// Share of positions whose most likely token is the same.
    pub top_agreement: f64,
}

impl Divergence {
    /// Of `found` from `exact`, position by position.
    pub fn of(exact: &[Distribution], found: &[Distribution]) -> Self {
        assert_eq!(exact.len(), found.len(), "the same positions");
        let pairs = || exact.iter().zip(found);
        let mut kls: Vec<f64> = pairs().map(|(exact, found)| kl(exact, found)).collect();
        let agree = pairs().filter(|(exact, found)| exact[0].0 == found[0].0).count();
        let count = exact.len() as f64;
        let mean_kl = kls.iter().sum::<f64>() / count;
        kls.sort_by(f64::total_cmp);
        Self { mean_kl, median_kl: kls[kls.len() / 2], top_agreement: agree as f64 / count }
    }
}

/// Divergence of `q` from `p`; tokens that only one of them names count together with the rest.
fn kl(p: &Distribution, q: &Distribution) -> f64 {
    let others: HashMap<u32, f32> = q.iter().copied().collect();
    // For small differences, p (ln p - ln q) + q - p: without the second part, terms of both
    // signs that are larger than the result would cancel, and leave the rounding of f32.
    let term = |p: f64, q: f64| p * (p / q).ln() + q - p;
    let (mut sum, mut rest_p, mut rest_q) = (0.0, 1.0, 1.0);
    for (token, p) in p {
        if let Some(q) = others.get(token) {
            let (p, q) = (f64::from(*p).exp(), f64::from(*q).exp());
            sum += term(p, q);
            rest_p -= p;
            rest_q -= q;
        }
    }
    if rest_p > 1e-5 && rest_q > 1e-5 {
        sum += term(rest_p, rest_q);
    }
    assert!(sum.is_finite(), "log-probabilities are numbers");
    sum
}

#[test]
fn divergence_is_known_where_it_can_be_computed_by_hand() {
    let distribution = |p: [f32; 2]| vec![(0, p[0].ln()), (1, p[1].ln())];
    let (even, uneven) = (distribution([0.5, 0.5]), distribution([0.75, 0.25]));
    let by_hand = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
    assert!((kl(&even, &uneven) - by_hand).abs() < 1e-6);
    assert!(kl(&even, &even).abs() < 1e-9);
    // A quarter of the mass is named by one only.
    let three = vec![(0, 0.5f32.ln()), (2, 0.25f32.ln())];
    assert!((kl(&three, &even) - 0.0).abs() < 1e-6, "half is 0, half is the rest");
}
