//! The signals that end a process.
//!
//! From program start, SIGTERM and SIGINT (Ctrl-C) end the process at once, even if it is the first
//! process of a container, where the system's default is to ignore them. A command that needs a
//! graceful shutdown calls `defer`: the first signal is then a request, and the second one ends the
//! process at once.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use tokio::signal::unix::{SignalKind, signal};

/// Offset of the exit status from the signal's number, as in shells.
const SIGNALLED: i32 = 128;

/// True if the next signal ends the process.
static ENDS: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes SIGTERM and SIGINT end the process at once, with status 143 and 130.
///
/// # Errors
/// If the system refuses the handlers.
pub fn install() -> io::Result<()> {
    let ends = ENDS.get_or_init(|| Arc::new(AtomicBool::new(true)));
    for signal in [SIGTERM, SIGINT] {
        // Inside the handler, so that no thread has to be able to run.
        flag::register_conditional_shutdown(signal, SIGNALLED + signal, ends.clone())?;
    }
    Ok(())
}

/// Makes SIGINT end the process at once, with status 130, while the returned flag is set. It is not
/// set yet.
///
/// # Errors
/// If the system refuses the handler.
pub(crate) fn interruptible() -> io::Result<Arc<AtomicBool>> {
    let ends = Arc::new(AtomicBool::new(false));
    flag::register_conditional_shutdown(SIGINT, SIGNALLED + SIGINT, ends.clone())?;
    Ok(ends)
}

/// Defers signals: the first one only sets the returned flag; the second ends the process.
///
/// # Errors
/// If the system refuses the handlers.
pub(crate) fn defer() -> io::Result<Arc<AtomicBool>> {
    if ENDS.get().is_none() {
        install()?;
    }
    let ends = ENDS.get().expect("installed above").clone();
    ends.store(false, Ordering::Release);
    for signal in [SIGTERM, SIGINT] {
        // Handlers run in the order of their registration: the one that ends the process looks at
        // the flag before this one sets it.
        flag::register(signal, ends.clone())?;
    }
    Ok(ends)
}

/// Ignores signals from now on: another process decides when this one ends.
///
/// # Errors
/// If the system refuses the handlers.
#[cfg(feature = "llama")]
pub(crate) fn ignore() -> io::Result<()> {
    for signal in [SIGTERM, SIGINT] {
        flag::register(signal, Arc::default())?;
    }
    Ok(())
}

/// Resolves at the first signal after [`defer`], even if it arrived before this call.
///
/// # Errors
/// If the system refuses the handlers.
pub(crate) async fn requested(deferred: &AtomicBool) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Looked at after both were registered, so that no signal falls between.
    if !deferred.load(Ordering::Acquire) {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
    Ok(())
}

/// Exits the process without waiting for its threads. An ordinary return from `main` would destroy
/// static objects of C++ while a thread still loads a model or tokenizes a prompt.
pub fn leave(status: i32) -> ! {
    let _ = io::stdout().flush();
    low_level::exit(status)
}
