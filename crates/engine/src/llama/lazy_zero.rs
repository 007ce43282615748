//! Zeroes large buffers without touching them, and tells the kernels of rows that are copied into
//! buffers.
//!
//! llama.cpp fills a new KV cache with zeros, which makes all of it resident: for a model of 0.4 GB
//! the cache of sixteen chats is 0.9 GB, of which a chat uses a few per cent. Here the pages of a
//! CPU buffer are returned to the system instead, which provides zeroed pages on first use: the
//! same content, and memory that grows with use.
//!
//! The kernels add the cells of a cache in the order in which they were written, and see those that
//! graphs write. Cells that are restored from a copy ([`super::spans`]) are written by ggml's
//! function for copies, which is replaced here by one that also tells the kernels.
//!
//! ggml has no call for this. All its CPU buffers share one description, which has the allocating
//! function. That is replaced by one that allocates the same buffer and gives it another clearing
//! function. The declarations below repeat those of `ggml-backend-impl.h`; the pinned version of
//! the bindings keeps them valid, and the test `a_cache_takes_memory_as_it_is_used` fails if they
//! no longer match.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

use super::sys;

type Buffer = sys::ggml_backend_buffer_t;
type BufferType = sys::ggml_backend_buffer_type_t;
type Allocate = unsafe extern "C" fn(BufferType, usize) -> Buffer;
type Clear = unsafe extern "C" fn(Buffer, u8);
type Set = unsafe extern "C" fn(Buffer, *mut sys::ggml_tensor, *const c_void, usize, usize);

/// The beginning of `ggml_backend_buffer_type`.
#[repr(C)]
struct TypeHead {
    name: unsafe extern "C" fn(BufferType) -> *const c_char,
    allocate: Allocate,
}

/// The beginning of `ggml_backend_buffer`.
#[repr(C)]
struct BufferHead {
    /// Free, base address, initialization of a tensor, setting all its bytes.
    before_set: [Option<unsafe extern "C" fn()>; 4],
    set: Option<Set>,
    /// Other access to tensors.
    after_set: [Option<unsafe extern "C" fn()>; 4],
    clear: Option<Clear>,
}

/// Smaller buffers are cleared by writing zeros: a system call costs more.
const LARGE_BYTES: usize = 1 << 20;

/// ggml's own allocating function.
static ALLOCATE: OnceLock<Allocate> = OnceLock::new();

/// Makes large CPU buffers be zeroed lazily from now on.
///
/// # Safety
/// No other thread may use ggml yet.
pub(super) unsafe fn install() {
    // SAFETY: returns a description that lives as long as the process.
    let kind = unsafe { sys::ggml_backend_cpu_buffer_type() };
    let head = kind.cast::<TypeHead>();
    // SAFETY: the layout is that of the pinned version, in writable memory; nobody else uses it.
    unsafe {
        let name = CStr::from_ptr(((*head).name)(kind));
        if name == CStr::from_ptr(sys::ggml_backend_buft_name(kind)) {
            ALLOCATE.get_or_init(|| (*head).allocate);
            (*head).allocate = allocate;
        }
    }
}

unsafe extern "C" fn allocate(kind: BufferType, bytes: usize) -> Buffer {
    let own = ALLOCATE.get().expect("set before this function is");
    // SAFETY: ggml's arguments for ggml's function.
    let buffer = unsafe { own(kind, bytes) };
    if !buffer.is_null() {
        let head = buffer.cast::<BufferHead>();
        // SAFETY: a buffer that was just made, with the layout of the pinned version.
        unsafe {
            (*head).set = Some(set);
            if bytes >= LARGE_BYTES {
                (*head).clear = Some(clear);
            }
        }
    }
    buffer
}

/// Copies `bytes` bytes into `tensor`, as ggml's own function does.
unsafe extern "C" fn set(
    _buffer: Buffer,
    tensor: *mut sys::ggml_tensor,
    data: *const c_void,
    offset: usize,
    bytes: usize,
) {
    // SAFETY: ggml has checked that the bytes are the tensor's, which is in this buffer's memory.
    unsafe {
        (*tensor).data.cast::<u8>().add(offset).copy_from(data.cast(), bytes);
        loquent_kernels::note_copied_rows(&*tensor, offset, bytes);
    }
}

unsafe extern "C" fn clear(buffer: Buffer, value: u8) {
    // SAFETY: ggml's buffer, whose memory is the caller's to overwrite.
    unsafe {
        let start = sys::ggml_backend_buffer_get_base(buffer).cast::<u8>();
        let bytes = sys::ggml_backend_buffer_get_size(buffer);
        match value {
            0 => zero(start, bytes),
            _ => start.write_bytes(value, bytes),
        }
    }
}

/// Makes `bytes` bytes from `start` on read as zeros; whole pages are returned to the system.
///
/// # Safety
/// The caller may overwrite the memory, which came from C's allocator (private, not from a file).
unsafe fn zero(start: *mut u8, bytes: usize) {
    let page = page_bytes();
    let before = start.addr().next_multiple_of(page) - start.addr();
    let whole = bytes.saturating_sub(before) / page * page;
    // SAFETY: within the memory, which the caller gives up.
    unsafe {
        let first = start.add(before.min(bytes));
        let given_back =
            whole > 0 && libc::madvise(first.cast::<c_void>(), whole, libc::MADV_DONTNEED) == 0;
        if !given_back {
            // Pages that are locked in memory, for example, cannot be returned.
            return start.write_bytes(0, bytes);
        }
        // The ends share their pages with other data.
        start.write_bytes(0, before);
        first.add(whole).write_bytes(0, bytes - before - whole);
    }
}

fn page_bytes() -> usize {
    // SAFETY: `sysconf` takes a plain number and has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(1 << 16)
}

#[cfg(test)]
mod tests {
    //! Everything reads as zeros, and nothing outside changes.
    use super::*;

    #[test]
    fn zeroes_all_of_it_and_nothing_else() {
        let page = page_bytes();
        for (from, bytes) in
            [(0, 4 * page), (1, 3 * page), (page - 1, page + 2), (5, 10), (7, 0), (page, page)]
        {
            let mut memory = vec![7u8; 6 * page];
            // SAFETY: inside the vector, whose memory came from the allocator.
            unsafe { zero(memory.as_mut_ptr().add(from), bytes) };
            let expected = |i: usize| if (from..from + bytes).contains(&i) { 0 } else { 7 };
            assert!(
                memory.iter().enumerate().all(|(i, &byte)| byte == expected(i)),
                "{from} {bytes}"
            );
        }
    }
}
