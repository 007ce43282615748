//! Memory that a model needs, and memory that is available.

use std::fs;

use super::sys;
use crate::KvType;
use loquent_formats::gguf::Header;

/// ggml's number of a KV cache's element type.
pub(super) fn ggml_type(kind: KvType) -> sys::ggml_type {
    match kind {
        KvType::F32 => sys::GGML_TYPE_F32,
        KvType::F16 => sys::GGML_TYPE_F16,
        KvType::Q8_0 => sys::GGML_TYPE_Q8_0,
    }
}

/// Estimates the KV cache's size in bytes for `cells` tokens: exact for plain transformers, an
/// upper bound for models with windows or recurrent layers; 0 if the header lacks sizes.
pub(super) fn kv_bytes(header: &Header, cells: u32, kv: KvType) -> u64 {
    kv.bytes(header.kv_elements().saturating_mul(cells.into()))
}

/// Memory that is available without swapping, in bytes; `None` on systems other than Linux.
pub fn available_bytes() -> Option<u64> {
    let free = meminfo_available(&fs::read_to_string("/proc/meminfo").ok()?)?;
    // A container's limit may be lower than the machine's memory. What the container uses already
    // is not subtracted, so that this is an upper bound.
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
    //! Parsing Linux's report of its memory.
    use super::*;

    #[test]
    fn reads_meminfo() {
        let text = "MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:   64 kB\n";
        assert_eq!(meminfo_available(text), Some(65536));
        assert_eq!(meminfo_available("MemTotal: 1 kB"), None);
    }
}
