//! Shows a download: as a bar on a terminal, elsewhere as one line at its start and one at its end.

use std::io::IsTerminal;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use loquent_proto::printable::printable;

use super::event::FetchEvent;

/// Creates a progress display on standard error, to be passed to [`super::Hub::fetch`].
pub fn progress_bar() -> impl FnMut(FetchEvent) {
    let terminal = std::io::stderr().is_terminal();
    let mut bar = ProgressBar::hidden();
    let say = move |bar: &ProgressBar, text: String| {
        let text = printable(&text);
        if terminal { bar.println(text) } else { eprintln!("{text}") }
    };
    move |event| match event {
        FetchEvent::Unreachable => eprintln!("Cannot reach the hub; using the copy in the cache."),
        FetchEvent::Waiting { file } => {
            eprintln!("Another process is downloading {}; waiting for it.", printable(&file))
        }
        FetchEvent::Started { file, have_bytes, total_bytes, part } => {
            let place =
                if part.1 > 1 { format!(" ({} of {})", part.0, part.1) } else { String::new() };
            let file = printable(&file);
            let title = format!("{}{place}", file.rsplit('/').next().unwrap_or(&file));
            if terminal {
                bar = ProgressBar::new(total_bytes).with_style(style()).with_message(title);
                // Without the bytes of an earlier attempt, which would inflate the rate.
                bar.set_position(have_bytes);
                bar.reset_eta();
            } else {
                let from = if have_bytes > 0 { ", continuing an earlier download" } else { "" };
                eprintln!("Downloading {title}: {}{from}", HumanBytes(total_bytes));
            }
        }
        FetchEvent::Advanced { have_bytes } => bar.set_position(have_bytes),
        FetchEvent::Retrying { why } => say(&bar, format!("{why}; requesting the rest again")),
        FetchEvent::Verified { file } => {
            bar.finish_and_clear();
            eprintln!("Downloaded {} and verified it.", printable(&file));
        }
        FetchEvent::NotRecorded { why } => {
            eprintln!("{}; without the network the model may not be found.", printable(&why));
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template(
        "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
    )
    .expect("the template is well-formed")
}
