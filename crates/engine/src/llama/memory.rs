//! How much memory a model needs, and how much there is.

use std::fs;

use super::sys;
use crate::gguf::Header;

/// Element type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    /// 32-bit floats: exact, twice the memory.
    F32,
    /// 16-bit floats.
    #[default]
    F16,
    /// 8-bit blocks: about half of `F16`; needs flash attention.
    Q8_0,
}

impl KvType {
    pub(super) fn ggml(self) -> sys::ggml_type {
        match self {
            KvType::F32 => sys::GGML_TYPE_F32,
            KvType::F16 => sys::GGML_TYPE_F16,
            KvType::Q8_0 => sys::GGML_TYPE_Q8_0,
        }
    }

    /// Bytes that `elements` elements take.
    pub fn bytes(self, elements: u64) -> u64 {
        match self {
            KvType::F32 => elements.saturating_mul(4),
            KvType::F16 => elements.saturating_mul(2),
            KvType::Q8_0 => (elements / 32 + 1).saturating_mul(34),
        }
    }
}

/// An estimate of the KV cache's size for `cells` tokens: exact for plain
/// transformers, too high for models with windows or recurrent layers; 0 where the
/// header does not say enough.
pub(super) fn kv_bytes(header: &Header, cells: u32, kv: KvType) -> u64 {
    kv.bytes(header.kv_elements().saturating_mul(cells.into()))
}

/// Memory that can still be had without swapping, in bytes; `None` where the system
/// does not say (only Linux does).
pub(super) fn available_bytes() -> Option<u64> {
    let free = meminfo_available(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
    Some(free.min(limit))
}

fn meminfo_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    //! Parsing what Linux says of its memory.
    use super::*;

    #[test]
    fn reads_meminfo() {
        let text = "MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:   64 kB\n";
        assert_eq!(meminfo_available(text), Some(65536));
        assert_eq!(meminfo_available("MemTotal: 1 kB"), None);
    }
}
