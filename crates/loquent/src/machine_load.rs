//! Work of other programs on this machine, which distorts what is measured.

/// Load average of the last minute above which the machine does not count as idle.
const MAX_LOAD: f64 = 0.5;

/// Warns if other work runs on this machine, and says with `consequence` what that means for the
/// measurement.
pub(crate) fn warn_if_busy(consequence: &str) {
    let average = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    if let Some(warning) = warning(&average, consequence) {
        tracing::warn!("{warning}");
    }
}

/// Returns the warning for the content of `/proc/loadavg`, if one is due.
fn warning(average: &str, consequence: &str) -> Option<String> {
    let load: f64 = average.split(' ').next()?.parse().ok()?;
    (load > MAX_LOAD).then(|| {
        format!(
            "this machine is busy (load {load:.1} in the last minute): {consequence}. Measure \
             again when nothing else runs."
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_named_and_an_idle_one_is_not() {
        let busy = warning("1.72 0.40 0.10 3/200 4711\n", "it is slow").unwrap();
        assert!(busy.contains("load 1.7") && busy.contains("it is slow"), "{busy}");
        for idle in ["0.31 1.90 2.00 1/200 4711", "", "nonsense"] {
            assert_eq!(warning(idle, ""), None, "{idle}");
        }
    }
}
