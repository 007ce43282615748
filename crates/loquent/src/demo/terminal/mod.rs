//! `loquent demo --terminal`: shows one run in two columns.

mod column;
mod lanes;
mod layout;
mod screen;

use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::mpsc;

use self::column::{Column, ColumnState};
use self::lanes::{LaneClient, TimedEvent, question};
use self::layout::{ColumnView, Line, TextStyle, column_width, columns, cut, seconds, strip};
use self::screen::DemoScreen;
use super::network::{LiveNetwork, NetworkKind};
use super::news::DemoLane;
use super::routes::{LiveOffer, network_text};

/// Maximum number of pieces of text waiting to be drawn.
const MAX_WAITING: usize = 1024;
/// Interval at which the screen is drawn.
const FRAME: Duration = Duration::from_millis(50);
/// Time limit for an answer beyond its own length. TCP needs much of it in bad weather.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time for which storms are computed in advance, in µs.
const STORMS_US: u64 = 600_000_000;
/// Lines of the screen around the text of the columns.
const LINES_AROUND: usize = 10;

/// One run over `network`, with its display.
pub struct TerminalRun<'a> {
    offer: &'a LiveOffer,
    network: &'a LiveNetwork,
    columns: [Column; 2],
    storms: Vec<(u64, u64)>,
    began: Instant,
}

impl<'a> TerminalRun<'a> {
    /// Performs one run, with both answers to their ends, and prints the results.
    ///
    /// # Errors
    /// If a column cannot connect, or its answer is incomplete.
    pub async fn show(
        model: &str,
        offer: &'a LiveOffer,
        network: &'a LiveNetwork,
    ) -> anyhow::Result<()> {
        let mut screen = DemoScreen::stdout();
        let (events, mut happening) = mpsc::channel(MAX_WAITING);
        let mut run = Self::begin(model, offer, network, events).await?;
        let limit = run.began + PATIENCE + offer.answer_length();
        let mut frames = tokio::time::interval(FRAME);
        while !run.columns.iter().all(Column::is_over) {
            tokio::select! {
                Some(event) = happening.recv() => run.handle(event),
                _ = frames.tick() => screen.draw(&run.frame(screen.size()))?,
                () = tokio::time::sleep_until(limit.into()) => break,
            }
        }
        screen.print(&run.summary(screen.size()))?;
        run.outcome()
    }

    /// Connects both clients over the calm link, starts the weather, and asks.
    async fn begin(
        model: &str,
        offer: &'a LiveOffer,
        network: &'a LiveNetwork,
        events: mpsc::Sender<TimedEvent>,
    ) -> anyhow::Result<Self> {
        let number = network.prepare(&offer.weather).map_err(anyhow::Error::msg)?;
        let connect = |lane| async move {
            let client = LaneClient::connect(lane, offer.port).await;
            client.with_context(|| format!("cannot connect over {}", title(network.kind(), lane)))
        };
        let clients = futures_util::future::try_join_all(DemoLane::ALL.map(connect)).await?;
        anyhow::ensure!(network.begin(number), "something else uses the link");
        let began = Instant::now();
        // Only now: the question meets the weather too, on both ways.
        for client in clients {
            let question = question(model, &offer.question, offer.max_tokens);
            tokio::spawn(client.ask(question, events.clone()));
        }
        let column = Column::new(began, offer.tokens_per_s);
        let storms = offer.weather.storms(STORMS_US);
        Ok(Self { offer, network, columns: [column.clone(), column], storms, began })
    }

    fn handle(&mut self, (lane, at, event): TimedEvent) {
        self.columns[lane as usize].handle(at, event);
    }

    fn views(&self, now: Instant) -> [ColumnView; 2] {
        let counts = self.network.news().counts();
        DemoLane::ALL.map(|lane| {
            let column = &self.columns[lane as usize];
            ColumnView {
                title: title(self.network.kind(), lane),
                text: column.text().to_owned(),
                state: column.state().clone(),
                still: column.standing_still(now),
                stalls: column.stalls_at(now),
                counts: counts[lane as usize],
            }
        })
    }

    fn heading(&self) -> Vec<Line> {
        vec![
            vec![
                (TextStyle::Bold, "loquent demo".into()),
                (TextStyle::Plain, format!("  {}", self.offer.weather.text())),
            ],
            vec![(TextStyle::Dim, network_text(self.network.kind()).into())],
            vec![(TextStyle::Plain, format!("“{}”", self.offer.question))],
            Vec::new(),
        ]
    }

    /// Returns the current screen, no larger than the terminal.
    fn frame(&self, (width, height): (usize, usize)) -> Vec<Line> {
        let now = Instant::now();
        let mut lines = self.heading();
        let rows = height.saturating_sub(lines.len() + LINES_AROUND);
        lines.extend(columns(&self.views(now), column_width(width), Some(rows.max(1))));
        let weather_ms = now.saturating_duration_since(self.began).as_millis() as u64;
        let marks = width.saturating_sub(10).min(120);
        let mut weather: Line = vec![(TextStyle::Plain, "network ".into())];
        weather.extend(strip(&self.storms, Some(weather_ms), marks));
        lines.extend([Vec::new(), weather, vec![(TextStyle::Dim, "Ctrl-C ends it".into())]]);
        lines.truncate(height.max(1));
        lines.into_iter().map(|line| cut(line, width)).collect()
    }

    /// Returns the text that stays on the terminal: both answers in full, and the difference in
    /// words.
    fn summary(&self, (width, _): (usize, usize)) -> Vec<Line> {
        let now = Instant::now();
        let views = self.views(now);
        let mut lines = self.heading();
        lines.extend(columns(&views, column_width(width), None));
        lines.push(Vec::new());
        let told = views.each_ref().map(|view| {
            let stood = match view.stalls.count {
                0 => "never stood still".to_owned(),
                1 => format!("stood still once, for {}", seconds(view.stalls.total)),
                count => {
                    format!("stood still {count} times, {} in all", seconds(view.stalls.total))
                }
            };
            vec![(TextStyle::Plain, format!("{} {stood}.", view.title))]
        });
        lines.extend(told);
        if let [ColumnState::Complete(_), ColumnState::Complete(_)] =
            views.each_ref().map(|view| view.state.clone())
            && views[0].text != views[1].text
        {
            lines.push(vec![(
                TextStyle::Dim,
                "The two texts differ: this model's answers are not the same twice.".into(),
            )]);
        }
        lines
    }

    fn outcome(&self) -> anyhow::Result<()> {
        for lane in DemoLane::ALL {
            let title = title(self.network.kind(), lane);
            match self.columns[lane as usize].state() {
                ColumnState::Complete(_) => {}
                ColumnState::Failed(why) => anyhow::bail!("{title}: {why}"),
                ColumnState::Waiting | ColumnState::Streaming => {
                    anyhow::bail!("{title}: not complete in time; choose a better network")
                }
            }
        }
        Ok(())
    }
}

/// Returns the title of a column.
fn title(kind: NetworkKind, lane: DemoLane) -> &'static str {
    match (lane, kind) {
        (DemoLane::Tcp, NetworkKind::Kernel) => "TCP (event stream)",
        (DemoLane::Tcp, NetworkKind::Modelled) => "TCP (event stream; modelled)",
        (DemoLane::Loquent, _) => "Loquent (QUIC)",
    }
}
