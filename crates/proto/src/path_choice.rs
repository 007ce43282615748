//! Choice between two paths that deliver the same answer: which of them carries it, and which one
//! waits.
//!
//! Over the preferred path frames come in a rhythm, its sender's own. A silence much longer than
//! that is a loss, or a pause of the generator; the receiver cannot tell, and in a pause the other
//! path costs next to nothing. So each such silence wakes the other path, until the preferred one
//! has kept its rhythm for a second.

use crate::Micros;
use crate::receiver::MAX_PATHS;

/// Use of two paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PathMode {
    /// The preferred path carries the answer; the other one only while the preferred one is losing.
    #[default]
    Backup,
    /// Both carry it always.
    Redundant,
}

/// Time for which the preferred path must keep its rhythm before it carries the answer alone.
/// Losses come in runs: on the paper's channel (§2.2) half of the runs are followed by another
/// within a second.
const CALM_AFTER: Micros = Micros::from_ms(1_000);
/// Rhythm to assume before any was measured: 20 tokens a second.
const FIRST_GAP: Micros = Micros::from_ms(50);
/// Gaps longer than this are pauses of the generator and say nothing of the rhythm.
const PAUSE: Micros = Micros::from_ms(500);
/// Patience beyond one gap: as long as the gap, within these bounds. At 20 tokens a second the
/// other path is woken after 100 ms, so that a round trip of 100 ms on it still hides the loss from
/// a reader, who notices 200 ms (the paper, §2.2).
const MARGIN: [Micros; 2] = [Micros::from_ms(40), Micros::from_ms(80)];

/// State of the preferred path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathPhase {
    /// Frames come in their rhythm: this path carries the answer alone.
    Calm,
    /// Frames were missing: the other path carries the answer too. `since`: when the latest frames
    /// began to keep the rhythm, `None` during a silence.
    Losing { since: Option<Micros> },
}

/// Frames of the preferred path.
#[derive(Debug, Clone, Copy)]
struct FrameRhythm {
    last: Micros,
    packet: Option<u64>,
    /// Smoothed time between two packets as sent, lost ones counted.
    gap: Micros,
}

impl FrameRhythm {
    const fn from(now: Micros) -> Self {
        Self { last: now, packet: None, gap: FIRST_GAP }
    }

    fn note(&mut self, now: Micros, packet: u64) {
        let sent = self.packet.map_or(0, |before| packet.saturating_sub(before));
        let passed = now.since(self.last);
        if sent > 0 && passed < PAUSE {
            self.gap = Micros((self.gap.0 * 7 + passed.0 / sent) / 8);
        }
        self.packet = self.packet.max(Some(packet));
        self.last = now;
    }

    /// When the silence becomes too long.
    fn late_at(&self) -> Micros {
        let [least, most] = MARGIN;
        self.last + self.gap + self.gap.clamp(least, most)
    }
}

/// Chooses between two paths, which it knows by their slots at the receiver. Time is an argument
/// and never goes back.
#[derive(Debug, Clone)]
pub struct PathChoice {
    mode: PathMode,
    preferred: usize,
    present: [bool; MAX_PATHS],
    phase: PathPhase,
    rhythm: FrameRhythm,
}

impl PathChoice {
    /// Creates a choice without paths, of which the one in slot `preferred` is better.
    pub const fn new(now: Micros, mode: PathMode, preferred: usize) -> Self {
        let phase = PathPhase::Losing { since: None };
        Self { mode, preferred, present: [false; MAX_PATHS], phase, rhythm: FrameRhythm::from(now) }
    }

    /// Notes that a path begins.
    pub fn add_path(&mut self, now: Micros, slot: usize) {
        self.note_presence(now, slot, true);
    }

    /// Notes that a path has ended.
    pub fn drop_path(&mut self, now: Micros, slot: usize) {
        self.note_presence(now, slot, false);
    }

    fn note_presence(&mut self, now: Micros, slot: usize, is_present: bool) {
        if let Some(present) = self.present.get_mut(slot) {
            *present = is_present;
        }
        if slot == self.preferred {
            // It carries the answer alone once it has shown that it can.
            self.phase = PathPhase::Losing { since: None };
            self.rhythm = FrameRhythm::from(now);
        }
    }

    /// Notes that a frame has arrived on a path, whose largest packet number is now `packet`.
    pub fn handle_frame(&mut self, now: Micros, slot: usize, packet: u64) {
        if slot != self.preferred {
            return;
        }
        self.handle_timeout(now);
        self.rhythm.note(now, packet);
        if let PathPhase::Losing { since } = self.phase {
            let since = since.unwrap_or(now);
            let is_calm = now.since(since) >= CALM_AFTER;
            self.phase =
                if is_calm { PathPhase::Calm } else { PathPhase::Losing { since: Some(since) } };
        }
    }

    /// Notes that nothing was read for a while: the reader was behind, not the path.
    pub const fn forgive_silence(&mut self, now: Micros) {
        self.rhythm.last = now;
    }

    /// Handles the passage of time.
    pub fn handle_timeout(&mut self, now: Micros) {
        if now >= self.rhythm.late_at() {
            self.phase = PathPhase::Losing { since: None };
        }
    }

    /// Time for the next call of [`Self::handle_timeout`]; `None` if only a frame changes anything.
    pub fn poll_timeout(&self) -> Option<Micros> {
        (self.phase != PathPhase::Losing { since: None }).then(|| self.rhythm.late_at())
    }

    /// Returns true if the path in `slot` waits while the other one carries the answer.
    pub fn is_quiet(&self, slot: usize) -> bool {
        let is_spare = slot != self.preferred && self.present[self.preferred];
        is_spare && self.mode == PathMode::Backup && self.phase == PathPhase::Calm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP_MS: u64 = 50;

    /// A choice with both paths, fed with frames on the preferred one.
    struct Fed {
        choice: PathChoice,
        now_ms: u64,
        packet: u64,
    }

    impl Fed {
        fn new(mode: PathMode) -> Self {
            let mut choice = PathChoice::new(Micros::ZERO, mode, 0);
            choice.add_path(Micros::ZERO, 0);
            choice.add_path(Micros::ZERO, 1);
            Self { choice, now_ms: 0, packet: 0 }
        }

        fn wait(&mut self, ms: u64) {
            for _ in 0..ms {
                self.now_ms += 1;
                self.choice.handle_timeout(Micros::from_ms(self.now_ms));
            }
        }

        /// `count` packets are sent, one each `gap_ms`, of which the last one arrives.
        fn packets(&mut self, count: u64, gap_ms: u64) {
            self.wait(count * gap_ms);
            self.packet += count;
            self.choice.handle_frame(Micros::from_ms(self.now_ms), 0, self.packet);
        }

        fn calm() -> Self {
            let mut fed = Self::new(PathMode::Backup);
            (0..30).for_each(|_| fed.packets(1, GAP_MS));
            assert!(fed.choice.is_quiet(1) && !fed.choice.is_quiet(0));
            fed
        }
    }

    #[test]
    fn the_spare_path_waits_once_the_preferred_one_has_kept_its_rhythm() {
        let mut fed = Fed::new(PathMode::Backup);
        assert!(!fed.choice.is_quiet(1), "nothing is known of the preferred path yet");
        fed.packets(1, GAP_MS);
        (0..19).for_each(|_| fed.packets(1, GAP_MS));
        assert!(!fed.choice.is_quiet(1), "950 ms");
        fed.packets(1, GAP_MS);
        assert!(fed.choice.is_quiet(1));
    }

    #[test]
    fn a_silence_of_two_gaps_wakes_it_and_a_second_of_rhythm_ends_that() {
        let mut fed = Fed::calm();
        fed.wait(99);
        assert!(fed.choice.is_quiet(1), "one packet may be lost");
        fed.wait(1);
        assert!(!fed.choice.is_quiet(1));
        assert_eq!(fed.choice.poll_timeout(), None, "only a frame changes anything now");
        fed.packets(1, GAP_MS);
        (0..19).for_each(|_| fed.packets(1, GAP_MS));
        assert!(!fed.choice.is_quiet(1));
        fed.packets(3, GAP_MS);
        assert!(!fed.choice.is_quiet(1), "another loss within the second starts it again");
        (0..20).for_each(|_| fed.packets(1, GAP_MS));
        assert!(fed.choice.is_quiet(1));
    }

    #[test]
    fn patience_follows_the_senders_rhythm() {
        for (gap_ms, patience_ms) in [(10, 50), (50, 100), (200, 280)] {
            let mut fed = Fed::new(PathMode::Backup);
            (0..200).for_each(|_| fed.packets(1, gap_ms));
            fed.wait(patience_ms - 2);
            assert!(fed.choice.is_quiet(1), "{gap_ms}");
            fed.wait(4);
            assert!(!fed.choice.is_quiet(1), "{gap_ms}");
        }
    }

    #[test]
    fn lost_packets_do_not_pass_for_a_slow_sender() {
        let mut fed = Fed::calm();
        // Two of three are lost; what was sent between is known by the numbers.
        (0..30).for_each(|_| fed.packets(3, 30));
        assert!(!fed.choice.is_quiet(1));
        assert!(fed.choice.rhythm.gap <= Micros::from_ms(31), "{:?}", fed.choice.rhythm);
    }

    #[test]
    fn pauses_of_the_generator_do_not_slow_the_rhythm() {
        let mut fed = Fed::calm();
        fed.packets(1, 5_000);
        assert!(!fed.choice.is_quiet(1), "in a pause the other path is awake");
        assert_eq!(fed.choice.rhythm.gap, Micros::from_ms(GAP_MS));
    }

    #[test]
    fn a_path_that_is_alone_is_never_quiet() {
        let mut fed = Fed::calm();
        let now = Micros::from_ms(fed.now_ms);
        fed.choice.drop_path(now, 0);
        assert!(!fed.choice.is_quiet(1));
        fed.choice.add_path(now, 0);
        assert!(!fed.choice.is_quiet(1), "the preferred one has to show that it is back");
        (0..30).for_each(|_| fed.packets(1, GAP_MS));
        assert!(fed.choice.is_quiet(1));
    }

    #[test]
    fn redundant_paths_are_never_quiet() {
        let mut fed = Fed::new(PathMode::Redundant);
        (0..60).for_each(|_| fed.packets(1, GAP_MS));
        assert!(!fed.choice.is_quiet(0) && !fed.choice.is_quiet(1));
    }

    #[test]
    fn a_reader_that_is_behind_wakes_nothing() {
        let mut fed = Fed::calm();
        for _ in 0..100 {
            fed.now_ms += 10;
            fed.choice.forgive_silence(Micros::from_ms(fed.now_ms));
            fed.choice.handle_timeout(Micros::from_ms(fed.now_ms));
        }
        assert!(fed.choice.is_quiet(1));
    }
}
