//! An answer on a terminal that can move its cursor: rendered Markdown as it arrives, folded
//! reasoning, tool calls with their arguments.
//!
//! Everything becomes rows ([`row`]); the [`painter`] rewrites those that have changed.

mod calls;
mod markdown;
mod painter;
mod row;
mod thoughts;

use std::time::Duration;

use loquent_proto::Progress;
use loquent_proto::printable::printable;
use tokio::time::Instant;

use self::calls::ToolCall;
use self::markdown::{Block, Blocks};
use self::painter::Painter;
use self::row::{Look, Row};
use self::thoughts::Thoughts;
use super::arriving::AnswerPart;
use super::options::ReasoningDisplay;

pub(super) use self::row::Canvas;
pub(super) use self::thoughts::duration_line;

/// Minimum wait that is shown.
const SHORT_WAIT: Duration = Duration::from_millis(400);
/// Frames of the spinner shown while nothing has arrived.
const SPINNER: [char; 8] = ['⣾', '⣽', '⣻', '⢿', '⡿', '⣟', '⣯', '⣷'];

/// Phase of the answer.
#[derive(Debug)]
enum Phase {
    /// Nothing has arrived.
    Waiting {
        since: Option<Instant>,
        progress: Option<Progress>,
    },
    Thinking {
        since: Instant,
        thoughts: Thoughts,
    },
    Saying(Blocks),
    Calling(ToolCall),
}

/// An answer on the screen.
#[derive(Debug)]
pub(super) struct RichAnswer {
    painter: Painter,
    phase: Phase,
    reasoning: ReasoningDisplay,
    /// True if there is text above, from which the next part is separated by a blank row.
    is_apart: bool,
}

impl RichAnswer {
    pub(super) fn new(reasoning: ReasoningDisplay) -> RichAnswer {
        let phase = Phase::Waiting { since: None, progress: None };
        RichAnswer { painter: Painter::default(), phase, reasoning, is_apart: false }
    }

    /// Appends to `out` the terminal output that shows a further part at `now`.
    pub(super) fn show(
        &mut self,
        part: AnswerPart<'_>,
        now: Instant,
        canvas: Canvas,
        out: &mut String,
    ) {
        match part {
            AnswerPart::Tick => self.show_time(now, canvas, out),
            AnswerPart::Progress(new) => {
                if let Phase::Waiting { progress, .. } = &mut self.phase {
                    *progress = Some(new);
                }
                self.show_time(now, canvas, out);
            }
            AnswerPart::Reasoning(text) => self.think(&printable(text), now, canvas, out),
            AnswerPart::Text(text) => self.say(&printable(text), now, canvas, out),
            AnswerPart::Call { index, name, arguments } => {
                self.call(index, &printable(name), &printable(arguments), now, canvas, out);
            }
        }
    }

    /// Ends the answer: later output starts on a new line.
    pub(super) fn end(&mut self, now: Instant, canvas: Canvas, out: &mut String) {
        self.leave_phase(now, canvas, out);
    }

    /// Shows elapsed time while nothing else is shown.
    fn show_time(&mut self, now: Instant, canvas: Canvas, out: &mut String) {
        let rows = match &mut self.phase {
            Phase::Waiting { since, progress } => {
                let waited = now - *since.get_or_insert(now);
                if waited < SHORT_WAIT {
                    return;
                }
                vec![Row::of(Look::DIM, &waiting_line(waited, progress.as_ref()))]
            }
            Phase::Thinking { since, thoughts } => {
                thinking_rows(thoughts, now - *since, self.reasoning, canvas)
            }
            Phase::Saying(_) | Phase::Calling(_) => return,
        };
        self.painter.paint(rows, canvas, out);
    }

    fn think(&mut self, text: &str, now: Instant, canvas: Canvas, out: &mut String) {
        if !matches!(self.phase, Phase::Thinking { .. }) {
            self.leave_phase(now, canvas, out);
            self.phase = Phase::Thinking { since: now, thoughts: Thoughts::default() };
        }
        let Phase::Thinking { thoughts, .. } = &mut self.phase else { return };
        for line in thoughts.push(text, self.reasoning == ReasoningDisplay::Full) {
            self.painter.paint(thoughts::full_rows(&line, canvas), canvas, out);
            self.painter.commit(out);
        }
        self.show_time(now, canvas, out);
    }

    fn say(&mut self, text: &str, now: Instant, canvas: Canvas, out: &mut String) {
        if !matches!(self.phase, Phase::Saying(_)) {
            self.leave_phase(now, canvas, out);
            self.phase = Phase::Saying(Blocks::default());
        }
        let Phase::Saying(blocks) = &mut self.phase else { return };
        blocks.push(text);
        while let Phase::Saying(blocks) = &mut self.phase
            && let Some(block) = blocks.next_complete()
        {
            self.commit_block(&block, canvas, out);
        }
        if let Phase::Saying(blocks) = &self.phase {
            let rows = set_apart(self.is_apart, &blocks.last(), canvas);
            self.painter.paint(rows, canvas, out);
        }
    }

    fn call(
        &mut self,
        index: u32,
        name: &str,
        arguments: &str,
        now: Instant,
        canvas: Canvas,
        out: &mut String,
    ) {
        if !matches!(&self.phase, Phase::Calling(call) if call.index == index) {
            let follows_call = matches!(self.phase, Phase::Calling(_));
            self.leave_phase(now, canvas, out);
            self.is_apart &= !follows_call;
            self.phase = Phase::Calling(ToolCall::new(index));
        }
        let Phase::Calling(call) = &mut self.phase else { return };
        call.push(name, arguments);
        let rows = with_blank(self.is_apart, call.rows(canvas));
        self.painter.paint(rows, canvas, out);
    }

    /// Renders the final form of the current phase.
    fn leave_phase(&mut self, now: Instant, canvas: Canvas, out: &mut String) {
        let silent = Phase::Waiting { since: None, progress: None };
        match std::mem::replace(&mut self.phase, silent) {
            Phase::Waiting { .. } => self.painter.paint(Vec::new(), canvas, out),
            Phase::Thinking { since, thoughts } => {
                if self.reasoning == ReasoningDisplay::Full {
                    self.painter.paint(thoughts::full_rows(thoughts.tail(), canvas), canvas, out);
                    self.painter.commit(out);
                }
                let row = Row::of(Look::DIM, &duration_line(now - since));
                self.painter.paint(vec![row], canvas, out);
                self.painter.commit(out);
                self.is_apart = true;
            }
            Phase::Saying(mut blocks) => self.commit_block(&blocks.finish(), canvas, out),
            Phase::Calling(_) => {
                self.painter.commit(out);
                self.is_apart = true;
            }
        }
    }

    fn commit_block(&mut self, block: &Block, canvas: Canvas, out: &mut String) {
        let rows = set_apart(self.is_apart, block, canvas);
        self.is_apart |= !rows.is_empty();
        self.painter.paint(rows, canvas, out);
        self.painter.commit(out);
    }
}

/// Returns the rows of a block, preceded by a blank one unless nothing is above or the block is a
/// continuation.
fn set_apart(is_apart: bool, block: &Block, canvas: Canvas) -> Vec<Row> {
    with_blank(is_apart && !block.goes_on, block.rows(canvas))
}

fn with_blank(is_apart: bool, rows: Vec<Row>) -> Vec<Row> {
    let blank = (is_apart && !rows.is_empty()).then(Row::default);
    blank.into_iter().chain(rows).collect()
}

fn thinking_rows(
    thoughts: &Thoughts,
    spent: Duration,
    reasoning: ReasoningDisplay,
    canvas: Canvas,
) -> Vec<Row> {
    match reasoning {
        ReasoningDisplay::Fold => thoughts.rows(spent, canvas),
        ReasoningDisplay::Full => thoughts::full_rows(thoughts.tail(), canvas),
        ReasoningDisplay::Hide => thoughts.rows(spent, canvas)[..1].to_vec(),
    }
}

/// Returns a line showing that the answer has not started, with the reason if the server reports
/// one.
fn waiting_line(waited: Duration, progress: Option<&Progress>) -> String {
    let turn = (waited.as_millis() / 100) as usize % SPINNER.len();
    let doing = match progress {
        Some(Progress { queued, .. }) if *queued > 0 => format!("Number {queued} in the queue"),
        Some(Progress { total, processed, .. }) if *total > 0 => {
            format!("Reading, {processed} of {total} tokens")
        }
        // Every prompt has tokens; those of one whose model is not loaded yet are unknown.
        Some(_) => "Loading the model".to_owned(),
        None => "Waiting".to_owned(),
    };
    format!("{} {doing}… {} s", SPINNER[turn], waited.as_secs())
}
