//! Properties of the balancer, tested over seeded and random sequences of requests.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::from_secs(100);

fn urls(count: usize) -> Vec<String> {
    (0..count).map(|server| format!("http://server-{server}:8000")).collect()
}

fn balancer(count: usize, routing: Routing) -> Balancer {
    Balancer::new(urls(count).iter().map(String::as_str), routing)
}

/// Takes a place for a prompt with this key.
fn place(balancer: &mut Balancer, key: u64) -> ServerAssignment {
    let key = Some(PromptKey(key));
    balancer.choose(NOW, key, 1, ServerSet::default()).unwrap()
}

fn choose(balancer: &mut Balancer, key: u64) -> usize {
    place(balancer, key).server
}

/// Returns the server of each prompt while no requests are in progress.
fn owners(servers: &[String], keys: u64) -> HashMap<u64, String> {
    let mut balancer = Balancer::new(servers.iter().map(String::as_str), Routing::Prefix);
    let mut owner = |key| {
        let place = place(&mut balancer, key);
        balancer.leave(NOW, place, RequestVerdict::Works);
        servers[place.server].clone()
    };
    (0..keys).map(|key| (key, owner(key))).collect()
}

/// Marks a server as down through failed health checks.
fn take_out(balancer: &mut Balancer, server: usize) {
    for _ in 0..2 {
        balancer.note_check(NOW, server, false);
    }
}

#[test]
fn a_prompt_keeps_its_server_and_prompts_are_spread() {
    let owners = owners(&urls(5), 5000);
    let mut counts = HashMap::new();
    owners.values().for_each(|server| *counts.entry(server).or_insert(0) += 1);
    assert_eq!(counts.len(), 5);
    assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    let mut balancer = balancer(5, Routing::Prefix);
    let first = choose(&mut balancer, 7);
    assert!((0..3).all(|_| choose(&mut balancer, 7) == first), "few at once stay together");
}

proptest! {
    /// Only the prompts of a server that leaves move to other servers, and they return with it.
    #[test]
    fn only_the_prompts_of_a_server_that_leaves_move(count in 2_usize..12, gone in 0_usize..12) {
        let (all, gone) = (urls(count), gone % count);
        let left: Vec<_> = all.iter().filter(|url| **url != all[gone]).cloned().collect();
        let (before, after) = (owners(&all, 300), owners(&left, 300));
        for (key, owner) in &before {
            prop_assert!(*owner == all[gone] || after[key] == *owner);
        }
        let moved = before.iter().filter(|(key, owner)| after[key] != **owner).count();
        prop_assert!(moved <= 300 / count * 2 + 20, "{moved} of 300 moved, of {count} servers");
    }

    /// No server exceeds its bound when it gets a request, however requests arrive and end.
    #[test]
    fn loads_are_bounded(
        count in 2_usize..8,
        course in prop::collection::vec((0_u64..4, any::<bool>()), 1..400),
    ) {
        let mut balancer = balancer(count, Routing::Prefix);
        let mut places: Vec<ServerAssignment> = Vec::new();
        for (key, leaves) in course {
            if leaves && !places.is_empty() {
                let left = places.swap_remove(key as usize % places.len());
                balancer.leave(NOW, left, RequestVerdict::Works);
                continue;
            }
            let place = place(&mut balancer, key);
            places.push(place);
            let all = places.len() as u64;
            let bound = (all * BOUND_PERCENT).div_ceil(100 * count as u64).max(FREE_LOAD);
            let load = balancer.running(place.server);
            prop_assert!(load <= bound, "{load} of {all} at one of {count}");
        }
        let running: u64 = (0..count).map(|at| balancer.running(at)).sum();
        prop_assert_eq!(running, places.len() as u64);
    }

    /// A request tries every server that is up exactly once, and none that is down.
    #[test]
    fn every_server_that_is_up_is_tried_once(count in 2_usize..10, down in 0_usize..10, key: u64) {
        let mut balancer = balancer(count, Routing::Prefix);
        take_out(&mut balancer, down % count);
        let mut tried = ServerSet::default();
        for _ in 1..count {
            let place = balancer.choose(NOW, Some(PromptKey(key)), 1, tried).unwrap();
            prop_assert!(!tried.contains(place.server) && place.server != down % count);
            tried.insert(place.server);
            balancer.leave(NOW, place, RequestVerdict::Unknown);
        }
        prop_assert!(balancer.choose(NOW, None, 1, tried).is_err());
    }
}

#[test]
fn the_least_loaded_gets_the_next_and_equals_take_turns() {
    let mut balancer = balancer(3, Routing::LeastLoaded);
    let first: Vec<usize> = (0..6).map(|_| choose(&mut balancer, 1)).collect();
    assert_eq!(first, [0, 1, 2, 0, 1, 2]);
    let none = ServerSet::default();
    let big = balancer.choose(NOW, None, 8, none).unwrap();
    let next: Vec<usize> = (0..4).map(|_| choose(&mut balancer, 1)).collect();
    assert!(!next.contains(&big.server));
    balancer.leave(NOW, big, RequestVerdict::Works);
    assert_eq!(choose(&mut balancer, 1), big.server);
}

#[test]
fn a_slow_server_loses_its_share() {
    for routing in [Routing::Prefix, Routing::LeastLoaded] {
        let mut balancer = balancer(3, routing);
        for (server, ms) in [(0, 20), (1, 21), (2, 85)] {
            balancer.note_pace(NOW, server, Duration::from_millis(ms));
        }
        for key in 0..90 {
            choose(&mut balancer, key);
        }
        let loads: Vec<u64> = (0..3).map(|at| balancer.running(at)).collect();
        assert!(loads[2] <= 13, "{routing:?}: four times slower, a ninth of the load: {loads:?}");
        assert!(loads[0] >= 30 && loads[1] >= 30, "{routing:?}: {loads:?}");
        assert!(loads[2] > 0, "{routing:?}: it may have become faster");
    }
}

#[test]
fn servers_take_turns_whatever_they_have_to_do() {
    let mut balancer = balancer(3, Routing::RoundRobin);
    balancer.note_pace(NOW, 0, Duration::from_millis(1));
    balancer.note_pace(NOW, 1, Duration::from_millis(9));
    let turns: Vec<usize> = (0..6).map(|key| choose(&mut balancer, key)).collect();
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_server_that_is_down_gets_nothing_until_a_check_passes() {
    let mut balancer = balancer(2, Routing::LeastLoaded);
    assert_eq!(balancer.note_check(NOW, 0, false), None);
    assert_eq!(balancer.note_check(NOW, 0, false), Some(false));
    assert!((0..9).all(|key| choose(&mut balancer, key) == 1));
    take_out(&mut balancer, 1);
    let none = balancer.choose(NOW, None, 1, ServerSet::default()).unwrap_err();
    assert_eq!(none, Unplaced::Down(NoServer { retry_in: DOWN_RETRY }));
    assert_eq!(balancer.note_check(NOW, 0, true), Some(true));
    assert_eq!(choose(&mut balancer, 1), 0);
    assert!(balancer.check(NOW).is_ok());
}

#[test]
fn one_request_tries_a_server_whose_breaker_was_open() {
    let mut balancer = balancer(2, Routing::LeastLoaded);
    for _ in 0..3 {
        let place = balancer.choose(NOW, None, 1, ServerSet(2)).unwrap();
        balancer.leave(NOW, place, RequestVerdict::Fails);
    }
    assert!((0..4).all(|key| choose(&mut balancer, key) == 1));
    let later = NOW + Duration::from_secs(1);
    let at =
        |balancer: &mut Balancer, now| balancer.choose(now, None, 1, ServerSet::default()).unwrap();
    let trial = at(&mut balancer, later);
    assert_eq!((trial.server, at(&mut balancer, later).server), (0, 1));
    balancer.leave(later, trial, RequestVerdict::Works);
    assert_eq!(at(&mut balancer, later).server, 0);
    assert_eq!(balancer.figures(later)[0].opened, 1);
    assert_eq!(balancer.figures(later)[0].failures, 3);
}

#[test]
fn clients_are_told_when_a_server_may_be_back() {
    let mut balancer = balancer(2, Routing::Prefix);
    balancer.pause(NOW, 0, Duration::from_secs(4));
    assert_eq!(choose(&mut balancer, 1), 1);
    balancer.pause(NOW, 1, Duration::from_secs(3600));
    let none = balancer.check(NOW).unwrap_err();
    assert_eq!(none.retry_in, Duration::from_secs(4));
    assert!(balancer.check(NOW + Duration::from_secs(4)).is_ok());
    assert!(!balancer.figures(NOW)[1].is_up);
}

#[test]
fn a_server_alone_gets_whatever_comes() {
    let mut balancer = balancer(1, Routing::Prefix);
    take_out(&mut balancer, 0);
    for _ in 0..9 {
        let place = place(&mut balancer, 1);
        balancer.leave(NOW, place, RequestVerdict::Fails);
    }
    assert!(balancer.check(NOW).is_ok() && balancer.figures(NOW)[0].is_up);
    assert!(balancer.choose(NOW, None, 1, ServerSet(1)).is_err(), "not twice by one request");
    balancer.spare_one_alone();
    assert!(balancer.check(NOW).is_err(), "with a fall-back it is spared like any other");
}

#[test]
fn no_server_has_more_than_its_limit() {
    for routing in [Routing::Prefix, Routing::LeastLoaded, Routing::RoundRobin] {
        let mut balancer = balancer(3, routing).with_limit(Some(16));
        let mut places: Vec<_> = (0..48).map(|_| place(&mut balancer, 7)).collect();
        assert!((0..3).all(|at| balancer.running(at) == 16), "{routing:?}");
        let more = |balancer: &mut Balancer, many| {
            balancer.choose(NOW, Some(PromptKey(7)), many, ServerSet::default())
        };
        assert_eq!(more(&mut balancer, 1), Err(Unplaced::Full));
        assert!(more(&mut balancer, 0).is_ok(), "a look-up needs no turn");
        let freed = places.pop().unwrap();
        balancer.leave(NOW, freed, RequestVerdict::Works);
        assert_eq!(more(&mut balancer, 2), Err(Unplaced::Full));
        assert_eq!(more(&mut balancer, 1).unwrap().server, freed.server);
    }
    let mut small = balancer(2, Routing::Prefix).with_limit(Some(1));
    assert!(small.choose(NOW, None, 8, ServerSet::default()).is_ok(), "or it would wait for ever");
}
