//! Tests of the residency in virtual time: the order of loads and unloads, and that no request loses
//! its model or waits forever.

use proptest::prelude::*;

use crate::models::residency::*;

const MIB: u64 = 1 << 20;
const NO_LIMITS: ResidencyLimits =
    ResidencyLimits { max_loaded: usize::MAX, memory_bytes: 1 << 40, idle: None };

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ids<const N: usize>() -> [ModelId; N] {
    std::array::from_fn(ModelId)
}

/// A residency whose moves take no time.
struct World {
    residency: ModelResidency,
    now: Duration,
}

impl World {
    fn new(limits: ResidencyLimits, bytes: &[u64]) -> Self {
        Self { residency: ModelResidency::new(limits, bytes.iter().copied()), now: s(100) }
    }

    /// Performs all pending moves; returns them.
    fn settle(&mut self) -> Vec<Move> {
        let mut moves = Vec::new();
        while let Some(next) = self.residency.next_move(self.now, None) {
            moves.push(next);
            match next {
                Move::Load(id) => self.residency.loaded(id, self.now),
                Move::Unload(id) => self.residency.unloaded(id),
            }
            assert!(moves.len() < 100, "it comes to rest");
        }
        moves
    }

    /// Simulates a request that waits until its model is loaded, and uses it.
    fn take(&mut self, id: ModelId) -> Vec<Move> {
        if self.residency.try_use(id, self.now) {
            return Vec::new();
        }
        self.residency.wait(id, self.now).unwrap();
        let moves = self.settle();
        assert!(self.residency.try_use(id, self.now), "{id:?} has its turn");
        self.residency.end_wait(id);
        moves
    }

    fn visit(&mut self, id: ModelId) -> Vec<Move> {
        let moves = self.take(id);
        self.residency.end_use(id, self.now);
        self.now += s(1);
        moves
    }

    fn after(&mut self, time: Duration) -> Vec<Move> {
        self.now += time;
        self.settle()
    }
}

#[test]
fn requests_that_wait_for_one_model_leave_room_for_those_for_others() {
    let [slow, other, .., fifth] = ids::<5>();
    let mut world = World::new(NO_LIMITS, &[MIB; 5]);
    for _ in 0..3 {
        assert!(!world.residency.is_crowded(slow, 3));
        world.residency.wait(slow, world.now).unwrap();
    }
    assert!(world.residency.is_crowded(slow, 3));
    assert!(!world.residency.is_crowded(other, 3));
    for id in [1, 2, 3].map(ModelId) {
        (0..3).for_each(|_| world.residency.wait(id, world.now).unwrap());
    }
    assert!(world.residency.is_crowded(fifth, 3), "all models together have a bound, too");
    world.residency.end_wait(slow);
    assert!(!world.residency.is_crowded(fifth, 3) && !world.residency.is_crowded(slow, 3));
}

#[test]
fn a_model_is_loaded_when_it_is_asked_for_and_stays() {
    let [a, b] = ids();
    let mut world = World::new(NO_LIMITS, &[MIB, MIB]);
    assert_eq!(world.settle(), []);
    assert_eq!(world.visit(a), [Move::Load(a)]);
    assert_eq!(world.visit(a), []);
    assert_eq!(world.visit(b), [Move::Load(b)]);
    assert_eq!(world.after(s(100_000)), []);
    assert_eq!(world.residency.present_bytes(), 2 * MIB);
}

#[test]
fn the_least_recently_used_makes_room() {
    let [a, b, c] = ids();
    for limits in [
        ResidencyLimits { max_loaded: 2, ..NO_LIMITS },
        ResidencyLimits { memory_bytes: 5 * MIB / 2, ..NO_LIMITS },
    ] {
        let mut world = World::new(limits, &[MIB; 3]);
        world.visit(a);
        world.visit(b);
        world.visit(a);
        assert_eq!(world.visit(c), [Move::Unload(b), Move::Load(c)]);
        assert_eq!(world.visit(b), [Move::Unload(a), Move::Load(b)]);
    }
}

#[test]
fn a_small_one_stays_if_a_larger_one_has_to_go() {
    let [small, large, other] = ids();
    let limits = ResidencyLimits { memory_bytes: 10 * MIB, ..NO_LIMITS };
    let mut world = World::new(limits, &[MIB, 8 * MIB, 8 * MIB]);
    world.visit(small);
    world.visit(large);
    assert_eq!(world.visit(other), [Move::Unload(large), Move::Load(other)]);
    assert_eq!(world.visit(small), []);
}

#[test]
fn what_the_machine_has_left_counts_as_well() {
    let [a, b] = ids();
    let mut residency = ModelResidency::new(NO_LIMITS, [8 * MIB, 8 * MIB]);
    residency.wait(a, s(0)).unwrap();
    // Nothing could make room: it is tried, whatever the machine says.
    assert_eq!(residency.next_move(s(0), Some(MIB)), Some(Move::Load(a)));
    residency.loaded(a, s(1));
    residency.end_wait(a);
    residency.wait(b, s(2)).unwrap();
    assert_eq!(residency.next_move(s(2), Some(8 * MIB - 1)), Some(Move::Unload(a)));
    assert_eq!(residency.next_move(s(2), Some(8 * MIB - 1)), None, "while it goes");
    residency.unloaded(a);
    assert_eq!(residency.next_move(s(3), Some(8 * MIB)), Some(Move::Load(b)));
}

#[test]
fn a_model_in_use_stays_and_takes_nobody_else_after_a_while() {
    let [a, b] = ids();
    let mut world = World::new(ResidencyLimits { max_loaded: 1, ..NO_LIMITS }, &[MIB, MIB]);
    world.take(a);
    world.residency.wait(b, world.now).unwrap();
    assert_eq!(world.settle(), []);
    // For a moment it takes more requests: the first may end soon.
    assert!(world.residency.try_use(a, world.now));
    let wakes = world.residency.next_time(world.now).unwrap();
    assert_eq!(world.after(wakes - world.now), []);
    assert!(!world.residency.try_use(a, world.now), "it makes room");
    world.residency.wait(a, world.now).unwrap();
    world.residency.end_use(a, world.now);
    assert_eq!(world.settle(), [], "one answer is under way");
    world.residency.end_use(a, world.now);
    assert_eq!(world.settle(), [Move::Unload(a), Move::Load(b)]);
    assert!(world.residency.try_use(b, world.now));
}

#[test]
fn one_that_was_to_make_room_stays_if_nobody_waits_any_more() {
    let [a, b] = ids();
    let mut world = World::new(ResidencyLimits { max_loaded: 1, ..NO_LIMITS }, &[MIB, MIB]);
    world.take(a);
    world.residency.wait(b, world.now).unwrap();
    world.after(s(10));
    assert!(!world.residency.try_use(a, world.now));
    world.residency.end_wait(b);
    world.settle();
    assert!(world.residency.try_use(a, world.now));
}

#[test]
fn an_unused_model_goes_in_time_and_keep_alive_says_otherwise() {
    let [a] = ids();
    let mut world = World::new(ResidencyLimits { idle: Some(s(60)), ..NO_LIMITS }, &[MIB]);
    world.take(a);
    assert_eq!(world.after(s(600)), [], "it is used");
    world.residency.end_use(a, world.now);
    assert_eq!(world.residency.expires_at(a), Some(world.now + s(60)));
    assert_eq!(world.after(s(59)), []);
    assert_eq!(world.residency.next_time(world.now), Some(world.now + s(1)));
    assert_eq!(world.after(s(1)), [Move::Unload(a)]);
    world.visit(a);
    world.residency.keep(a, KeepAlive::Forever);
    assert_eq!(world.after(s(100_000)), []);
    world.residency.keep(a, KeepAlive::For(Duration::ZERO));
    assert_eq!(world.settle(), [Move::Unload(a)]);
    // The next one has the server's own time again.
    world.visit(a);
    assert_eq!(world.after(s(58)), []);
    assert_eq!(world.after(s(2)), [Move::Unload(a)]);
}

#[test]
fn a_keep_alive_that_comes_while_its_model_is_unloaded_holds_for_the_next_load() {
    let [a] = ids();
    let mut world = World::new(ResidencyLimits { idle: Some(s(60)), ..NO_LIMITS }, &[MIB]);
    world.visit(a);
    world.now += s(60);
    assert_eq!(world.residency.next_move(world.now, None), Some(Move::Unload(a)));
    world.residency.keep(a, KeepAlive::Forever);
    world.residency.keep(a, KeepAlive::For(Duration::ZERO));
    world.residency.unloaded(a);
    world.visit(a);
    assert_eq!(world.residency.expires_at(a), None, "to unload it was no wish for later");
}

#[test]
fn somebody_may_ask_a_model_to_leave() {
    let [a] = ids();
    let mut world = World::new(NO_LIMITS, &[MIB]);
    assert!(!world.residency.ask_to_leave(a), "it is not there");
    world.take(a);
    assert!(world.residency.ask_to_leave(a));
    assert_eq!(world.settle(), [], "an answer is under way");
    assert!(!world.residency.try_use(a, world.now));
    world.residency.end_use(a, world.now);
    assert_eq!(world.settle(), [Move::Unload(a)]);
    assert_eq!(world.visit(a), [Move::Load(a)]);
}

#[test]
fn one_that_fails_rests_and_one_that_is_too_large_is_never_tried() {
    let [a, b] = ids();
    let mut residency = ModelResidency::new(
        ResidencyLimits { memory_bytes: 10 * MIB, ..NO_LIMITS },
        [MIB, 11 * MIB],
    );
    let too_large = NotLoaded::TooLarge { bytes: 11 * MIB, most: 10 * MIB };
    assert_eq!(residency.wait(b, s(0)), Err(too_large));
    residency.wait(a, s(0)).unwrap();
    assert_eq!(residency.next_move(s(0), None), Some(Move::Load(a)));
    residency.failed(a, s(1));
    residency.end_wait(a);
    assert_eq!(residency.wait(a, s(2)), Err(NotLoaded::Failed(s(9))));
    assert_eq!(residency.next_move(s(2), None), None);
    residency.wait(a, s(11)).unwrap();
    assert_eq!(residency.next_move(s(11), None), Some(Move::Load(a)));
}

#[test]
fn the_longest_waiting_is_loaded_first() {
    let [a, b, c] = ids();
    let mut world = World::new(ResidencyLimits { max_loaded: 1, ..NO_LIMITS }, &[MIB; 3]);
    world.residency.wait(c, s(100)).unwrap();
    world.residency.wait(a, s(101)).unwrap();
    world.residency.wait(b, s(102)).unwrap();
    assert_eq!([a, b, c].map(|id| world.residency.ahead_of(id)), [1, 2, 0]);
    assert_eq!(world.residency.next_move(s(103), None), Some(Move::Load(c)));
}

/// Event on a residency.
#[derive(Debug, Clone)]
enum Event {
    /// A request for a model arrives and uses it for `ms`.
    Request { model: usize, ms: u64 },
    /// Time passes.
    Pass { ms: u64 },
    /// A client asks to unload a model.
    Leave { model: usize },
    /// A waiting request gives up.
    GiveUp,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..4usize, 0..20_000u64).prop_map(|(model, ms)| Event::Request { model, ms }),
        6 => (0..5000u64).prop_map(|ms| Event::Pass { ms }),
        1 => (0..4usize).prop_map(|model| Event::Leave { model }),
        1 => Just(Event::GiveUp),
    ]
}

/// A residency with requests, whose moves take a second each.
struct BusyWorld {
    residency: ModelResidency,
    now: Duration,
    limits: ResidencyLimits,
    waiting: Vec<(ModelId, u64)>,
    using: Vec<(ModelId, Duration)>,
    moving: Option<(Move, Duration)>,
}

impl BusyWorld {
    /// Advances time by one step: ends what is over, and starts the next move.
    fn step(&mut self) {
        self.now += Duration::from_millis(50);
        let now = self.now;
        if let Some((what, _)) = self.moving.take_if(|(_, end)| *end <= now) {
            match what {
                Move::Load(id) => self.residency.loaded(id, now),
                Move::Unload(id) => self.residency.unloaded(id),
            }
        }
        for (id, _) in self.using.extract_if(.., |(_, end)| *end <= now) {
            self.residency.end_use(id, now);
        }
        let Self { residency, waiting, using, .. } = self;
        waiting.retain(|&(id, ms)| {
            let has_turn = residency.try_use(id, now);
            if has_turn {
                residency.end_wait(id);
                using.push((id, now + Duration::from_millis(ms)));
            }
            !has_turn
        });
        if let Some(what) = self.residency.next_move(now, None) {
            assert!(self.moving.is_none(), "one at a time");
            if let Move::Unload(id) = what {
                assert!(self.using.iter().all(|(used, _)| *used != id), "nobody is thrown out");
            }
            self.moving = Some((what, now + s(1)));
        }
        assert!(self.residency.present_bytes() <= self.limits.memory_bytes, "memory is bounded");
        assert!(self.residency.present().count() <= self.limits.max_loaded);
    }
}

proptest! {
    #[test]
    fn nobody_is_thrown_out_or_forgotten(events in proptest::collection::vec(event(), 1..60)) {
        let limits = ResidencyLimits { max_loaded: 3, memory_bytes: 6 * MIB, idle: Some(s(5)) };
        let residency = ModelResidency::new(limits, [MIB, 2 * MIB, 3 * MIB, 4 * MIB]);
        let (waiting, using) = (Vec::new(), Vec::new());
        let mut world = BusyWorld { residency, now: s(1), limits, waiting, using, moving: None };
        for event in events {
            match event {
                Event::Request { model, ms } => {
                    world.residency.wait(ModelId(model), world.now).unwrap();
                    world.waiting.push((ModelId(model), ms));
                }
                Event::Pass { ms } => (0..ms / 50).for_each(|_| world.step()),
                Event::Leave { model } => drop(world.residency.ask_to_leave(ModelId(model))),
                Event::GiveUp => if let Some((id, _)) = world.waiting.pop() {
                    world.residency.end_wait(id);
                },
            }
        }
        // The longest answers and moves one after the other take less.
        for _ in 0..60 * 30 * 20 {
            if world.waiting.is_empty() {
                break;
            }
            world.step();
        }
        prop_assert!(world.waiting.is_empty(), "everybody has had a turn");
    }
}

#[test]
fn a_model_that_stays_in_use_takes_requests_again() {
    let [a, b] = ids();
    let limits = ResidencyLimits { max_loaded: 1, ..NO_LIMITS };
    let mut world = World::new(limits, &[MIB, MIB]);
    // Somebody reads an answer of the first without end.
    world.take(a);
    world.now += s(60);
    world.residency.wait(b, world.now).unwrap();
    assert_eq!(world.after(PATIENCE), []);
    assert!(!world.residency.try_use(a, world.now), "it is to make room");
    assert_eq!(world.residency.next_time(world.now), Some(world.now + LEAVE_LIMIT));
    assert_eq!(world.after(LEAVE_LIMIT), []);
    assert!(world.residency.try_use(a, world.now), "others need not wait for that reader");
    // It is asked again, and goes once it can.
    assert_eq!(world.after(LEAVE_LIMIT), []);
    assert!(!world.residency.try_use(a, world.now));
    world.residency.end_use(a, world.now);
    world.residency.end_use(a, world.now);
    assert_eq!(world.settle(), [Move::Unload(a), Move::Load(b)]);
}
