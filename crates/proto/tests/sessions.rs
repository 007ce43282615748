//! Sender and receiver together, over links that harm what they carry.

mod pair;

use loquent_proto::{Delta, Micros, ReceiverConfig, SenderConfig, SenderState};
use pair::{LinkConfig, Pair, stall_ratio};

fn ms(ms: u64) -> Micros {
    Micros::from_ms(ms)
}

/// Generates `n` tokens of text, one per `gap`, and the end; returns what was generated.
fn generate(pair: &mut Pair, n: u64, gap: Micros) -> Vec<Delta> {
    let mut generated = vec![Delta::Open { meta: "{}".into() }];
    pair.push(&generated[0]);
    pair.run_until(pair.now + ms(50));
    for i in 0..n {
        let delta = Delta::text(format!(" tok{}", i % 10));
        pair.push(&delta);
        generated.push(delta);
        pair.run_until(pair.now + gap);
    }
    for delta in [
        Delta::Finish {
            choice: 0,
            reason: "stop".into(),
        },
        Delta::Done,
    ] {
        pair.push(&delta);
        generated.push(delta);
    }
    generated
}

#[test]
fn a_clean_link_delivers_each_token_after_half_a_round_trip() {
    let links = [LinkConfig::clean(50), LinkConfig::clean(50)];
    let mut pair = Pair::new(SenderConfig::default(), ReceiverConfig::default(), links, 1);
    let generated = generate(&mut pair, 100, ms(100));
    pair.run_until(pair.now + ms(20_000));
    assert_eq!(pair.shown, generated);
    assert!(pair.complete);
    assert_eq!(pair.sender.state(), SenderState::Finished);
    assert!(
        pair.tokens
            .iter()
            .all(|t| t.shown == Some(t.generated + ms(50)))
    );
    assert_eq!(stall_ratio(&pair.tokens, ms(100)), (0.0, 0.0));
}

#[test]
fn a_bursty_link_delivers_everything_in_order() {
    for seed in 0..20 {
        let links = [LinkConfig::bursty(200), LinkConfig::bursty(200)];
        let mut pair = Pair::new(
            SenderConfig::default(),
            ReceiverConfig::default(),
            links,
            seed,
        );
        let generated = generate(&mut pair, 300, ms(100));
        pair.run_until(pair.now + ms(20_000));
        assert_eq!(pair.shown, generated, "seed {seed}");
        assert_eq!(pair.sender.state(), SenderState::Finished, "seed {seed}");
    }
}
