//! Plans: the studies to simulate, as TOML. Every figure of the documentation comes from one.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::channel::Channel;
use crate::generate::{Generator, TokenKind};
use crate::link::Link;
use crate::reader::ReaderBehaviour;
use crate::scheme::Scheme;

/// Maximum number of sessions of one case and scheme; beyond it, memory rather than time is the
/// limit.
const MAX_SESSIONS: u32 = 1_000_000;
/// Maximum length of a session in seconds.
const MAX_SECONDS: f64 = 3_600.0;

/// Reason why a plan cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// Path of the plan.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The text is not a valid plan.
    #[error("{path}: {source}")]
    Parse {
        /// Path of the plan.
        path: String,
        /// Location and description of the error.
        source: Box<toml::de::Error>,
    },
    /// Parts of the plan contradict each other or are out of range.
    #[error("{0}")]
    Senseless(String),
}

/// A study: schemes times cases times seeded sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// One-line title for tables and plots.
    pub title: String,
    /// Question that the study answers, for its reader.
    #[serde(default)]
    pub about: String,
    /// Seed of all random values: losses, text, generation times.
    pub seed: u64,
    /// Number of sessions of each case and scheme.
    pub sessions: u32,
    /// Seconds of generation in each session.
    pub seconds: f64,
    /// Generator of the cases that do not set one.
    #[serde(default = "ten_per_second")]
    pub generator: Generator,
    /// Appearance of tokens in the cases that do not set it.
    #[serde(default)]
    pub text: TokenKind,
    /// Enables measuring the information about token lengths in packet lengths.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub observe: bool,
    /// The delivery schemes to compare.
    pub scheme: Vec<SchemeEntry>,
    /// The links and generators to compare them on.
    pub case: Vec<Case>,
    /// The scheme to compare with each of the others.
    #[serde(default)]
    pub compare: Option<Compare>,
    /// Claims of the study; every run checks them.
    #[serde(default)]
    pub claim: Vec<Claim>,
    /// The figures to draw.
    #[serde(default)]
    pub plot: Vec<Plot>,
}

fn ten_per_second() -> Generator {
    Generator::Constant { tokens_per_s: 10.0 }
}

/// A scheme in a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchemeEntry {
    /// Name in tables and plots; the scheme's own if absent.
    #[serde(default)]
    pub name: Option<String>,
    /// Rule for sending and repeating tokens.
    pub send: Scheme,
    /// Display of tokens by its client.
    #[serde(default)]
    pub reader: ReaderBehaviour,
}

fn direct() -> Link {
    Link::new(0.0, Channel::Clean)
}

impl SchemeEntry {
    /// Returns the name in tables and plots.
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.send.label())
    }
}

/// A link and a generator in a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Name in tables and plots.
    pub name: String,
    /// Position on the x axis of a line plot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<f64>,
    /// The link between server and client.
    #[serde(default = "direct")]
    pub link: Link,
    /// Draws link, generator and reader at random for each session instead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub random: bool,
    /// Generator, if it differs from the plan's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generator: Option<Generator>,
    /// Appearance of tokens, if it differs from the plan's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<TokenKind>,
}

/// Compares one scheme with each of the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compare {
    /// The scheme that is compared with the others.
    pub subject: String,
    /// The metric that is compared.
    pub metric: Metric,
}

/// A claim about a metric, or about the ratio of two schemes' metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The case; every case if absent.
    #[serde(default)]
    pub case: Option<String>,
    /// The scheme that the claim is about.
    pub of: String,
    /// If set, the metric is divided by this scheme's.
    #[serde(default)]
    pub over: Option<String>,
    /// The metric that the claim bounds.
    pub metric: Metric,
    /// Lower bound of the value, if any.
    #[serde(default)]
    pub at_least: Option<f64>,
    /// Upper bound of the value, if any.
    #[serde(default)]
    pub at_most: Option<f64>,
}

/// A metric of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Stall ratio of the paper.
    Full,
    /// The parts of stalls beyond 200 ms, over the same span.
    Excess,
    /// Share of tokens more than 400 ms after generation.
    Late,
    /// Mean time from generation until a token could be shown, in ms.
    DelayMs,
    /// Stall ratio of the text displayed by the pacing client.
    ShownFull,
    /// Mean time that a pacing client holds tokens back, in ms.
    HoldMs,
    /// Mean time from generation to display beyond half a round trip, in ms.
    AddedMs,
    /// Copies of each byte of text sent, beyond the first.
    Redundancy,
    /// Bytes sent to the client per second of generation in kB, headers included.
    WireKb,
    /// Bytes of acknowledgements per second of generation in kB, headers included.
    AckKb,
    /// Share of sessions that ended suspended instead of complete.
    Suspended,
    /// Information in the length of a packet with new text about that text's length, in bits.
    TextBits,
    /// Information in the difference to the previous packet's length about that text's length, in
    /// bits.
    ChangeBits,
    /// Information in a repetition's length about the length of the newest text, in bits.
    RepeatBits,
    /// Information in an acknowledgement's length about the length of the newly acknowledged text,
    /// in bits.
    AckBits,
}

impl Metric {
    /// Every metric of single sessions, in the order of the reports.
    const OF_SESSIONS: [Self; 11] = [
        Self::Full,
        Self::Excess,
        Self::Late,
        Self::DelayMs,
        Self::ShownFull,
        Self::HoldMs,
        Self::AddedMs,
        Self::Redundancy,
        Self::WireKb,
        Self::AckKb,
        Self::Suspended,
    ];
    /// Metrics of the information that an observer gains, estimated over all sessions of a cell at
    /// once.
    pub const OBSERVED: [Self; 4] =
        [Self::TextBits, Self::ChangeBits, Self::RepeatBits, Self::AckBits];

    /// Returns the name in CSV, JSON and plans.
    pub fn key(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Excess => "excess",
            Self::Late => "late",
            Self::DelayMs => "delay-ms",
            Self::ShownFull => "shown-full",
            Self::HoldMs => "hold-ms",
            Self::AddedMs => "added-ms",
            Self::Redundancy => "redundancy",
            Self::WireKb => "wire-kb",
            Self::AckKb => "ack-kb",
            Self::Suspended => "suspended",
            Self::TextBits => "text-bits",
            Self::ChangeBits => "change-bits",
            Self::RepeatBits => "repeat-bits",
            Self::AckBits => "ack-bits",
        }
    }

    /// Returns the name on an axis, with its unit.
    pub fn axis(self) -> &'static str {
        match self {
            Self::Full => "stall ratio",
            Self::Excess => "stall excess",
            Self::Late => "late tokens (share)",
            Self::DelayMs => "mean delay (ms)",
            Self::ShownFull => "displayed stall ratio",
            Self::HoldMs => "held back by the client (ms)",
            Self::AddedMs => "mean delay beyond RTT/2 (ms)",
            Self::Redundancy => "redundancy (copies after the first)",
            Self::WireKb => "wire (kB/s)",
            Self::AckKb => "acknowledgements (kB/s)",
            Self::Suspended => "suspended sessions (share)",
            Self::TextBits => "told by a packet's length (bits)",
            Self::ChangeBits => "told by a change of length (bits)",
            Self::RepeatBits => "told by a repetition's length (bits)",
            Self::AckBits => "told by an ACK's length (bits)",
        }
    }
}

/// A figure of the results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Plot {
    /// A point for each scheme, a panel for each case.
    Scatter(ScatterPlot),
    /// A bar for each scheme, a group for each case.
    Bars {
        /// File name without its suffix.
        file: String,
        /// The bars' heights, a panel for each.
        y: Vec<Metric>,
    },
    /// A line for each scheme over the cases' `at`.
    Lines {
        /// File name without its suffix.
        file: String,
        /// Meaning of `at`.
        x_label: String,
        /// The lines' heights, a panel for each.
        y: Vec<Metric>,
        /// Makes the x axis logarithmic.
        #[serde(default)]
        log_x: bool,
    },
    /// Tokens shown over time in one session.
    Session(SessionPlot),
}

impl Plot {
    /// Returns the file name without its suffix.
    pub fn file(&self) -> &str {
        match self {
            Self::Scatter(ScatterPlot { file, .. })
            | Self::Session(SessionPlot { file, .. })
            | Self::Bars { file, .. }
            | Self::Lines { file, .. } => file,
        }
    }

    /// Returns the metrics that the figure shows.
    fn metrics(&self) -> Vec<Metric> {
        match self {
            Self::Scatter(ScatterPlot { x, y, .. }) => vec![*x, *y],
            Self::Bars { y, .. } | Self::Lines { y, .. } => y.clone(),
            Self::Session(_) => Vec::new(),
        }
    }
}

/// One metric against another, a point for each scheme.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScatterPlot {
    /// File name without its suffix.
    pub file: String,
    /// The metric from left to right.
    pub x: Metric,
    /// The metric from bottom to top.
    pub y: Metric,
    /// Lists of schemes; each list is joined by a line.
    #[serde(default)]
    pub join: Vec<Vec<String>>,
    /// Schemes named in the legend.
    #[serde(default)]
    pub legend: LegendNames,
}

/// Tokens shown over time in one session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionPlot {
    /// File name without its suffix.
    pub file: String,
    /// The case that the session belongs to.
    pub case: String,
    /// The session's number, from 0.
    pub session: u32,
    /// Part of the session to show: start and end, in seconds.
    pub window_s: (f64, f64),
    /// Schemes to draw; all if empty.
    #[serde(default)]
    pub schemes: Vec<String>,
}

/// Schemes named in a legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LegendNames {
    /// Every scheme.
    #[default]
    All,
    /// The first scheme of each joined line, and those that are not joined.
    Joined,
}

impl Plan {
    /// Reads and checks the plan at `path`.
    ///
    /// # Errors
    /// If the file cannot be read, is not a plan, or a part of it is out of range.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| PlanError::Read { path: name.clone(), source })?;
        Self::parse(&name, &text)
    }

    /// Parses and checks the text of a plan; `name` is for messages.
    ///
    /// # Errors
    /// If it is not a plan, or a part of it is out of range.
    pub fn parse(name: &str, text: &str) -> Result<Self, PlanError> {
        let plan: Self = toml::from_str(text).map_err(|source| PlanError::Parse {
            path: name.to_owned(),
            source: Box::new(source),
        })?;
        plan.check(name)?;
        Ok(plan)
    }

    /// Checks a plan, which may have been changed since parsing; `name` is for messages.
    ///
    /// # Errors
    /// If a part of it is out of range.
    pub fn check(&self, name: &str) -> Result<(), PlanError> {
        match self.fault() {
            Some(fault) => Err(PlanError::Senseless(format!("{name}: {fault}"))),
            None => Ok(()),
        }
    }

    /// Returns the metrics of the plan's sessions, in the order of the reports.
    pub fn metrics(&self) -> impl Iterator<Item = Metric> {
        let observed = Metric::OBSERVED.into_iter().filter(|_| self.observe);
        Metric::OF_SESSIONS.into_iter().chain(observed)
    }

    /// Returns the appearance of tokens in `case`.
    pub fn text(&self, case: &Case) -> TokenKind {
        case.text.unwrap_or(self.text)
    }

    /// Returns the generator of `case`.
    pub fn generator<'a>(&'a self, case: &'a Case) -> &'a Generator {
        case.generator.as_ref().unwrap_or(&self.generator)
    }

    /// Describes the first part of the plan that is out of range or contradicts another.
    fn fault(&self) -> Option<String> {
        if !(1..=MAX_SESSIONS).contains(&self.sessions) {
            return Some(format!("sessions is not in 1..={MAX_SESSIONS}"));
        }
        if !(0.1..=MAX_SECONDS).contains(&self.seconds) {
            return Some(format!("seconds is not in 0.1..={MAX_SECONDS}"));
        }
        let case_fault = self.case.iter().find_map(|case| {
            let fault = case.link.fault().or_else(|| self.generator(case).fault())?;
            Some(format!("case {:?}: {fault}", case.name))
        });
        case_fault
            .or_else(|| {
                self.scheme
                    .iter()
                    .find_map(|entry| entry.send.fault().or_else(|| entry.reader.fault()))
            })
            .or_else(|| self.file_fault())
            .or_else(|| self.unobserved())
            .or_else(|| self.unknown_name())
    }

    /// Describes a metric that is used but not measured.
    fn unobserved(&self) -> Option<String> {
        let of_plots = self.plot.iter().flat_map(Plot::metrics);
        let of_claims = self.claim.iter().map(|claim| claim.metric);
        let compared = self.compare.iter().map(|compare| compare.metric);
        let known: Vec<Metric> = self.metrics().collect();
        let missing = of_plots.chain(of_claims).chain(compared).find(|used| !known.contains(used));
        missing.map(|metric| format!("{} needs observe = true", metric.key()))
    }

    /// Describes a figure's file that could lie outside the folder of the figures.
    fn file_fault(&self) -> Option<String> {
        let is_plain = |name: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
        };
        let file = self.plot.iter().map(Plot::file).find(|file| !is_plain(file))?;
        Some(format!("file = {file:?} is not a name of letters, digits, '.', '_' and '-'"))
    }

    /// Describes a scheme or a case that is mentioned but does not exist.
    fn unknown_name(&self) -> Option<String> {
        let labels: Vec<String> = self.scheme.iter().map(SchemeEntry::label).collect();
        let mut schemes: Vec<&String> = self.compare.iter().map(|c| &c.subject).collect();
        let mut cases: Vec<&String> = Vec::new();
        for claim in &self.claim {
            schemes.push(&claim.of);
            schemes.extend(&claim.over);
            cases.extend(&claim.case);
        }
        for plot in &self.plot {
            match plot {
                Plot::Scatter(scatter) => schemes.extend(scatter.join.iter().flatten()),
                Plot::Session(session) => {
                    cases.push(&session.case);
                    schemes.extend(&session.schemes);
                }
                Plot::Bars { .. } | Plot::Lines { .. } => {}
            }
        }
        let scheme = schemes.into_iter().find(|name| !labels.contains(name));
        let case = cases.into_iter().find(|name| !self.case.iter().any(|case| case.name == **name));
        scheme
            .map(|name| format!("no scheme is called {name:?}; check its `name`, or the default name of its kind"))
            .or_else(|| case.map(|name| format!("no case is called {name:?}; check the `name` of each case")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        title = "small"
        seed = 1
        sessions = 2
        seconds = 3.0
        scheme = [{ send = { kind = "tcp" } }]
        case = [{ name = "clean", link = { rtt_ms = 100.0 } }]
    "#;

    #[test]
    fn a_plan_needs_little() {
        let plan = Plan::parse("small", SMALL).expect("a plan");
        assert_eq!(plan.scheme[0].label(), "TCP");
        assert_eq!(plan.generator(&plan.case[0]), &ten_per_second());
    }

    #[test]
    fn figures_stay_in_their_folder() {
        let with = |file: &str| {
            let plot = format!("[[plot]]\nkind = \"bars\"\nfile = {file:?}\ny = []\n");
            Plan::parse("p", &format!("{}\n{plot}", SMALL))
        };
        assert!(with("fig-5.b_c").is_ok());
        for bad in ["/etc/x", "../x", "a/../../x", "a/b", ".x", "", "C:\\x", "x y"] {
            let error = with(bad).expect_err("a name that leads elsewhere").to_string();
            assert!(error.contains("file = "), "{bad:?}: {error}");
        }
    }

    #[test]
    fn a_changed_plan_is_checked_again() {
        let mut plan = Plan::parse("p", SMALL).expect("a plan");
        assert!(plan.check("p").is_ok());
        for sessions in [0, MAX_SESSIONS + 1] {
            plan.sessions = sessions;
            assert!(plan.check("p").is_err(), "{sessions}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let misspelt = SMALL.replace("sessions", "sesions");
        let error = Plan::parse("p", &misspelt).expect_err("unknown field");
        assert!(error.to_string().contains("sesions"), "{error}");
        let negative = SMALL.replace("100.0", "-1.0");
        let error = Plan::parse("p", &negative).expect_err("negative delay");
        assert!(error.to_string().contains("rtt_ms = -1"), "{error}");
        let stranger = format!("{SMALL}\ncompare = {{ subject = \"X\", metric = \"full\" }}");
        let error = Plan::parse("p", &stranger).expect_err("unknown scheme");
        assert!(error.to_string().contains("\"X\""), "{error}");
    }
}
