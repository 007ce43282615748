//! Tests for each rule of section 8 of `spec/delivery.md`; without padding, except in its own
//! tests.

use super::*;
use crate::frame::Ack;
use crate::path::RecentPackets;

const fn ms(ms: u64) -> Micros {
    Micros::from_ms(ms)
}

/// When the last packet was sent, unless a test sets another time.
const T: Micros = ms(10_000);

fn at(after_ms: u64) -> Option<Micros> {
    Some(T + ms(after_ms))
}

/// Bytes of a frame around its log bytes.
const HEADER_BYTES: usize = 10;

/// A sender's state: an old, steady path with a round trip of 100 ms; 60 bytes of a log of 100 were
/// generated and sent at [`T`] and are unacknowledged.
struct Known {
    config: SenderConfig,
    path: PathEstimate,
    pacer: SendPacer,
    bucket: TokenBucket,
    progress: LogProgress,
    times: SendTimes,
    rhythm: Rhythm,
    reader: ReaderState,
    head: u64,
    is_ended: bool,
    lengths: RecentLengths,
    packets: u64,
}

impl Known {
    fn new() -> Self {
        let config = SenderConfig { padding_step_bytes: 0, ..SenderConfig::default() };
        let mut known = Self {
            path: PathEstimate::new(0, ms(100)),
            pacer: fast_pacer(),
            bucket: TokenBucket::new(config.bucket_bytes_per_s, config.bucket_depth_bytes),
            progress: LogProgress::default(),
            times: SendTimes {
                last_send: Some(T),
                last_new_text: Some(T),
                ..SendTimes::new(ms(0))
            },
            rhythm: Rhythm { first_token: Some(5), last_push: T, ..Rhythm::new(ms(0)) },
            reader: ReaderState::default(),
            head: 100,
            is_ended: false,
            lengths: RecentLengths::default(),
            packets: 0,
            config,
        };
        known.progress.on_sent(ms(0), &(0..40));
        known.progress.on_acknowledged(40);
        known.progress.on_sent(T, &(40..100));
        known
    }

    /// Makes the acknowledgements of the next packets measure these round trips.
    fn measure(&mut self, rtts_ms: &[u64]) {
        for rtt in rtts_ms {
            self.path.on_sent(self.packets, ms(1_000), 160);
            let ack = Ack { largest: Some(self.packets), ..Ack::default() };
            assert!(self.path.on_ack(ms(1_000 + rtt), &ack, &self.config.burst));
            self.packets += 1;
        }
    }

    /// Loses four packets in a row shortly before `T`; the round trip is 100 ms.
    fn lose_a_burst(&mut self) {
        for number in 0..9 {
            self.path.on_sent(number, ms(9_000 + 20 * number), 160);
        }
        let ack = Ack { largest: Some(8), missing: 0b111_1000, ..Ack::default() };
        self.path.on_ack(ms(9_260), &ack, &self.config.burst);
        assert_eq!(self.path.last_burst(), Some(ms(9_080)));
    }

    /// Loses packets in runs of eight until that is known; the round trip is `rtt_ms`.
    fn lose_in_runs(&mut self, rtt_ms: u64) {
        for run in 0..10 {
            (0..12).for_each(|i| self.path.on_sent(12 * run + i, ms(9_000 + 2 * i), 160));
            // Those of earlier runs stay lost.
            let missing = (0..=run.min(4)).fold(0, |all, run| all | 0b111_1111_1000 << (12 * run));
            let ack = Ack { largest: Some(12 * run + 11), missing, ..Ack::default() };
            self.path.on_ack(ms(9_022 + rtt_ms), &ack, &self.config.burst);
        }
        assert!(self.path.loses_in_runs());
    }

    fn schedule(&self) -> Schedule<'_> {
        Schedule {
            config: &self.config,
            path: &self.path,
            pacer: &self.pacer,
            bucket: &self.bucket,
            progress: &self.progress,
            times: &self.times,
            rhythm: &self.rhythm,
            reader: &self.reader,
            head: self.head,
            is_ended: self.is_ended,
            header_bytes: HEADER_BYTES,
            lengths: &self.lengths,
        }
    }
}

/// Returns a pacer whose gap has shrunk to its minimum, 5 ms, after round trips without a queue.
fn fast_pacer() -> SendPacer {
    let mut pacer = SendPacer::new(ms(0), ms(30));
    (1..20).for_each(|i| pacer.on_round_trip(ms(100 * i), ms(100), ms(0)));
    assert_eq!(pacer.gap(), SendPacer::LEAST);
    pacer
}

#[test]
fn new_text_leaves_10_ms_after_the_last_or_25_ms_if_text_comes_fast() {
    let mut known = Known::new();
    assert_eq!(known.schedule().when_new_text(T), at(10));
    assert_eq!(known.schedule().when_new_text(T + ms(30)), at(30), "not before it exists");
    known.rhythm.push_gap = ms(49);
    assert_eq!(known.schedule().when_new_text(T), at(25));
    known.pacer = SendPacer::new(T, ms(30));
    assert_eq!(known.schedule().when_new_text(T), at(50), "the floor under all gaps");
}

#[test]
fn the_first_text_and_the_first_token_wait_for_nothing() {
    let mut known = Known::new();
    known.times.last_new_text = None;
    assert_eq!(known.schedule().when_new_text(T), at(0));
    known.times.last_new_text = Some(T);
    known.rhythm.first_token = Some(101);
    assert_eq!(known.schedule().when_new_text(T), at(0));
}

#[test]
fn new_text_waits_while_the_path_is_down() {
    let mut known = Known::new();
    // Overdue 200 ms after it left, down 500 ms later.
    assert_eq!(known.schedule().when_new_text(T + ms(700)), at(700));
    assert_eq!(known.schedule().when_new_text(T + ms(701)), None);
    known.measure(&[100, 160]);
    assert_eq!(known.schedule().when_new_text(T + ms(901)), None, "one round trip is jitter");
    known.measure(&[160]);
    assert_eq!(known.schedule().when_new_text(T + ms(901)), at(901), "a queue explains it");
}

#[test]
fn an_overdue_acknowledgement_repeats_at_a_growing_gap() {
    let mut known = Known::new();
    let when = |known: &Known, last_ms| known.schedule().when_overdue(T + ms(last_ms));
    assert_eq!(when(&known, 0), at(200), "srtt + 4 var after the oldest byte left");
    let third = Micros(ms(100).0 / 3);
    assert_eq!(when(&known, 250), Some(T + ms(250) + third), "a third of the round trip");
    assert_eq!(when(&known, 600), at(640), "a tenth of the time that it is overdue");
    assert_eq!(when(&known, 1_200), at(1_300), "on a path that never answered");
    assert_eq!(when(&known, 9_000), at(9_200), "200 ms at most");
    known.measure(&[100]);
    assert_eq!(when(&known, 2_000), at(2_060), "60 ms at most on a path that answered once");
    known.pacer = SendPacer::new(T, ms(30));
    assert_eq!(when(&known, 250), at(300), "the floor under all gaps");
    known.progress.on_acknowledged(100);
    assert_eq!(when(&known, 250), None, "nothing is unacknowledged");
}

#[test]
fn within_runs_of_losses_repetitions_leave_often() {
    let mut known = Known::new();
    known.lose_in_runs(200);
    let overdue = known.path.rtt.overdue_after() + ms(20);
    assert_eq!(known.schedule().when_overdue(T + overdue), Some(T + overdue + ms(10)));
}

#[test]
fn on_a_path_that_loses_in_runs_copies_are_fewer_the_sooner_a_loss_is_known() {
    for (rtt_ms, first, next) in
        [(400, at(45), at(75)), (200, at(60), at(105)), (100, at(60), at(105)), (50, None, None)]
    {
        let mut known = Known::new();
        known.lose_in_runs(rtt_ms);
        known.rhythm.push_gap = ms(1_000);
        assert_eq!(known.schedule().when_copy(T), first, "{rtt_ms} ms");
        assert_eq!(known.schedule().when_copy(T + ms(45)), next, "{rtt_ms} ms");
    }
}

#[test]
fn nothing_is_overdue_while_a_queue_stands() {
    let mut known = Known::new();
    known.measure(&[100, 100]);
    assert!(known.schedule().when_overdue(T).is_some());
    known.measure(&[131, 131]);
    assert!(known.schedule().is_queueing(), "31 ms in two round trips");
    assert_eq!(known.schedule().when_overdue(T), None);
}

#[test]
fn repetitions_are_no_faster_than_a_thin_link() {
    let mut known = Known::new();
    known.lose_a_burst();
    // 160 bytes arrive every 64 ms, 20 kbit/s, and then the queue is gone.
    let round_trips = [(9, 9_300, 100), (10, 9_364, 140), (11, 9_428, 180), (12, 9_700, 100)];
    for (number, arrival_ms, rtt_ms) in round_trips {
        known.path.on_sent(number, ms(arrival_ms - rtt_ms), 160);
        // Those of the burst stay lost.
        let missing = 0b111_1000 << (number - 8);
        let ack = Ack { largest: Some(number), missing, ..Ack::default() };
        assert!(known.path.on_ack(ms(arrival_ms), &ack, &known.config.burst));
    }
    let schedule = known.schedule();
    let frame_bytes = schedule.cost(schedule.frame_bytes(60));
    let gap = Micros(frame_bytes * 64_000 / 160);
    assert!(gap > known.config.first_copy_gap, "a thin link");
    assert_eq!(schedule.when_copy(T), Some(T + gap));
    known.times.last_send = Some(T + ms(500));
    assert_eq!(known.schedule().when_overdue(T + ms(500)), Some(T + ms(500) + gap));
}

#[test]
fn a_steady_path_gets_no_copies_and_a_new_one_every_25_ms() {
    let mut known = Known::new();
    assert_eq!(known.schedule().when_copy(T), None);
    known.times.opened = T;
    assert_eq!(known.schedule().when_copy(T + ms(10)), at(35));
    assert_eq!(known.schedule().when_copy(T + ms(500)), None, "it is known by now");
}

#[test]
fn a_bursty_path_gets_copies_40_ms_after_text_and_a_sixth_of_a_round_trip_later() {
    let mut known = Known::new();
    known.lose_a_burst();
    assert_eq!(known.schedule().when_copy(T), at(40));
    let next = known.schedule().when_copy(T + ms(40)).expect("bursty");
    assert_eq!(next, T + ms(40) + Micros(16_666));
    let later = T + ms(8_000);
    known.times.last_new_text = Some(later);
    assert_eq!(known.schedule().when_copy(later), None, "8 s after the burst");
}

#[test]
fn a_queue_doubles_the_gap_between_copies_until_there_are_none() {
    for (queue_ms, copy) in [(39, at(35)), (40, at(60)), (60, at(110)), (80, None)] {
        let mut known = Known::new();
        known.times.opened = T;
        known.rhythm.last_push = ms(0); // no text is expected
        known.measure(&[100, 100 + queue_ms, 100 + queue_ms]);
        assert_eq!(known.schedule().when_copy(T + ms(10)), copy, "{queue_ms} ms");
    }
}

#[test]
fn copies_keep_clear_of_expected_text_and_leave_if_it_does_not_come() {
    // Text is expected 100 ms after T.
    let known = Known::new();
    let clear = |after_ms| known.schedule().clear_of_new_text(T + ms(after_ms), ms(40));
    assert_eq!(clear(90), T + ms(90), "a quarter of the gap before it");
    assert_eq!(clear(91), T + ms(120), "half of the gap after it");
    assert_eq!(clear(119), T + ms(120));
    assert_eq!(clear(121), T + ms(121));
}

#[test]
fn copies_leave_a_reserve_in_the_bucket() {
    let mut known = Known::new();
    known.lose_a_burst();
    known.bucket.take(T, known.config.bucket_depth_bytes - 800);
    assert!(known.schedule().when_copy(T) > at(40));
    let due = known.schedule().when_affordable((T + ms(40), SendReason::Repeat), 60);
    assert_eq!(due, Some((T + ms(40), SendReason::Repeat)), "an overdue one may take it");
}

#[test]
fn something_leaves_at_the_latest_200_ms_after_the_last() {
    let mut known = Known::new();
    assert_eq!(known.schedule().when_gap_is_longest(T), T + ms(200));
    known.measure(&[300, 300]); // not overdue for long
    assert_eq!(known.schedule().when_repeat(), at(200));
}

#[test]
fn a_hidden_page_is_served_once_a_second_and_gets_the_end_at_once() {
    let mut known = Known::new();
    known.reader.hidden = true;
    assert_eq!(known.schedule().urgency(T), ReaderUrgency::Hidden);
    assert_eq!(known.schedule().when_in_background(T), at(1_000));
    assert_eq!(known.schedule().when_new_text(T), at(1_000));
    (known.head, known.is_ended) = (110, true);
    assert_eq!(known.schedule().when_in_background(T), at(0));
}

#[test]
fn a_reader_that_is_behind_is_served_when_it_needs_text() {
    let mut known = Known::new();
    known.reader.pace_bytes_per_s = 50;
    // It needs text a round trip and 500 ms before it has shown all.
    for (left_ms, when) in [(600, None), (700, at(200)), (1_000, at(400)), (9_000, at(1_000))] {
        known.reader.shows_until = T + ms(left_ms);
        assert_eq!(known.schedule().when_in_background(T), when, "{left_ms} ms left");
    }
    assert_eq!(known.schedule().when_repeat(), at(1_000), "neither copies nor overdue ones");
    known.reader.pace_bytes_per_s = 0;
    assert_eq!(known.schedule().urgency(T), ReaderUrgency::Eager, "it shows text as it comes");
}

#[test]
fn only_packets_without_new_text_wait_for_the_bucket() {
    let mut known = Known::new();
    known.head = 120;
    known.times.unsent_since = Some(T);
    known.bucket.take(T, known.config.bucket_depth_bytes);
    assert_eq!(known.schedule().when_next(), Some((T + ms(10), SendReason::NewText)));
    known.times.unsent_since = None;
    // 60 log bytes, at most 28 of the frame's own and 60 of headers below, at 3200 per second.
    known.progress.on_sent(T, &(100..120));
    known.times.last_send = Some(ms(9_000));
    let (due, reason) = known.schedule().when_next().expect("a repetition");
    assert_eq!(reason, SendReason::Repeat);
    assert!(due > T + ms(40), "{due}");
}

#[test]
fn a_probe_is_answered_at_once_even_if_everything_is_acknowledged() {
    let mut known = Known::new();
    known.progress.on_acknowledged(100);
    assert_eq!(known.schedule().when_next(), None);
    known.times.probed_at = Some(T);
    assert_eq!(known.schedule().when_next(), Some((T, SendReason::ProbeReply)));
    assert_eq!(known.schedule().choose(T, SendReason::ProbeReply), 100..100);
}

#[test]
fn a_packet_carries_all_that_is_unacknowledged_if_it_fits() {
    let mut known = Known::new();
    known.head = 120;
    assert_eq!(known.schedule().choose(T, SendReason::NewText), 40..120);
    assert_eq!(known.schedule().choose(T, SendReason::Repeat), 40..120);
}

#[test]
fn new_text_takes_as_much_before_it_as_fits_and_64_bytes_through_a_queue() {
    let mut known = Known::new();
    let max_bytes = known.schedule().max_log_bytes();
    known.progress.on_sent(T, &(100..5_000));
    known.head = 5_010;
    let range = known.schedule().choose(T, SendReason::NewText);
    assert_eq!(range, 5_010 - max_bytes..5_010);
    known.measure(&[100, 200, 200]);
    assert_eq!(known.schedule().choose(T, SendReason::NewText), 4_936..5_010);
    assert_eq!(known.schedule().choose(T, SendReason::Repeat), 40..168, "128 bytes");
}

#[test]
fn a_repetition_is_short_on_a_path_that_never_answered() {
    let mut known = Known::new();
    known.progress.on_sent(T, &(100..5_000));
    known.head = 5_000;
    let choose = |known: &Known, at| known.schedule().choose(at, SendReason::Repeat);
    assert!(choose(&known, T + ms(200)).end > 1_000, "nothing is overdue yet");
    assert_eq!(choose(&known, T + ms(201)), 40..168, "128 bytes");
    known.measure(&[100]);
    assert!(choose(&known, T + ms(201)).end > 1_000, "it has answered");
}

/// Sends ten packets of 160 bytes, the last one at [`T`], which takes a link of 20 kbit/s 64 ms.
fn unanswered() -> Known {
    let mut known = Known::new();
    (0..10).for_each(|number| known.path.on_sent(number, ms(9_100 + 100 * number), 160));
    (known.packets, known.head, known.times.unsent_since) = (10, 130, Some(T));
    known.times.opened = T;
    known
}

#[test]
fn on_a_path_that_never_answered_copies_wait_for_a_thin_link() {
    let mut known = unanswered();
    known.times.unsent_since = None;
    known.progress.on_sent(T, &(100..130));
    assert_eq!(known.schedule().when_copy(T), at(25));
    assert_eq!(known.schedule().when_next(), Some((T + ms(64), SendReason::Repeat)));
    known.measure(&[100]);
    assert_eq!(known.schedule().when_next(), Some((T + ms(25), SendReason::Repeat)));
}

#[test]
fn behind_many_unanswered_bytes_new_text_waits_for_a_thin_link_and_travels_light() {
    let mut known = unanswered();
    known.progress.on_sent(T, &(100..5_000));
    known.head = 5_010;
    assert_eq!(known.schedule().when_new_text(T), at(64));
    assert_eq!(known.schedule().choose(T, SendReason::NewText), 4_936..5_010);
    assert_eq!(known.schedule().choose(T, SendReason::Repeat), 40..168, "128 bytes");
    known.measure(&[100]);
    assert_eq!(known.schedule().when_new_text(T), at(10));
    assert!(known.schedule().choose(T, SendReason::NewText).start < 4_000);
}

#[test]
fn repetitions_take_turns_past_what_the_reader_holds() {
    let mut known = Known::new();
    let max_bytes = known.schedule().max_log_bytes();
    known.progress.on_sent(T, &(100..5_000));
    known.head = 5_000;
    known.progress.held = vec![700..900, 1_500..2_000];
    known.progress.round_robin = 40;
    let choose = |known: &Known| known.schedule().choose(T, SendReason::Repeat);
    assert_eq!(choose(&known), 40..700, "up to the first range that has arrived");
    known.progress.round_robin = 700;
    assert_eq!(choose(&known), 900..1_500);
    known.progress.round_robin = 1_600;
    assert_eq!(choose(&known), 2_000..2_000 + max_bytes);
    known.progress.round_robin = 5_000;
    assert_eq!(choose(&known), 40..700, "a new round");
    known.bucket.take(T, 2_000);
    let affordable = choose(&known);
    assert_eq!(affordable.start, 40, "a short one carries the oldest bytes");
    assert!((128..600).contains(&(affordable.end - affordable.start)), "{affordable:?}");
}

/// A queue of others keeps the round trip at 1300 ms, and 40 % of the packets are lost; the first
/// round trip took 100 ms, but is forgotten.
fn crowded() -> Known {
    let mut known = Known::new();
    known.measure(&[100, 1_300, 1_300]);
    known.path.rtt.forget_min();
    let packets = RecentPackets { lost_per_mille: 400, mean_wire_bytes: 160 };
    known.pacer.on_fates(ms(1_300), known.path.rtt.excess(), Some(packets));
    known
}

#[test]
fn a_queue_that_others_keep_full_slows_everything_even_if_it_counts_as_a_longer_path() {
    let known = crowded();
    assert!(!known.pacer.is_standing(known.path.rtt.queue()));
    assert!(known.schedule().is_queueing());
    assert_eq!(known.schedule().when_new_text(T), at(400));
    assert_eq!(known.schedule().when_repeat(), at(400));
}

#[test]
fn in_a_queue_of_others_text_and_what_is_overdue_take_turns() {
    let mut known = crowded();
    (known.times.unsent_since, known.head) = (Some(T), 130);
    // The byte that left first is of T, so nothing is overdue yet.
    assert_eq!(known.schedule().when_next(), Some((T + ms(400), SendReason::NewText)));
    let later = T + ms(10_000);
    (known.times.last_send, known.times.last_new_text) = (Some(later), Some(later));
    let next = known.schedule().when_next();
    assert_eq!(next, Some((later + ms(400), SendReason::Repeat)), "after text");
    known.times.last_send = Some(later + ms(400));
    let next = known.schedule().when_next();
    assert_eq!(next, Some((later + ms(800), SendReason::NewText)), "after a repetition");
}

#[test]
fn a_frame_is_as_long_as_its_step_and_at_most_the_largest_datagram() {
    let mut known = Known::new();
    known.config.padding_step_bytes = 32;
    let lengths =
        |known: &Known, log_bytes: [u64; 5]| log_bytes.map(|n| known.schedule().frame_bytes(n));
    assert_eq!(lengths(&known, [0, 1, 22, 23, 1_139]), [10, 32, 32, 64, 1_150]);
    known.config.padding_step_bytes = 0;
    assert_eq!(lengths(&known, [0, 1, 22, 23, 1_139]), [10, 11, 32, 33, 1_149]);
}

#[test]
fn a_frame_is_a_step_longer_while_one_of_the_latest_needed_that() {
    let mut known = Known::new();
    known.config.padding_step_bytes = 32;
    for (needed, length) in [(32, 32), (64, 64), (320, 64)] {
        known.lengths.note(needed, 3);
        assert_eq!(known.schedule().frame_bytes(5), length, "after one of {needed}");
    }
    known.lengths.note(32, 3);
    assert_eq!(known.schedule().frame_bytes(5), 64, "320 is among the last three");
    known.measure(&[100, 200, 200]);
    assert_eq!(known.schedule().frame_bytes(5), 32, "but not into a queue");
    known.lengths.note(32, 3);
    known.lengths.note(32, 3);
    known.measure(&[100, 100, 100, 100]);
    assert_eq!(known.schedule().frame_bytes(5), 32);
}

#[test]
fn repetitions_fill_their_frames_instead_of_padding_them() {
    let mut known = Known::new();
    known.config.padding_step_bytes = 48;
    known.progress.on_sent(T, &(100..5_000));
    known.head = 5_010;
    known.measure(&[100, 200, 200]);
    // 10 bytes of new text and 64 before them do not fill 96 bytes: as many as fill 48.
    assert_eq!(known.schedule().choose(T, SendReason::NewText), 4_972..5_010);
    assert_eq!(known.schedule().choose(T, SendReason::Repeat), 40..126, "96 bytes with the header");
}
