//! Opens the user's browser, or detects that there is none to open.

use std::ffi::OsString;
use std::io;
use std::process::{Command, Stdio};

/// Returns true if a browser would have a display.
pub fn has_display(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let is_set = |name: &str| variable(name).is_some_and(|value| !value.is_empty());
    is_set("DISPLAY") || is_set("WAYLAND_DISPLAY") || is_set("BROWSER")
}

/// Opens `url` with `$BROWSER`, or else with the desktop's default.
///
/// # Errors
/// If no program can open it.
pub fn open(url: &str) -> io::Result<()> {
    let own = std::env::var_os("BROWSER").filter(|program| !program.is_empty());
    let program = own.unwrap_or_else(|| "xdg-open".into());
    let mut command = Command::new(program);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    // Some run until the browser is closed. Waited for, so that none is left as a zombie.
    std::thread::spawn(move || child.wait());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_display_is_one_that_is_named() {
        let with = |name: &'static str, value: &'static str| {
            has_display(move |asked| (asked == name).then(|| value.into()))
        };
        assert!(with("DISPLAY", ":0") && with("WAYLAND_DISPLAY", "wayland-0"));
        assert!(with("BROWSER", "firefox"));
        assert!(!with("DISPLAY", "") && !with("TERM", "xterm"));
    }
}
