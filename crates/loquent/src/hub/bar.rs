//! Shows a download: as a bar on a terminal, elsewhere as lines at its start, now and then, and at
//! its end.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use loquent_proto::printable::printable;

use super::event::FetchEvent;
use crate::logging;

/// Interval between two lines about a download. Chosen by hand: a download of hours fills no log.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// Creates a progress display on standard error, to be passed to [`super::Hub::fetch`].
pub fn progress_bar() -> impl FnMut(FetchEvent) {
    let has_bar = std::io::stderr().is_terminal() && !logging::is_for_programs();
    let mut bar = ProgressBar::hidden();
    let mut lines: Option<DownloadLines> = None;
    move |event| match event {
        FetchEvent::Unreachable => {
            logging::warn("Cannot reach the hub; using the copy in the cache.");
        }
        FetchEvent::Waiting { file } => {
            let file = printable(&file);
            logging::say(&format!("Another process is downloading {file}; waiting for it."));
        }
        FetchEvent::Started { file, have_bytes, total_bytes, part } => {
            let place =
                if part.1 > 1 { format!(" ({} of {})", part.0, part.1) } else { String::new() };
            let file = printable(&file);
            let title = format!("{}{place}", file.rsplit('/').next().unwrap_or(&file));
            if has_bar {
                bar = ProgressBar::new(total_bytes).with_style(style()).with_message(title);
                // Without the bytes of an earlier attempt, which would inflate the rate.
                bar.set_position(have_bytes);
                bar.reset_eta();
            } else {
                let from = if have_bytes > 0 { ", continuing an earlier download" } else { "" };
                logging::say(&format!("Downloading {title}: {}{from}", HumanBytes(total_bytes)));
                lines = Some(DownloadLines { title, total_bytes, last: Instant::now() });
            }
        }
        FetchEvent::Advanced { have_bytes } => {
            bar.set_position(have_bytes);
            let line = lines.as_mut().and_then(|lines| lines.due(have_bytes, Instant::now()));
            if let Some(line) = line {
                logging::say(&line);
            }
        }
        FetchEvent::Retrying { why } => {
            let line = format!("{}; requesting the rest again", printable(&why));
            if has_bar { bar.println(line) } else { logging::warn(&line) }
        }
        FetchEvent::Verified { file } => {
            bar.finish_and_clear();
            logging::say(&format!("Downloaded {} and verified it.", printable(&file)));
        }
        FetchEvent::NotRecorded { why } => {
            let why = printable(&why);
            logging::warn(&format!("{why}; without the network the model may not be found."));
        }
    }
}

/// The lines about the progress of one file.
struct DownloadLines {
    title: String,
    total_bytes: u64,
    /// Time of the last line.
    last: Instant,
}

impl DownloadLines {
    /// Returns the line about the `have_bytes` that are on disk at `now`, if it is time for one.
    fn due(&mut self, have_bytes: u64, now: Instant) -> Option<String> {
        if now.duration_since(self.last) < LINE_INTERVAL {
            return None;
        }
        self.last = now;
        let (have, total) = (HumanBytes(have_bytes), HumanBytes(self.total_bytes));
        Some(format!("Downloading {}: {have} of {total}", self.title))
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template(
        "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
    )
    .expect("the template is well-formed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_download_has_a_line_now_and_then() {
        let begun = Instant::now();
        let mut lines =
            DownloadLines { title: "m.gguf".into(), total_bytes: 40 << 30, last: begun };
        let mut due =
            |seconds, gib: u64| lines.due(gib << 30, begun + Duration::from_secs(seconds));
        assert_eq!(due(29, 1), None);
        assert_eq!(due(31, 2).as_deref(), Some("Downloading m.gguf: 2.00 GiB of 40.00 GiB"));
        assert_eq!(due(60, 3), None, "the interval begins again with each line");
        assert!(due(61, 4).is_some());
    }
}
