//! Calls of llama.cpp whose C++ exceptions and failed assertions become errors
//! (`native/guard.cpp`).

use std::ffi::{CStr, c_char};

use super::sys;

unsafe extern "C" {
    fn loquent_guard_install();
    fn loquent_guarded_tokenize(
        vocab: *const sys::llama_vocab,
        text: *const c_char,
        length: i32,
        tokens: *mut sys::llama_token,
        room: i32,
        parse_special: bool,
        count: *mut i32,
        error: *mut c_char,
        error_room: usize,
    ) -> bool;
    fn loquent_guarded_load(
        path: *const c_char,
        params: sys::llama_model_params,
        model: *mut *mut sys::llama_model,
        error: *mut c_char,
        error_room: usize,
    ) -> bool;
    fn loquent_guarded_context(
        model: *mut sys::llama_model,
        params: sys::llama_context_params,
        context: *mut *mut sys::llama_context,
        error: *mut c_char,
        error_room: usize,
    ) -> bool;
    fn loquent_guarded_decode(
        context: *mut sys::llama_context,
        batch: sys::llama_batch,
        status: *mut i32,
        error: *mut c_char,
        error_room: usize,
    ) -> bool;
    fn loquent_guarded_state_size(
        context: *mut sys::llama_context,
        slot: i32,
        size: *mut usize,
        error: *mut c_char,
        error_room: usize,
    ) -> bool;
    fn loquent_guarded_state(
        context: *mut sys::llama_context,
        slot: i32,
        state: *mut u8,
        size: usize,
        written: *mut usize,
        error: *mut c_char,
        error_room: usize,
    ) -> bool;
    fn loquent_guarded_set_state(
        context: *mut sys::llama_context,
        slot: i32,
        state: *const u8,
        size: usize,
        read: *mut usize,
        error: *mut c_char,
        error_room: usize,
    ) -> bool;
}

/// Turns failed assertions inside the calls below into errors.
pub(super) fn install() {
    // SAFETY: sets a function pointer, once, before any other call of the library.
    unsafe { loquent_guard_install() }
}

/// Runs `call` with a buffer for the text of an exception; `call` returns true if there was none.
fn guarded(call: impl FnOnce(*mut c_char, usize) -> bool) -> Result<(), String> {
    let mut error = [0u8; 256];
    if call(error.as_mut_ptr().cast(), error.len()) {
        return Ok(());
    }
    let text = CStr::from_bytes_until_nul(&error).map(CStr::to_string_lossy);
    Err(text.unwrap_or_default().into_owned())
}

/// `llama_tokenize` without begin and end tokens: returns the number of tokens, or, negated, the
/// number of tokens if `tokens` is too small.
///
/// # Errors
/// The text of an exception.
///
/// # Safety
/// `vocab` belongs to a live model.
pub(super) unsafe fn tokenize(
    vocab: *const sys::llama_vocab,
    text: &str,
    tokens: &mut [sys::llama_token],
    parse_special: bool,
) -> Result<i32, String> {
    let bytes = text.as_ptr().cast::<c_char>();
    let length = i32::try_from(text.len()).map_err(|_| "it is longer than 2 GiB".to_owned())?;
    let room = i32::try_from(tokens.len()).unwrap_or(i32::MAX);
    let (tokens, mut count) = (tokens.as_mut_ptr(), 0);
    guarded(|error, error_room| {
        // SAFETY: `text` has `length` bytes, `tokens` room for `room`, `error` for `error_room`;
        // the function is thread-safe by its documentation.
        unsafe {
            loquent_guarded_tokenize(
                vocab,
                bytes,
                length,
                tokens,
                room,
                parse_special,
                &raw mut count,
                error,
                error_room,
            )
        }
    })?;
    Ok(count)
}

/// `llama_model_load_from_file`; returns null if it refuses.
///
/// # Errors
/// The text of an exception.
///
/// # Safety
/// What `params` points to lives through the call.
pub(super) unsafe fn load(
    path: &CStr,
    params: sys::llama_model_params,
) -> Result<*mut sys::llama_model, String> {
    let mut model = std::ptr::null_mut();
    guarded(|error, room| {
        // SAFETY: `path` is NUL-terminated, `error` has `room` bytes, the caller vouches for the
        // rest.
        unsafe { loquent_guarded_load(path.as_ptr(), params, &raw mut model, error, room) }
    })?;
    Ok(model)
}

/// `llama_init_from_model`; returns null if it refuses.
///
/// # Errors
/// The text of an exception.
///
/// # Safety
/// `model` is alive and `params` came from `llama_context_default_params`.
pub(super) unsafe fn context(
    model: *mut sys::llama_model,
    params: sys::llama_context_params,
) -> Result<*mut sys::llama_context, String> {
    let mut context = std::ptr::null_mut();
    guarded(|error, room| {
        // SAFETY: `error` has `room` bytes, the caller vouches for the rest.
        unsafe { loquent_guarded_context(model, params, &raw mut context, error, room) }
    })?;
    Ok(context)
}

/// `llama_decode`: its status.
///
/// # Errors
/// The text of an exception.
///
/// # Safety
/// `context` is alive, and the arrays of `batch` have `n_tokens` valid items.
pub(super) unsafe fn decode(
    context: *mut sys::llama_context,
    batch: sys::llama_batch,
) -> Result<i32, String> {
    let mut status = 0;
    guarded(|error, room| {
        // SAFETY: `error` has `room` bytes, the caller vouches for the rest.
        unsafe { loquent_guarded_decode(context, batch, &raw mut status, error, room) }
    })?;
    Ok(status)
}

/// `llama_state_seq_get_size`.
///
/// # Errors
/// The text of an exception or of a failed assertion.
///
/// # Safety
/// `context` is alive and has the sequence `slot`.
pub(super) unsafe fn state_size(
    context: *mut sys::llama_context,
    slot: u16,
) -> Result<usize, String> {
    let mut size = 0;
    guarded(|error, room| {
        // SAFETY: `error` has `room` bytes, the caller vouches for the rest.
        unsafe { loquent_guarded_state_size(context, slot.into(), &raw mut size, error, room) }
    })?;
    Ok(size)
}

/// `llama_state_seq_get_data`: the bytes written.
///
/// # Errors
/// The text of an exception or of a failed assertion.
///
/// # Safety
/// `context` is alive and has the sequence `slot`.
pub(super) unsafe fn state(
    context: *mut sys::llama_context,
    slot: u16,
    state: &mut [u8],
) -> Result<usize, String> {
    let (start, size, mut written) = (state.as_mut_ptr(), state.len(), 0);
    guarded(|error, room| {
        // SAFETY: `state` has `size` bytes, `error` has `room`, the caller vouches for the rest.
        unsafe {
            let written = &raw mut written;
            loquent_guarded_state(context, slot.into(), start, size, written, error, room)
        }
    })?;
    Ok(written)
}

/// `llama_state_seq_set_data`: the bytes read, 0 if it refuses.
///
/// # Errors
/// The text of an exception or of a failed assertion.
///
/// # Safety
/// `context` is alive and has the sequence `slot`.
pub(super) unsafe fn set_state(
    context: *mut sys::llama_context,
    slot: u16,
    state: &[u8],
) -> Result<usize, String> {
    let (start, size, mut read) = (state.as_ptr(), state.len(), 0);
    guarded(|error, room| {
        // SAFETY: `state` has `size` bytes, `error` has `room`, the caller vouches for the rest.
        unsafe {
            let read = &raw mut read;
            loquent_guarded_set_state(context, slot.into(), start, size, read, error, room)
        }
    })?;
    Ok(read)
}
