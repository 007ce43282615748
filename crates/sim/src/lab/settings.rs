//! The settings of the laboratory, and their bounds.

use serde::Serialize;

use crate::channel::Channel;
use crate::link::Link;
use crate::race::SharedAnswer;
use crate::reader::ReaderBehaviour;
use crate::scheme::{Scheme, Tuning};

/// Settings of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LabSettings {
    /// Round-trip time in ms.
    pub rtt_ms: f64,
    /// Share of packets that are lost, in percent.
    pub loss_percent: f64,
    /// Mean length of a period in which packets are lost, in ms; 0 loses each packet independently.
    pub burst_ms: f64,
    /// Tokens generated in one second.
    pub tokens_per_s: f64,
    /// Text that each client holds back to display it evenly, in ms.
    pub buffer_ms: f64,
    /// Loquent's packets are padded to a multiple of this, in bytes; 0 disables padding.
    pub padding_bytes: u64,
    /// Tokens in the answer.
    pub tokens: usize,
    /// Number of times that plain duplication sends each packet.
    pub copies: u32,
    /// Seed of the losses.
    pub seed: u64,
}

impl Default for LabSettings {
    /// Returns the settings of the paper's channel.
    fn default() -> Self {
        Self {
            rtt_ms: 400.0,
            loss_percent: 15.0,
            burst_ms: 200.0,
            tokens_per_s: 10.0,
            buffer_ms: 0.0,
            padding_bytes: 24,
            tokens: 139,
            copies: 3,
            seed: 7,
        }
    }
}

/// Bounds of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SettingRange {
    /// Name of the setting.
    pub name: &'static str,
    /// Minimum value.
    pub least: f64,
    /// Maximum value.
    pub most: f64,
    /// True if only whole numbers are allowed.
    pub whole: bool,
}

impl SettingRange {
    const fn new(name: &'static str, least: f64, most: f64, whole: bool) -> Self {
        Self { name, least, most, whole }
    }

    /// Bounds of every setting. Below six tokens per second each token would be a stall by
    /// definition; beyond the other bounds nothing new can be seen, and a run would take long.
    pub const ALL: [Self; 9] = [
        Self::new("rtt_ms", 0.0, 1_000.0, false),
        Self::new("loss_percent", 0.0, 45.0, false),
        Self::new("burst_ms", 0.0, 2_000.0, false),
        Self::new("tokens_per_s", 6.0, 100.0, false),
        Self::new("buffer_ms", 0.0, 1_000.0, false),
        Self::new("padding_bytes", 0.0, 256.0, true),
        Self::new("tokens", 24.0, 300.0, true),
        Self::new("copies", 2.0, 5.0, true),
        Self::new("seed", 0.0, 4_294_967_295.0, true),
    ];

    /// Returns the range of the setting called `name`.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|range| range.name == name)
    }
}

/// Reason why a setting cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SettingFault {
    /// There is no setting of this name.
    #[error("There is no setting of this name.")]
    Unknown,
    /// The value is not a number within the bounds.
    #[error(
        "{} must be a {} from {} to {}.",
        .0.name, if .0.whole { "whole number" } else { "number" }, .0.least, .0.most
    )]
    OutOfRange(SettingRange),
}

impl LabSettings {
    /// Sets the setting called `name`.
    ///
    /// # Errors
    /// If there is no such setting, or the value is out of range.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingFault> {
        let range = SettingRange::of(name).ok_or(SettingFault::Unknown)?;
        let fits = |value: &f64| {
            (range.least..=range.most).contains(value) && (!range.whole || value.fract() == 0.0)
        };
        let value = value.parse().ok().filter(fits).ok_or(SettingFault::OutOfRange(range))?;
        match range.name {
            "rtt_ms" => self.rtt_ms = value,
            "loss_percent" => self.loss_percent = value,
            "burst_ms" => self.burst_ms = value,
            "tokens_per_s" => self.tokens_per_s = value,
            "buffer_ms" => self.buffer_ms = value,
            "padding_bytes" => self.padding_bytes = value as u64,
            "tokens" => self.tokens = value as usize,
            "copies" => self.copies = value as u32,
            "seed" => self.seed = value as u64,
            name => unreachable!("{name} has a range and no place"),
        }
        Ok(())
    }

    /// Returns the four schemes, in display order.
    pub fn schemes(&self) -> [Scheme; 4] {
        let resend_ms = 200.0;
        [
            Scheme::TCP,
            Scheme::Duplication { copies: self.copies, resend_ms },
            Scheme::Eloquent { max_tokens: 10, resend_ms },
            Scheme::Loquent { tuning: Tuning::with_padding(self.padding_bytes), congestion: None },
        ]
    }

    /// Returns the link that all of them use.
    pub fn link(&self) -> Link {
        Link::new(self.rtt_ms, self.channel())
    }

    /// Returns the reader behaviour, the same for all clients.
    pub fn reader(&self) -> ReaderBehaviour {
        ReaderBehaviour { buffer_ms: self.buffer_ms, ..ReaderBehaviour::default() }
    }

    /// Returns the losses: the paper's two states, of which the lossy one loses nine packets in
    /// ten. With 15 % of loss in bursts of 200 ms this is the paper's default channel.
    fn channel(&self) -> Channel {
        const LOSS: f64 = 0.9;
        const STATE_MS: f64 = 100.0;
        let loss = self.loss_percent / 100.0;
        if loss == 0.0 {
            return Channel::Clean;
        }
        if self.burst_ms < 1.0 {
            return Channel::Random { loss };
        }
        let state_ms = self.burst_ms.min(STATE_MS);
        let leave_lossy = state_ms / self.burst_ms;
        let lossy_share = loss / LOSS;
        let leave_good = (leave_lossy * lossy_share / (1.0 - lossy_share)).min(1.0);
        Channel::Markov {
            stay_good: 1.0 - leave_good,
            stay_lossy: 1.0 - leave_lossy,
            loss: LOSS,
            state_ms,
        }
    }

    /// Returns the answer with the generation times of its tokens.
    pub fn answer(&self) -> SharedAnswer {
        let tokens: Vec<String> = tokens_of(ANSWER).cycle().take(self.tokens).collect();
        let at_us = |index: usize| (index as f64 * 1e6 / self.tokens_per_s).round() as u64;
        SharedAnswer { generated_us: (0..tokens.len()).map(at_us).collect(), tokens }
    }
}

/// Text that all lanes deliver: an explanation of the page.
const ANSWER: &str = include_str!("answer.txt");

/// Splits a text into pieces as long as a model's tokens: a word with the preceding space, long
/// words in two.
fn tokens_of(text: &'static str) -> impl Iterator<Item = String> + Clone {
    const LONG: usize = 8;
    let starts_word = |&(at, _): &(usize, char)| {
        let before = text[..at].chars().next_back();
        at == 0 || text[at..].starts_with([' ', '\n']) && before != Some('\n')
    };
    let starts: Vec<usize> =
        text.trim_end().char_indices().filter(starts_word).map(|it| it.0).collect();
    let ends = starts.clone().into_iter().skip(1).chain([text.trim_end().len()]);
    starts.into_iter().zip(ends).flat_map(|(start, end)| {
        let word = &text[start..end];
        let middle = word.floor_char_boundary(word.len().div_ceil(2));
        match word.len() > LONG {
            true => vec![word[..middle].to_owned(), word[middle..].to_owned()],
            false => vec![word.to_owned()],
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_channel_is_the_papers() {
        let paper = Channel::Markov { stay_good: 0.9, stay_lossy: 0.5, loss: 0.9, state_ms: 100.0 };
        let Channel::Markov { stay_good, stay_lossy, loss, state_ms } =
            LabSettings::default().channel()
        else {
            panic!("the default channel loses in bursts");
        };
        let rounded = |p: f64| (p * 1e9).round() / 1e9;
        let (stay_good, stay_lossy) = (rounded(stay_good), rounded(stay_lossy));
        assert_eq!(Channel::Markov { stay_good, stay_lossy, loss, state_ms }, paper);
    }

    #[test]
    fn every_setting_takes_its_bounds_and_nothing_beyond() {
        for range in SettingRange::ALL {
            let mut settings = LabSettings::default();
            for value in [range.least, range.most] {
                settings.set(range.name, &value.to_string()).expect("a bound is within");
                assert_eq!(settings.link().fault(), None);
                assert_eq!(settings.reader().fault(), None);
                assert!(settings.schemes().iter().all(|scheme| scheme.fault().is_none()));
            }
            let too_much = (range.most + 1.0).to_string();
            for value in ["", "x", "NaN", "inf", "-1", &too_much] {
                let fault = settings.set(range.name, value);
                assert_eq!(fault, Err(SettingFault::OutOfRange(range)), "{} = {value}", range.name);
            }
            let half = settings.set(range.name, &(range.least + 0.5).to_string());
            assert_eq!(half.is_err(), range.whole, "{}", range.name);
        }
        let unknown = LabSettings::default().set("sessions", "9");
        assert_eq!(unknown, Err(SettingFault::Unknown));
    }

    #[test]
    fn the_answers_tokens_are_its_text() {
        let tokens: Vec<String> = tokens_of(ANSWER).collect();
        assert_eq!(tokens.concat(), ANSWER.trim_end());
        assert!(tokens.len() >= 300, "{} tokens", tokens.len());
        assert!(tokens.iter().all(|token| (1..=12).contains(&token.len())), "{tokens:?}");
    }
}
