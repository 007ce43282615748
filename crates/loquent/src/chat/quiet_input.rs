//! Suppresses the echo of text typed during an answer; the text starts the next line of input.

/// Disables the terminal's echo until dropped.
pub struct QuietInput {
    #[cfg(unix)]
    former: nix::sys::termios::Termios,
}

#[cfg(unix)]
impl QuietInput {
    /// Disables the echo; returns `None` if standard input is not a terminal.
    pub fn start() -> Option<QuietInput> {
        use nix::sys::termios::{LocalFlags, SetArg, tcgetattr, tcsetattr};
        let former = tcgetattr(std::io::stdin()).ok()?;
        let mut quiet = former.clone();
        // Signals stay: Ctrl-C stops the answer.
        quiet.local_flags.remove(LocalFlags::ECHO);
        tcsetattr(std::io::stdin(), SetArg::TCSANOW, &quiet).ok()?;
        Some(QuietInput { former })
    }
}

#[cfg(unix)]
impl Drop for QuietInput {
    fn drop(&mut self) {
        use nix::sys::termios::{SetArg, tcsetattr};
        // A terminal that has gone away needs nothing.
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.former);
    }
}

#[cfg(not(unix))]
impl QuietInput {
    /// Does nothing: the echo stays on for other systems.
    pub fn start() -> Option<QuietInput> {
        None
    }
}
