//! Events of the laboratory as lines of JSON. Times are in µs.

use serde::Serialize;
use serde_json::json;

use super::settings::LabSettings;
use crate::channel::{Direction, LossSchedule};
use crate::events::SessionEvent;
use crate::metrics::Smoothness;
use crate::scheme::Scheme;
use crate::world::Setting;

/// Writes lines into a buffer that is emptied from time to time.
#[derive(Debug, Default)]
pub struct LineWriter(Vec<u8>);

/// Results of a lane at the end of a run, with the metrics of the studies.
#[derive(Debug, Serialize)]
pub struct LaneSummary {
    /// Name of the scheme.
    pub name: String,
    /// Tokens that were shown.
    pub shown_tokens: usize,
    /// True if the reader has the whole answer.
    pub complete: bool,
    /// Smoothness of the displayed text.
    #[serde(flatten)]
    pub smoothness: Smoothness,
    /// Bytes sent to the reader, headers included.
    pub bytes: u64,
    /// Bytes of acknowledgements, headers included.
    pub ack_bytes: u64,
    /// Packets sent to the reader.
    pub packets: u64,
    /// Copies of each byte of the answer sent, beyond the first.
    pub redundancy: f64,
}

/// The line of an event, without its time and lane.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum EventLine {
    Sent { packet: u64, way: &'static str, bytes: u64, carried: Vec<[usize; 2]> },
    Arrived { packet: u64 },
    Lost { packet: u64 },
    Shown { tokens: usize },
    Stalled { since_us: u64 },
    Resumed,
    Complete,
}

#[derive(Serialize)]
struct LaneLine {
    lane: usize,
    at_us: u64,
    #[serde(flatten)]
    event: EventLine,
}

impl LineWriter {
    /// Returns the number of bytes in the buffer.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes written since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// Writes the first line: the configuration of the run.
    pub fn put_run(
        &mut self,
        settings: &LabSettings,
        schemes: &[Scheme],
        setting: &Setting<'_>,
        horizon_us: u64,
    ) {
        let weather = LossSchedule::new(&setting.link.channel, setting.seed, horizon_us);
        let lanes: Vec<_> = schemes
            .iter()
            .map(|scheme| json!({"name": scheme.label(), "scheme": scheme.kind()}))
            .collect();
        self.put(&json!({
            "kind": "run",
            "settings": settings,
            "lanes": lanes,
            "weather": weather.steps(horizon_us),
            "generated_us": setting.length_us,
        }));
    }

    /// Writes a generated token.
    pub fn put_token(&mut self, at_us: u64, text: &str) {
        self.put(&json!({"kind": "token", "at_us": at_us, "text": text}));
    }

    /// Writes an event of a lane.
    pub fn put_event(&mut self, lane: usize, at_us: u64, event: &SessionEvent) {
        self.put(&LaneLine { lane, at_us, event: EventLine::of(event) });
    }

    /// Writes the last line: the results of the run.
    pub fn put_summary(&mut self, ended_us: u64, is_cut: bool, lanes: &[LaneSummary]) {
        let line = json!({"kind": "summary", "ended_us": ended_us, "cut": is_cut, "lanes": lanes});
        self.put(&line);
    }

    fn put(&mut self, line: &impl Serialize) {
        serde_json::to_writer(&mut self.0, line).expect("the line has no map with odd keys");
        self.0.push(b'\n');
    }
}

impl EventLine {
    fn of(event: &SessionEvent) -> Self {
        match *event {
            SessionEvent::Sent { packet, direction, bytes, ref carried } => Self::Sent {
                packet,
                way: match direction {
                    Direction::Down => "down",
                    Direction::Up => "up",
                },
                bytes,
                carried: carried.iter().map(|run| [run.start, run.len()]).collect(),
            },
            SessionEvent::Arrived { packet } => Self::Arrived { packet },
            SessionEvent::Lost { packet } => Self::Lost { packet },
            SessionEvent::Shown { tokens } => Self::Shown { tokens },
            SessionEvent::Stalled { since_us } => Self::Stalled { since_us },
            SessionEvent::Resumed => Self::Resumed,
            SessionEvent::Complete => Self::Complete,
        }
    }
}
