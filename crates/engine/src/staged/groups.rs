//! How many batches are in flight through the stages at once.
//!
//! With one batch in flight a stage idles while the others work. With two, sequences are
//! spread over two smaller batches, each of which costs more than half of the large one, but
//! stages and links work at the same time. Which wins depends on what a stage costs at
//! which size, on the links, and on whether stages have processors of their own; the last
//! cannot be asked for. So [`Policy`] predicts from measured times, tries what promises a
//! gain, and goes back when it was none.

use std::collections::BTreeMap;
use std::time::Duration;

use super::MAX_GROUPS;
use super::wire::Lap;

/// What the operator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Groups {
    /// Found by measuring.
    #[default]
    Auto,
    /// Always so many.
    Fixed(u8),
}

impl std::str::FromStr for Groups {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<u8>() {
            Ok(n) if (1..=MAX_GROUPS as u8).contains(&n) => Ok(Self::Fixed(n)),
            _ if text == "auto" => Ok(Self::Auto),
            _ => Err(format!("\"auto\" or 1 to {MAX_GROUPS}")),
        }
    }
}

/// A prediction must promise this much more for a trial.
const WORTH_TRYING: f64 = 1.04;
/// A trial must bring this much more to be kept.
const WORTH_KEEPING: f64 = 1.02;
/// Rounds (every group once) in a measurement, and rounds before it that do not count.
const ROUNDS: usize = 10;
const SETTLING_ROUNDS: usize = 2;
/// Rounds after which a trial that goes badly is broken off, and what is bad.
const FIRST_ROUNDS: usize = 3;
const BAD: f64 = 0.93;
/// How long a number that lost is not tried again; doubled each time that it loses.
const FIRST_BAN: Duration = Duration::from_secs(4);
const LONGEST_BAN: Duration = Duration::from_secs(120);
/// Batches of a trial that take so many times longer in the stages than batches of their size
/// did before: stages fight for processors. Two that share one fairly take twice as long;
/// threads that wait for each other spinning take many times that.
const FIGHT: f64 = 2.5;
/// How long numbers above half of such a one are not tried again, and how long what was learned of
/// sharing holds; doubled each time.
const FIRST_FIGHT_BAN: Duration = Duration::from_secs(30);
const LONGEST_FIGHT_BAN: Duration = Duration::from_secs(600);
/// Less of a prediction than this shows that stages wait for each other.
const AS_PREDICTED: f64 = 0.9;
/// A measurement in which the load changed by more than this factor compares with nothing.
const STEADY: usize = 2;
/// Weight of a new measurement in an average.
const NEW: f64 = 0.2;

/// One finished decode batch.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    /// When it came back, on any clock.
    pub now: Duration,
    /// Its sequences.
    pub rows: usize,
    /// Sequences in all batches in flight when it was submitted, its own included.
    pub sequences: usize,
    /// Its stay in each stage.
    pub trace: &'a [Lap],
    /// What of its way was spent on links.
    pub on_links: Duration,
}

/// Chooses the number of groups.
#[derive(Debug)]
pub struct Policy {
    choice: Groups,
    current: usize,
    /// Per stage and size class of batches: seconds.
    costs: Vec<BTreeMap<u32, f64>>,
    links_s: f64,
    window: Window,
    trial: Option<Trial>,
    /// By sequences (size class) and groups: until when it is not tried, and how long.
    bans: BTreeMap<(u32, usize), (Duration, Duration)>,
    fight: Option<Fight>,
    sharing: Option<Sharing>,
}

/// From what number on stages are expected to fight for processors.
#[derive(Debug, Clone, Copy)]
struct Fight {
    groups: usize,
    until: Duration,
    length: Duration,
}

/// Stages that do not disturb each other and yet bring less than predicted: they wait for each other.
#[derive(Debug, Clone, Copy)]
struct Sharing {
    /// How many compute at once.
    at_once: f64,
    until: Duration,
    length: Duration,
}

/// A measurement in progress.
#[derive(Debug, Default)]
struct Window {
    batches: usize,
    rows: usize,
    /// Time of computing in all stages.
    busy_s: f64,
    /// Most and fewest sequences in flight.
    sequences: usize,
    fewest: Option<usize>,
    since: Duration,
}

impl Window {
    fn is_steady(&self) -> bool {
        self.fewest.is_some_and(|fewest| self.sequences < STEADY * fewest)
    }

    fn seconds(&self, now: Duration) -> f64 {
        now.saturating_sub(self.since).as_secs_f64().max(1e-9)
    }

    fn rate(&self, now: Duration) -> f64 {
        self.rows as f64 / self.seconds(now)
    }
}

/// What is being tried, and what it must beat.
#[derive(Debug, Clone, Copy)]
struct Trial {
    before: usize,
    rows_per_s: f64,
    class: u32,
    /// Its batches so far, their time in the stages, and what that was to be.
    batches: usize,
    actual_s: f64,
    expected_s: f64,
}

/// Sizes of which one is at most a third more than another behave alike.
fn class(rows: usize) -> u32 {
    (rows.max(1) as f64).log2().mul_add(2.0, 0.5) as u32
}

/// Twice the last time, within bounds.
fn longer(last: Option<Duration>, first: Duration, longest: Duration) -> Duration {
    last.map_or(first, |last| last * 2).min(longest)
}

impl Policy {
    /// A policy for so many stages.
    pub fn new(choice: Groups, stages: usize) -> Self {
        let current = match choice {
            Groups::Auto => 1,
            Groups::Fixed(n) => usize::from(n).clamp(1, MAX_GROUPS),
        };
        Self {
            choice,
            current,
            costs: vec![BTreeMap::new(); stages],
            links_s: 0.0,
            window: Window::default(),
            trial: None,
            bans: BTreeMap::new(),
            fight: None,
            sharing: None,
        }
    }

    /// Batches that may be in flight.
    pub fn groups(&self) -> usize {
        self.current
    }

    /// Learns from a decode batch, and may change its mind.
    pub fn observe(&mut self, seen: &Observation<'_>) {
        if self.is_fight(seen) {
            // What was measured in it says nothing of the stages.
            return self.end_fight(seen.now);
        }
        for (costs, lap) in self.costs.iter_mut().zip(seen.trace) {
            let seconds = f64::from(lap.compute_us) / 1e6;
            let cost = costs.entry(class(seen.rows)).or_insert(seconds);
            *cost += NEW * (seconds - *cost);
        }
        self.links_s += NEW * (seen.on_links.as_secs_f64() - self.links_s);
        if self.choice != Groups::Auto {
            return;
        }
        let window = &mut self.window;
        window.batches += 1;
        if window.batches <= SETTLING_ROUNDS * self.current {
            window.since = seen.now;
            return;
        }
        window.rows += seen.rows;
        window.busy_s += seen.trace.iter().map(|lap| f64::from(lap.compute_us) / 1e6).sum::<f64>();
        window.sequences = window.sequences.max(seen.sequences);
        window.fewest = Some(window.fewest.map_or(seen.sequences, |n| n.min(seen.sequences)));
        let rounds = window.batches / self.current;
        if rounds >= SETTLING_ROUNDS + ROUNDS {
            self.judge(seen.now);
        } else if rounds == SETTLING_ROUNDS + FIRST_ROUNDS {
            self.break_off(seen.now);
        }
    }

    /// Whether the number on trial makes stages stand in each other's way, after a round of it.
    fn is_fight(&mut self, seen: &Observation<'_>) -> bool {
        let Some(trial) = &mut self.trial else { return false };
        let stages = self.costs.iter().zip(seen.trace);
        for (costs, lap) in stages {
            trial.expected_s += cost(costs, seen.rows);
            trial.actual_s += f64::from(lap.compute_us) / 1e6;
        }
        trial.batches += 1;
        trial.batches >= self.current && trial.actual_s > FIGHT * trial.expected_s
    }

    fn end_fight(&mut self, now: Duration) {
        let trial = self.trial.take().expect("it is fought in a trial");
        let last = self.fight.map(|last| last.length);
        let length = longer(last, FIRST_FIGHT_BAN, LONGEST_FIGHT_BAN);
        // Half of it may be tried: some links are long enough to fill, and some cores are free.
        self.fight = Some(Fight { groups: self.current / 2 + 1, until: now + length, length });
        self.window = Window::default();
        self.current = trial.before;
    }

    /// Ends a trial early that shows already that stages stand in each other's way.
    fn break_off(&mut self, now: Duration) {
        let rows_per_s = self.window.rate(now);
        if let Some(trial) = self.trial.filter(|trial| rows_per_s < trial.rows_per_s * BAD) {
            let window = std::mem::take(&mut self.window);
            self.learn_sharing(now, &window);
            self.go_back(now, trial);
        }
    }

    /// A measurement is complete.
    fn judge(&mut self, now: Duration) {
        let window = std::mem::take(&mut self.window);
        let rows_per_s = window.rate(now);
        let class = class(window.sequences);
        match self.trial.take() {
            // The load has changed: the two cannot be compared.
            Some(trial) if trial.class != class || !window.is_steady() => {
                return self.current = trial.before;
            }
            Some(trial) => {
                self.learn_sharing(now, &window);
                if rows_per_s < trial.rows_per_s * WORTH_KEEPING {
                    return self.go_back(now, trial);
                }
            }
            None => {}
        }
        // A trial would be held against the speed of another load, and be kept though it loses.
        if !window.is_steady() {
            return;
        }
        if let Some(sharing) = &mut self.sharing
            && sharing.until <= now
        {
            sharing.at_once = f64::INFINITY;
        }
        let (best, promise) = self.best(window.sequences, rows_per_s, now);
        if best != self.current && promise > rows_per_s * WORTH_TRYING {
            let before = self.current;
            self.trial = Some(Trial {
                before,
                rows_per_s,
                class,
                batches: 0,
                actual_s: 0.0,
                expected_s: 0.0,
            });
            self.current = best;
        } else if self.current > window.sequences.max(1) {
            self.current = window.sequences.max(1);
        }
    }

    /// The number on trial has lost: it is not tried again for a while.
    fn go_back(&mut self, now: Duration, trial: Trial) {
        self.trial = None;
        let key = (trial.class, self.current);
        let last = self.bans.get(&key).map(|(_, length)| *length);
        let length = longer(last, FIRST_BAN, LONGEST_BAN);
        self.bans.insert(key, (now + length, length));
        self.current = trial.before;
    }

    /// A trial that brings less than its costs, which are known by now, let expect: so many stages
    /// compute at once, and no more.
    fn learn_sharing(&mut self, now: Duration, window: &Window) {
        let promise = self.predict(window.sequences, self.current);
        if window.is_steady() && window.rate(now) < promise * AS_PREDICTED {
            let last = self.sharing.map(|last| last.length);
            let length = longer(last, FIRST_FIGHT_BAN, LONGEST_FIGHT_BAN);
            // Whoever waits for others waits for one at least.
            let at_once = (window.busy_s / window.seconds(now)).max(1.0);
            self.sharing = Some(Sharing { at_once, until: now + length, length });
        }
    }

    /// The number that promises most, and how many rows a second; the present one brings `rows_per_s`.
    fn best(&self, sequences: usize, rows_per_s: f64, now: Duration) -> (usize, f64) {
        let class = class(sequences);
        let fights = |groups: usize| {
            self.fight.is_some_and(|fight| groups >= fight.groups && fight.until > now)
        };
        let is_banned =
            |groups: usize| self.bans.get(&(class, groups)).is_some_and(|(until, _)| *until > now);
        let promise = |groups: usize| match groups {
            _ if groups == self.current => Some((groups, rows_per_s)),
            _ if fights(groups) || is_banned(groups) => None,
            _ => Some((groups, self.predict(sequences, groups))),
        };
        let promises = (1..=sequences.clamp(1, MAX_GROUPS)).filter_map(promise);
        promises.fold((1, 0.0), |best, next| if next.1 > best.1 * 1.01 { next } else { best })
    }

    /// Rows a second of `sequences` in so many groups, if stages do not disturb each other: a
    /// round ends when the slowest stage has served every group, but no sooner than one
    /// group has gone all the way, or than all is computed by those that compute at once.
    fn predict(&self, sequences: usize, groups: usize) -> f64 {
        let rows = sequences.div_ceil(groups);
        let costs: Vec<f64> = self.costs.iter().map(|costs| cost(costs, rows)).collect();
        let slowest = costs.iter().copied().fold(0.0, f64::max);
        let all = costs.iter().sum::<f64>();
        let at_once = self.sharing.map_or(f64::INFINITY, |sharing| sharing.at_once);
        let round =
            (slowest * groups as f64).max(all + self.links_s).max(all * groups as f64 / at_once);
        sequences as f64 / round.max(1e-9)
    }
}

/// Seconds of a batch of `rows`: measured at this size, or inferred from the nearest. A step
/// reads the weights whatever its size, so half of the cost is taken for constant.
fn cost(costs: &BTreeMap<u32, f64>, rows: usize) -> f64 {
    let wanted = class(rows);
    let nearest = costs.iter().min_by_key(|(known, _)| known.abs_diff(wanted));
    nearest.map_or(0.0, |(&known, &seconds)| {
        let ratio = ((f64::from(wanted) - f64::from(known)) / 2.0).exp2();
        seconds * (0.5 + 0.5 * ratio)
    })
}

#[cfg(test)]
mod tests {
    //! What a measurement may be held against; the model beside this file tests the rest.
    use super::*;

    /// Lets a policy of two stages see `rounds` batches of `rows`, each 20 ms in both stages.
    fn decode(policy: &mut Policy, now: &mut Duration, rows: usize, rounds: usize) {
        let lap = Lap { wait_us: 0, compute_us: 20_000 };
        for _ in 0..rounds {
            *now += Duration::from_millis(50);
            policy.observe(&Observation {
                now: *now,
                rows,
                sequences: rows,
                trace: &[lap, lap],
                on_links: Duration::from_millis(10),
            });
        }
    }

    #[test]
    fn a_trial_does_not_begin_while_the_load_grows() {
        let (mut policy, mut now) = (Policy::new(Groups::Auto, 2), Duration::ZERO);
        decode(&mut policy, &mut now, 1, SETTLING_ROUNDS + ROUNDS / 2);
        decode(&mut policy, &mut now, 16, ROUNDS / 2);
        assert_eq!(policy.groups(), 1, "held against the speed of another load");
        decode(&mut policy, &mut now, 16, SETTLING_ROUNDS + ROUNDS);
        assert!(policy.groups() > 1, "steady, and two stages idle half of the time");
    }
}
