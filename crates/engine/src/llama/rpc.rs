//! llama.cpp's own RPC back end: layers on other machines, to which it sends one tensor operation
//! after the other.
//!
//! Needs a build of llama.cpp with `GGML_RPC=ON` (cargo feature `rpc`); this is checked at run
//! time. The protocol has neither keys nor encryption, and llama.cpp aborts the process when a
//! server in use goes away.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_void};
use std::net::{TcpStream, ToSocketAddrs};
use std::num::NonZeroU16;
use std::sync::Mutex;
use std::time::Duration;

use super::{start, sys};

/// Time limit for a server to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// `ggml_backend_rpc_add_server` in `ggml-rpc.h`, which has no bindings.
type AddServer = unsafe extern "C" fn(*const c_char) -> sys::ggml_backend_reg_t;
/// `ggml_backend_rpc_start_server`: endpoint, cache folder, threads, devices.
type StartServer =
    unsafe extern "C" fn(*const c_char, *const c_char, usize, usize, *mut sys::ggml_backend_dev_t);

/// Returns the function `name` of the back end.
///
/// # Errors
/// In builds without the back end.
fn function(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the library has been started; the name is NUL-terminated.
    let back_end = unsafe { sys::ggml_backend_reg_by_name(c"RPC".as_ptr()) };
    let found = match back_end.is_null() {
        true => std::ptr::null_mut(),
        // SAFETY: a registered back end, a NUL-terminated name.
        false => unsafe { sys::ggml_backend_reg_get_proc_address(back_end, name.as_ptr()) },
    };
    match found.is_null() {
        true => Err("this build of llama.cpp has no RPC back end; build with GGML_RPC=ON and \
                     --features rpc, in a target folder of its own"
            .to_owned()),
        false => Ok(found),
    }
}

/// Tries to connect, because llama.cpp aborts the process if it cannot.
fn try_connect(endpoint: &str) -> Result<(), String> {
    let named = |error: std::io::Error| format!("--rpc {endpoint}: {error}");
    let mut addresses = endpoint.to_socket_addrs().map_err(named)?;
    let address = addresses.next().ok_or_else(|| format!("--rpc {endpoint}: no such host"))?;
    TcpStream::connect_timeout(&address, CONNECT_LIMIT).map(drop).map_err(named)
}

/// Registers the servers' devices with llama.cpp, each once: models loaded from now on are
/// distributed over them.
///
/// # Errors
/// If this build has no RPC back end, or a server cannot be reached.
pub(super) fn add_servers(endpoints: &[String]) -> Result<(), String> {
    static KNOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if endpoints.is_empty() {
        return Ok(());
    }
    let add = function(c"ggml_backend_rpc_add_server")?;
    // SAFETY: the function of that name has this type.
    let add: AddServer = unsafe { std::mem::transmute(add) };
    let mut known = KNOWN.lock().expect("nobody panics with it");
    for endpoint in endpoints.iter().filter(|endpoint| !endpoint.is_empty()) {
        // Registering a server twice would offer its memory twice.
        if known.contains(endpoint) {
            continue;
        }
        try_connect(endpoint)?;
        let name = CString::new(endpoint.as_str()).map_err(|error| error.to_string())?;
        // SAFETY: NUL-terminated; llama.cpp keeps a copy.
        let added = unsafe { add(name.as_ptr()) };
        if added.is_null() {
            return Err(format!("--rpc {endpoint} offers no device"));
        }
        // SAFETY: just made, and registered once.
        unsafe { sys::ggml_backend_register(added) };
        known.insert(endpoint.clone());
    }
    Ok(())
}

/// Serves this machine's CPU at `endpoint` (`host:port`) to any client; returns only on errors.
///
/// # Errors
/// If this build has no RPC back end, or the endpoint cannot be listened on; llama.cpp writes the
/// reason for the latter to stderr.
pub fn serve(endpoint: &str, threads: NonZeroU16) -> Result<(), String> {
    start().map_err(|error| error.to_string())?;
    let serve = function(c"ggml_backend_rpc_start_server")?;
    // SAFETY: the function of that name has this type.
    let serve: StartServer = unsafe { std::mem::transmute(serve) };
    let name = CString::new(endpoint).map_err(|error| error.to_string())?;
    // SAFETY: gives a device that lives as long as the process, or null.
    let mut device = unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) };
    if device.is_null() {
        return Err("llama.cpp has no processor to compute with".to_owned());
    }
    // SAFETY: the name is NUL-terminated, there is one device; both live through the call.
    unsafe { serve(name.as_ptr(), std::ptr::null(), threads.get().into(), 1, &raw mut device) };
    Err(format!("llama.cpp cannot listen on {endpoint}"))
}

#[cfg(test)]
mod tests {
    //! Errors that need no servers.
    use super::*;

    #[test]
    fn a_server_that_is_not_there_is_an_error_and_no_abort() {
        assert_eq!(add_servers(&[]), Ok(()));
        start().unwrap();
        // Port 1 is privileged and unused; builds without the back end fail earlier.
        let error = add_servers(&["127.0.0.1:1".to_owned()]).unwrap_err();
        assert!(error.contains("127.0.0.1:1") || error.contains("GGML_RPC=ON"), "{error}");
    }
}
