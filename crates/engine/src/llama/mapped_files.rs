//! Files that are mapped into memory, as models are: if one becomes shorter, or its disk fails,
//! reading it ends the process by SIGBUS (`mmap(2)`), which says nothing by itself.

const EXPLANATION: &str = "loquent: a model's file was overwritten or cut while it was in use, or \
     its disk failed (SIGBUS). Replace a model by moving another file to its name (mv) instead of \
     writing into it (cp); with --engine-process the server survives this.\n";

/// Makes the process say why it ends.
pub(super) fn explain_bus_errors() {
    // SAFETY: all fields are set or may be zero, and the handler does only what handlers may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = explain as *const () as usize;
        // What failed fails once more after the handler, and then ends the process as ever.
        action.sa_flags = libc::SA_RESETHAND;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

extern "C" fn explain(_signal: libc::c_int) {
    // SAFETY: `write` is async-signal-safe (`signal-safety(7)`), and the text is static.
    unsafe { libc::write(libc::STDERR_FILENO, EXPLANATION.as_ptr().cast(), EXPLANATION.len()) };
}
