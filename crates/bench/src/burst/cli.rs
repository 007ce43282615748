//! `loquent bench burst`: its options as typed, resolved into a [`BurstRun`].

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use loquent_sim::burst::ContentRule;

use super::report::BurstTable;
use super::run::{BurstRun, prepare};
use crate::expected_time::about;
use crate::{BenchError, print};

const EXAMPLES: &str = "\
Examples:
  loquent serve --simulate 0+0.4+0.1 --max-batch-size 128 --reading-speed 10 --port 8081 &
  loquent serve --simulate 0+0.4+0.1 --max-batch-size 64 --port 8082 &
  loquent bench burst --url http://127.0.0.1:8081 --readers 40,60,80
  loquent bench burst --url http://127.0.0.1:8082 --readers 40,60,80

Exit status: 0 if enough readers of at least one burst were content, 1 if not.";

/// Measure how many readers can begin at once
///
/// All requests of a burst leave together, each over a QUIC connection of its own. A reader is
/// content if its first token comes in time and it hardly waits for text as it reads on. Compare
/// `loquent sim burst`, which plays the same in virtual time.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct BurstArgs {
    /// Server to measure
    #[arg(long, env = "LOQUENT_URL", value_name = "URL")]
    url: String,
    /// Numbers of readers, each a burst
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "16,32,64")]
    readers: Vec<usize>,
    /// Bursts of each number; the one with the fewest content readers counts
    #[arg(long, value_name = "N", default_value_t = 1)]
    runs: usize,
    /// Tokens of a prompt
    #[arg(long, value_name = "N", default_value_t = 256)]
    prompt_tokens: usize,
    /// Tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 300)]
    answer_tokens: u32,
    /// Speed at which the readers read, in tokens per second
    #[arg(long, value_name = "TOKENS_PER_S", default_value_t = 10.0)]
    reading_speed: f64,
    /// Longest time to the first token of a reader that is content, in seconds
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    ttft_s: f64,
    /// Largest part of its time that it waits for text, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    stalled: f64,
    /// How many of the readers have to be content, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 99.0)]
    content: f64,
    /// Model name in requests [default: the server's first]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// File with the API key
    #[arg(long, env = "LOQUENT_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    json: Option<PathBuf>,
    /// Print neither progress nor the table
    #[arg(long, short, help_heading = "Reports")]
    quiet: bool,
}

impl BurstArgs {
    /// Plays the bursts in turn and prints the table.
    ///
    /// # Errors
    /// If an option is out of range, the server cannot be used, or the report cannot be written.
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        self.check()?;
        let key = loquent_openai::api_key::api_key(None, self.api_key_file.as_deref())?;
        let (json, quiet, expected_s) = (self.json.clone(), self.quiet, self.expected_s());
        let run = BurstRun {
            url: self.url,
            api_key: key,
            model: self.model,
            prompt_tokens: self.prompt_tokens,
            answer_tokens: self.answer_tokens,
            token_time: Duration::from_secs_f64(1.0 / self.reading_speed),
            ttft_limit: Duration::from_secs_f64(self.ttft_s),
        };
        let content = ContentRule {
            ttft_s: self.ttft_s,
            stall_share: self.stalled / 100.0,
            readers_share: self.content / 100.0,
        };
        let mut table = BurstTable::new(content);
        if !quiet {
            let takes = about(expected_s);
            eprintln!("this takes {takes} if tokens come as fast as they are read");
        }
        let prepared = prepare(run).await?;
        for &readers in &self.readers {
            for _ in 0..self.runs {
                if !quiet {
                    eprintln!("{readers} readers");
                }
                table.add(prepared.play(readers).await?);
            }
        }
        let saved = json.map_or(Ok(()), |path| table.write(&path));
        if !quiet {
            print(table.text())?;
        }
        saved?;
        Ok(if table.largest().is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Returns the time that the bursts take if all readers are content and tokens come no faster
    /// than they are read, in seconds.
    fn expected_s(&self) -> f64 {
        let one_s = self.ttft_s + f64::from(self.answer_tokens) / self.reading_speed;
        (self.readers.len() * self.runs) as f64 * one_s
    }

    fn check(&self) -> Result<(), BenchError> {
        let readers = self.readers.iter().all(|number| (1..=2_000).contains(number));
        let percent = |value: f64| (0.0..100.0).contains(&value);
        let checks = [
            (!self.readers.is_empty() && readers, "--readers must be 1 to 2000"),
            ((1..=100).contains(&self.runs), "--runs must be 1 to 100"),
            ((4..=100_000).contains(&self.prompt_tokens), "--prompt-tokens must be 4 to 100000"),
            ((2..=10_000).contains(&self.answer_tokens), "--answer-tokens must be 2 to 10000"),
            ((0.5..=1000.0).contains(&self.reading_speed), "--reading-speed must be 0.5 to 1000"),
            ((0.001..=600.0).contains(&self.ttft_s), "--ttft-s must be 0.001 to 600"),
            (percent(self.stalled), "--stalled must be 0 to 100"),
            (percent(self.content) || self.content == 100.0, "--content must be 0 to 100"),
        ];
        match checks.into_iter().find(|(holds, _)| !holds) {
            Some((_, reason)) => Err(BenchError::Options(reason.into())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        burst: BurstArgs,
    }

    #[test]
    fn the_time_is_that_of_all_bursts_at_the_readers_speed() {
        let line = ["bench", "--url", "http://127.0.0.1:1", "--readers", "16,32", "--runs", "3"];
        assert_eq!(Cli::parse_from(line).burst.expected_s(), 6.0 * 32.0);
    }

    #[test]
    fn options_out_of_range_are_refused() {
        let parse = |args: &[&str]| {
            let all = ["bench", "--url", "http://127.0.0.1:1"].iter().chain(args);
            Cli::parse_from(all).burst.check()
        };
        assert!(parse(&["--readers", "1,2000"]).is_ok());
        for args in [["--readers", "1,0"], ["--prompt-tokens", "3"], ["--content", "101"]] {
            let refused = parse(&args).unwrap_err().to_string();
            assert!(refused.contains(args[0]), "{refused}");
        }
    }
}
