//! The signals that end a server.

use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};

/// Exit status after a second signal: 128 and the number of SIGINT, as shells count.
const INTERRUPTED: i32 = 130;

/// Resolves at the first SIGTERM or Ctrl-C, so that running answers can end. A second signal
/// ends the process at once.
pub(crate) async fn requested() {
    let mut terminate = signal(SignalKind::terminate()).expect("signals can be handled");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = ctrl_c() => {}
    }
    // Once tokio handles a signal its default action is gone for good, so the second one needs
    // a task of its own.
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = ctrl_c() => {}
        }
        std::process::exit(INTERRUPTED);
    });
}
