//! A machine as given to `loquent split --for`: `24GiB`, or `24GiB@95` with its speed.

use anyhow::ensure;
use loquent_formats::gguf::split::StageMachine;

/// A machine as given on the command line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct NamedMachine {
    memory_bytes: u64,
    /// Memory speed in GB/s.
    speed: Option<f64>,
}

/// Converts the machines, with equal speeds unless all have one.
///
/// # Errors
/// If only some have a speed.
pub(super) fn resolve(machines: &[NamedMachine]) -> anyhow::Result<Vec<StageMachine>> {
    let known = machines.iter().filter(|machine| machine.speed.is_some()).count();
    ensure!(
        known == 0 || known == machines.len(),
        "--for: give the speed of all machines or of none"
    );
    let resolved = machines.iter().map(|machine| StageMachine {
        memory_bytes: machine.memory_bytes,
        speed: machine.speed.unwrap_or(1.0),
    });
    Ok(resolved.collect())
}

/// Units of memory, longer names first.
const UNITS: [(&str, u64); 8] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("G", 1 << 30),
    ("M", 1 << 20),
];

/// Parses `MEMORY` or `MEMORY@SPEED`.
pub(super) fn parse_machine(text: &str) -> Result<NamedMachine, String> {
    let (memory, speed) = match text.split_once('@') {
        Some((memory, speed)) => (memory, Some(speed.trim().parse::<f64>().ok())),
        None => (text, None),
    };
    let is_real = |speed: &Option<f64>| speed.is_some_and(|speed| (1e-3..=1e6).contains(&speed));
    match (parse_memory(memory.trim()), speed) {
        (Some(memory_bytes), speed) if speed.as_ref().is_none_or(is_real) => {
            Ok(NamedMachine { memory_bytes, speed: speed.flatten() })
        }
        _ => Err("use memory and, behind @, GB/s, such as 24GiB or 24GiB@95".to_owned()),
    }
}

fn parse_memory(text: &str) -> Option<u64> {
    let (number, unit) = UNITS.iter().find_map(|(name, bytes)| {
        text.strip_suffix(name).map(|number| (number.trim_end(), *bytes))
    })?;
    let number = number.parse::<f64>().ok().filter(|number| (0.0..=1e6).contains(number))?;
    let bytes = (number * unit as f64) as u64;
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_a_unit_and_speed_is_optional() {
        let machine = |memory_bytes, speed| Ok(NamedMachine { memory_bytes, speed });
        assert_eq!(parse_machine("24GiB"), machine(24 << 30, None));
        assert_eq!(parse_machine("1.5 GiB @ 95.5"), machine(3 << 29, Some(95.5)));
        assert_eq!(parse_machine("500MB@3"), machine(500_000_000, Some(3.0)));
        for wrong in ["24", "GiB", "-1GiB", "0GiB", "24GiB@", "24GiB@0", "24GiB@-1", "1e99GiB"] {
            assert!(parse_machine(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn all_machines_have_a_speed_or_none_has() {
        let machines = |texts: [&str; 2]| resolve(&texts.map(|text| parse_machine(text).unwrap()));
        assert_eq!(machines(["1GiB", "2GiB"]).unwrap()[1].speed, 1.0);
        assert_eq!(machines(["1GiB@5", "2GiB@7"]).unwrap()[1].speed, 7.0);
        assert!(machines(["1GiB@5", "2GiB"]).is_err());
    }
}
