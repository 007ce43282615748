//! The signals that end a chat. They may find the terminal without echo, or in the mode of the line
//! editor.

use std::io;

use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::shutdown;

/// Ends the process at SIGTERM or SIGHUP, with the terminal in its mode of this call. Without a
/// terminal there is nothing to restore: the signals keep their defaults, and `nohup` its effect.
///
/// # Errors
/// If the system refuses the handlers.
pub(super) fn restore_terminal_at_end() -> io::Result<()> {
    if let Ok(former) = tcgetattr(io::stdin()) {
        let (terminate, hangup) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
        // A task, because the one that reads lines blocks.
        tokio::spawn(end(terminate, hangup, former));
    }
    Ok(())
}

async fn end(mut terminate: Signal, mut hangup: Signal, former: Termios) {
    // As shells report these signals.
    let status = tokio::select! {
        _ = terminate.recv() => 143,
        _ = hangup.recv() => 129,
    };
    // A terminal that has gone away needs nothing.
    let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &former);
    shutdown::leave(status)
}
