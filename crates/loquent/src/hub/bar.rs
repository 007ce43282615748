//! Shows a download on the terminal; where there is none, one line at its start and one at its end.

use std::io::IsTerminal;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use super::Event;

/// A progress display on standard error, to be passed to [`super::Hub::fetch`].
pub fn progress_bar() -> impl FnMut(Event) {
    let terminal = std::io::stderr().is_terminal();
    let mut bar = ProgressBar::hidden();
    let say = move |bar: &ProgressBar, text: String| {
        if terminal { bar.println(text) } else { eprintln!("{text}") }
    };
    move |event| match event {
        Event::Unreachable => eprintln!("The hub cannot be reached: using the copy in the cache."),
        Event::Waiting { file } => eprintln!("Another process is fetching {file}: waiting for it."),
        Event::Started { file, have_bytes, total_bytes, part } => {
            let place =
                if part.1 > 1 { format!(" ({} of {})", part.0, part.1) } else { String::new() };
            let title = format!("{}{place}", file.rsplit('/').next().unwrap_or(&file));
            if terminal {
                bar = ProgressBar::new(total_bytes).with_style(style()).with_message(title);
                // The rate is that of this transfer, without what an earlier one brought.
                bar.set_position(have_bytes);
                bar.reset_eta();
            } else {
                let from = if have_bytes > 0 { ", continued" } else { "" };
                eprintln!("Fetching {title}: {}{from}", HumanBytes(total_bytes));
            }
        }
        Event::Advanced { have_bytes } => bar.set_position(have_bytes),
        Event::Retrying { why } => say(&bar, format!("{why}: asking for the rest again")),
        Event::Verified { file } => {
            bar.finish_and_clear();
            eprintln!("Fetched {file} and checked it.");
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template(
        "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
    )
    .expect("the template is well-formed")
}
