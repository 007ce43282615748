//! Needs of a test beside a processor and a disk. A test that does not find it
//! passes, because not every machine has it, but it says so in one way, which `tools/suites.py`
//! counts; and where `LOQUENT_REQUIRE` names it (`LOQUENT_REQUIRE=redis,avx512`) the test fails.
//! Under `make loom`, what explores a test's interleavings.

#![forbid(unsafe_code)]

#[cfg(loquent_loom)]
pub mod interleavings;
pub mod redis;

use std::fmt::Display;

/// Something that some machines lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The instructions of AVX2 with FMA and F16C.
    Avx2,
    /// The instructions of AVX2 with VNNI.
    AvxVnni,
    /// The instructions of AVX-512 with VNNI.
    Avx512,
    /// The tiles of AMX, for bytes.
    Amx,
    /// The bundled model, `models/loquent-tiny.gguf`.
    Model,
    /// The program `redis-server`.
    Redis,
    /// The right to make network namespaces and devices in them: root, mostly.
    Namespaces,
    /// The right to run a program as another user.
    Users,
    /// A second loopback address, 127.0.0.2, to listen on.
    Loopback,
    /// IPv6 on the loopback device.
    Ipv6,
    /// CUBIC among the kernel's congestion controls.
    Cubic,
    /// `/dev/full`, on which every write fails as on a full disk.
    DevFull,
}

impl Need {
    /// The name in `LOQUENT_REQUIRE` and in `tests/expected.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avx-vnni",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
            Self::Model => "model",
            Self::Redis => "redis",
            Self::Namespaces => "namespaces",
            Self::Users => "users",
            Self::Loopback => "loopback",
            Self::Ipv6 => "ipv6",
            Self::Cubic => "cubic",
            Self::DevFull => "dev-full",
        }
    }

    /// Returns `found`: true if this machine has it. If not, prints that and why.
    ///
    /// # Panics
    ///
    /// If `LOQUENT_REQUIRE` names what was not found.
    #[must_use]
    pub fn is_met(self, found: bool, why: impl Display) -> bool {
        if !found {
            self.lack(why);
        }
        found
    }

    /// Says that a test, or a part of it, is skipped because this machine lacks what it needs.
    ///
    /// # Panics
    ///
    /// If `LOQUENT_REQUIRE` names it.
    pub fn lack(self, why: impl Display) {
        let required = std::env::var("LOQUENT_REQUIRE").unwrap_or_default();
        let why = why.to_string();
        let why = why.trim();
        assert!(
            !is_listed(self.name(), &required),
            "LOQUENT_REQUIRE names {}, which this machine lacks: {why}",
            self.name()
        );
        eprintln!("skipped: needs {}: {why}", self.name());
    }
}

/// Returns true if a list like `redis, avx512` has `name`.
fn is_listed(name: &str, list: &str) -> bool {
    list.split(',').any(|listed| listed.trim() == name)
}

#[cfg(test)]
mod tests {
    //! What is required is found in the list, and nothing else is.
    use super::*;

    #[test]
    fn a_need_is_listed_by_its_whole_name() {
        assert!(is_listed("redis", "avx512, redis") && is_listed("redis", "redis"));
        assert!(!is_listed("avx2", "avx512,redis") && !is_listed("redis", ""));
    }
}
