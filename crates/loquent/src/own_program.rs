//! Where the running program is, for processes that have to speak its own version of a protocol.

use std::io;
use std::path::PathBuf;

/// Returns the running program, even if its file has been replaced since it started.
#[cfg(target_os = "linux")]
pub fn path() -> io::Result<PathBuf> {
    Ok("/proc/self/exe".into())
}

/// Returns the running program's file.
#[cfg(not(target_os = "linux"))]
pub fn path() -> io::Result<PathBuf> {
    std::env::current_exe()
}
