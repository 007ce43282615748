//! Keeps prompts, answers and keys out of core dumps and away from debuggers.

/// Makes this process one that only root can debug, and that leaves no core dump: both show its
/// whole memory (PR_SET_DUMPABLE in prctl(2)). Programs that it starts have to do this themselves.
#[cfg(target_os = "linux")]
pub fn keep() {
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        tracing::warn!("other programs of this user can read prompts and keys: {error}");
    }
}

/// Other systems have no such call.
#[cfg(not(target_os = "linux"))]
pub fn keep() {}
