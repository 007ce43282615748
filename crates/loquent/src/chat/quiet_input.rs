//! Keeps what is typed during an answer off the screen; the next line of input begins with it.

/// The terminal does not repeat what is typed until this is dropped.
pub struct QuietInput {
    #[cfg(unix)]
    former: nix::sys::termios::Termios,
}

#[cfg(unix)]
impl QuietInput {
    /// `None` if standard input is no terminal.
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
    /// Elsewhere the terminal repeats it.
    pub fn start() -> Option<QuietInput> {
        None
    }
}
