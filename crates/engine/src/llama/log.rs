//! llama.cpp's log: forwarded to `tracing` at level debug. The last errors are kept, because
//! llama.cpp's functions return no reason when they fail.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_void};

use super::sys;

/// Maximum error lines kept per thread.
const KEPT_LINES: usize = 8;

thread_local! {
    // Per thread, so that two loads at once do not mix their messages.
    static ERRORS: RefCell<VecDeque<String>> = const { RefCell::new(VecDeque::new()) };
}

/// Routes llama.cpp's log here instead of to stderr.
pub(super) fn install() {
    // SAFETY: the callback is a plain function that lives as long as the process.
    unsafe { sys::llama_log_set(Some(handle_line), std::ptr::null_mut()) }
}

/// Drops the errors logged by this thread so far.
pub(super) fn clear_errors() {
    ERRORS.with_borrow_mut(VecDeque::clear);
}

/// Returns the errors logged by this thread since [`clear_errors`], oldest first.
pub(super) fn take_errors() -> Vec<String> {
    ERRORS.with_borrow_mut(|lines| lines.drain(..).collect())
}

/// Returns the first error, which caused the later ones, or a text saying that there was none.
pub(super) fn take_reason() -> String {
    let first = take_errors().into_iter().next();
    first.unwrap_or_else(|| "llama.cpp gave no reason".to_owned())
}

unsafe extern "C" fn handle_line(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: llama.cpp passes a NUL-terminated string that lives through the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let line = text.trim();
    // Progress is logged as single dots.
    if line.is_empty() || line == "." {
        return;
    }
    if level == sys::GGML_LOG_LEVEL_ERROR {
        ERRORS.with_borrow_mut(|lines| keep(lines, without_function(line)));
    }
    tracing::debug!(target: "llama.cpp", "{line}");
}

fn keep(lines: &mut VecDeque<String>, line: &str) {
    if lines.len() == KEPT_LINES {
        lines.pop_front();
    }
    lines.push_back(line.to_owned());
}

/// Returns the line without the `function_name: ` that llama.cpp puts first.
fn without_function(line: &str) -> &str {
    match line.split_once(": ") {
        Some((head, rest)) if head.chars().all(|c| c.is_alphanumeric() || c == '_') => rest,
        _ => line,
    }
}
