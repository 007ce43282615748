//! Placeholder while the rest is built.
use super::judge::Trial;
use super::plan::{Plan, Scheme};
/// x
pub fn run(_plan: &Plan, _scheme: Scheme, _rtt_ms: f64) -> anyhow::Result<Trial> {
    anyhow::bail!("not yet")
}
