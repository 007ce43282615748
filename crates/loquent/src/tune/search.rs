//! Selects the settings to try, their order, and the best one.
//!
//! Coordinate search: one setting is varied after the other, each time starting from the best
//! settings so far. The settings hardly depend on each other, and all combinations would take an
//! hour. A value is replaced only by one whose gain is larger than the noise between two runs.
//!
//! Machines are seldom idle. The best settings, and those nearly as good, are measured again beside
//! a busy program, and those are taken that are best in both ([`Found::weigh`]).

use crate::profile::TunedSettings;

/// Minimum speed-up, as a factor, for a value to replace the current one. Chosen by hand: if lower,
/// noise decides; if higher, small gains are lost.
const WORTHWHILE: f64 = 1.03;

/// Minimum share of the best score, for settings to be measured beside a busy program. Chosen by
/// hand: what loses more on an idle machine would have to gain much beside others.
const NEARLY_BEST: f64 = 0.9;
/// Maximum number of settings to measure beside a busy program.
const MOST_BESIDE: usize = 4;

/// Speed of one choice of settings, in tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Speed {
    /// One sequence decoding alone.
    pub alone: f64,
    /// The sum over all sequences of a full batch.
    pub full: f64,
    /// Prompt tokens of one sequence.
    pub prefill: f64,
}

impl Speed {
    /// Returns the geometric mean: a factor gained in one figure balances the same factor lost in
    /// another.
    fn score(&self) -> f64 {
        (self.alone * self.full * self.prefill).cbrt()
    }
}

/// Measures the speed of settings.
pub trait Lab {
    /// Returns the speed with these settings; `None` if the engine refuses them or no time is left.
    fn measure(&mut self, settings: &TunedSettings) -> Option<Speed>;
}

/// Values to try for each setting.
#[derive(Debug, Clone)]
pub struct Choices {
    /// Numbers of compute threads.
    pub threads: Vec<u16>,
    /// Polling levels of idle threads, 0 to 100.
    pub polls: Vec<u32>,
    /// Sizes of a pass through the layers, in tokens.
    pub pass_tokens: Vec<u32>,
    /// True if Loquent has kernels for this machine.
    pub loquent_kernels: bool,
}

/// Settings with their measured speed.
#[derive(Debug, Clone, PartialEq)]
pub struct TuneTrial {
    /// Description of the varied setting and its value.
    pub what: String,
    /// All settings of this trial.
    pub settings: TunedSettings,
    /// Measured speed.
    pub speed: Speed,
}

/// Results of the search.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The trial with the best settings.
    pub best: TuneTrial,
    /// The trial that the search started with.
    pub first: TuneTrial,
    /// All trials in the order of measurement.
    pub trials: Vec<TuneTrial>,
    /// The trials that were measured again beside a busy program, with their speed there.
    pub beside: Vec<(TuneTrial, Speed)>,
}

impl Found {
    /// Measures the best settings, and those nearly as good, by `lab`, which has a busy program
    /// beside it. Takes those with the best product of both scores: what loses least.
    pub fn weigh(&mut self, lab: &mut dyn Lab) {
        let score = |trial: &TuneTrial| trial.speed.score();
        let least = score(&self.best) * NEARLY_BEST;
        let mut near: Vec<_> = self
            .trials
            .iter()
            .filter(|trial| **trial != self.best && score(trial) >= least)
            .collect();
        near.sort_by(|a, b| score(b).total_cmp(&score(a)));
        let candidates = [&self.best].into_iter().chain(near).take(MOST_BESIDE);
        let measured =
            candidates.map_while(|trial| Some((trial.clone(), lab.measure(&trial.settings)?)));
        self.beside = measured.collect();
        let product = |(trial, busy): &(TuneTrial, Speed)| score(trial) * busy.score();
        // The first one is the best on an idle machine.
        let Some(first) = self.beside.first() else { return };
        let by_product = |a: &&_, b: &&_| product(a).total_cmp(&product(b));
        let taken = self
            .beside
            .iter()
            .max_by(by_product)
            .filter(|it| product(it) > product(first) * WORTHWHILE);
        if let Some((trial, _)) = taken {
            self.best = trial.clone();
        }
    }
}

/// Searches from `start`; returns `None` if not even that could be measured.
pub fn search(lab: &mut dyn Lab, start: TunedSettings, choices: &Choices) -> Option<Found> {
    let first = TuneTrial { what: "as it is".into(), settings: start, speed: lab.measure(&start)? };
    let mut found = Found {
        best: first.clone(),
        first: first.clone(),
        trials: vec![first],
        beside: Vec::new(),
    };
    for variation in variations(choices) {
        for (what, change) in variation {
            let mut settings = found.best.settings;
            change(&mut settings);
            // Each setting's present value is among its variations.
            let known = found.trials.iter().any(|trial| trial.settings == settings);
            if known {
                continue;
            }
            // Refused settings are passed over; when time is over every further one is refused.
            let Some(speed) = lab.measure(&settings) else { continue };
            let trial = TuneTrial { what, settings, speed };
            if trial.speed.score() > found.best.speed.score() * WORTHWHILE {
                found.best = trial.clone();
            }
            found.trials.push(trial);
        }
    }
    Some(found)
}

type Change = Box<dyn Fn(&mut TunedSettings)>;

/// Returns the variations of each setting. The setting with the largest effect comes first, so that
/// a search that runs out of time has tried it.
fn variations(choices: &Choices) -> Vec<Vec<(String, Change)>> {
    fn one(what: String, change: impl Fn(&mut TunedSettings) + 'static) -> (String, Change) {
        (what, Box::new(change))
    }
    let threads =
        choices.threads.iter().map(|&n| one(format!("threads {n}"), move |s| s.threads = n));
    let products = [true, false].into_iter().filter(|own| choices.loquent_kernels || !own);
    let kernels = |own: bool| if own { "kernels: loquent" } else { "kernels: llama.cpp" };
    let polls = choices.polls.iter().map(|&n| one(format!("poll {n}"), move |s| s.poll = n));
    let passes = choices.pass_tokens.iter();
    vec![
        threads.collect(),
        products.map(|own| one(kernels(own).into(), move |s| s.loquent_kernels = own)).collect(),
        polls.collect(),
        [true, false]
            .map(|on| {
                one(format!("flash attention {}", if on { "on" } else { "off" }), move |s| {
                    s.flash_attention = on;
                })
            })
            .into(),
        [true, false]
            .map(|unified| {
                one(format!("KV {}", if unified { "unified" } else { "per sequence" }), move |s| {
                    s.kv_unified = unified;
                })
            })
            .into(),
        passes.map(|&n| one(format!("micro-batch {n}"), move |s| s.pass_tokens = n)).collect(),
    ]
}

#[cfg(test)]
mod tests {
    //! Checks that the search finds the best of separable settings and is not misled by noise.
    use super::*;

    /// A machine whose speed is a product of one factor per setting.
    struct Machine {
        measured: Vec<TunedSettings>,
        refuses_flash: bool,
        left: usize,
    }

    impl Lab for Machine {
        fn measure(&mut self, s: &TunedSettings) -> Option<Speed> {
            self.left = self.left.checked_sub(1)?;
            if s.flash_attention && self.refuses_flash {
                return None;
            }
            self.measured.push(*s);
            let threads = [0.0, 1.0, 1.8, 1.5][usize::from(s.threads)];
            let poll = if s.poll == 50 { 1.2 } else { 1.0 };
            // Two per cent: noise.
            let unified = if s.kv_unified { 1.0 } else { 1.02 };
            let flash = if s.flash_attention { 1.1 } else { 1.0 };
            let own = if s.loquent_kernels { 1.5 } else { 1.0 };
            let speed = 10.0 * threads * poll * unified * flash * own;
            let prefill = speed * if s.pass_tokens == 128 { 1.3 } else { 1.0 };
            Some(Speed { alone: speed, full: speed * 4.0, prefill })
        }
    }

    fn machine() -> Machine {
        Machine { measured: Vec::new(), refuses_flash: false, left: 1000 }
    }

    fn start() -> TunedSettings {
        TunedSettings {
            threads: 3,
            poll: 0,
            kv_unified: true,
            flash_attention: false,
            loquent_kernels: false,
            pass_tokens: 512,
        }
    }

    fn choices() -> Choices {
        let (threads, polls) = (vec![1, 2, 3], vec![0, 50, 100]);
        Choices { threads, polls, pass_tokens: vec![128, 256, 512], loquent_kernels: true }
    }

    #[test]
    fn each_setting_finds_its_best() {
        let mut machine = machine();
        let found = search(&mut machine, start(), &choices()).unwrap();
        let best = TunedSettings {
            threads: 2,
            poll: 50,
            kv_unified: true,
            flash_attention: true,
            loquent_kernels: true,
            pass_tokens: 128,
        };
        assert_eq!(found.best.settings, best);
        assert_eq!(found.first.settings, start());
        assert_eq!(found.trials.len(), machine.measured.len());
        let mut distinct = machine.measured.clone();
        distinct.dedup();
        assert_eq!(distinct, machine.measured, "nothing is measured twice");
    }

    /// A machine with a busy program beside it: more than two threads wait for each other, and more
    /// than one a little.
    struct BusyMachine(Machine);

    impl Lab for BusyMachine {
        fn measure(&mut self, s: &TunedSettings) -> Option<Speed> {
            let Speed { alone, full, prefill } = self.0.measure(s)?;
            let left = [0.0, 1.0, 0.8, 0.1][usize::from(s.threads)];
            Some(Speed { alone: alone * left, full: full * left, prefill: prefill * left })
        }
    }

    /// The trials of threads whose speed is nearly the same on an idle machine.
    fn found(speeds: &[(u16, f64)]) -> Found {
        let trial = |&(threads, speed): &(u16, f64)| TuneTrial {
            what: format!("threads {threads}"),
            settings: TunedSettings { threads, ..start() },
            speed: Speed { alone: speed, full: speed, prefill: speed },
        };
        let trials: Vec<_> = speeds.iter().map(trial).collect();
        let best = trials.iter().max_by(|a, b| a.speed.alone.total_cmp(&b.speed.alone)).unwrap();
        Found { best: best.clone(), first: trials[0].clone(), trials, beside: Vec::new() }
    }

    #[test]
    fn what_loses_least_beside_a_busy_program_is_taken() {
        for (speeds, measured, taken) in [
            (&[(1, 5.0), (2, 95.0), (3, 100.0)][..], 2, 2),
            // Too slow on an idle machine, whatever it is beside others.
            (&[(2, 85.0), (3, 100.0)], 1, 3),
            (&[(2, 100.0), (1, 96.0)], 2, 2),
        ] {
            let mut found = found(speeds);
            found.weigh(&mut BusyMachine(machine()));
            assert_eq!((found.beside.len(), found.best.settings.threads), (measured, taken));
        }
        let mut none = found(&[(3, 100.0), (2, 95.0)]);
        none.weigh(&mut BusyMachine(Machine { left: 0, ..machine() }));
        assert_eq!((none.beside.len(), none.best.settings.threads), (0, 3), "out of time");
    }

    #[test]
    fn what_the_engine_refuses_is_passed_over() {
        let mut lab = Machine { refuses_flash: true, ..machine() };
        let found = search(&mut lab, start(), &choices()).unwrap();
        assert!(!found.best.settings.flash_attention);
        assert_eq!((found.best.settings.threads, found.best.settings.poll), (2, 50));
        let mut none = choices();
        none.loquent_kernels = false;
        assert!(!search(&mut machine(), start(), &none).unwrap().best.settings.loquent_kernels);
    }

    #[test]
    fn out_of_time_keeps_what_is_known() {
        let mut lab = Machine { left: 3, ..machine() };
        let found = search(&mut lab, start(), &choices()).unwrap();
        assert_eq!((found.trials.len(), found.best.settings.threads), (3, 2));
        assert_eq!(search(&mut Machine { left: 0, ..machine() }, start(), &choices()), None);
    }
}
