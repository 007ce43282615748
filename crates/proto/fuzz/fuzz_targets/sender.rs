//! A sender that hears anything neither panics nor sends without end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use loquent_proto::{Delta, Micros, Sender, SenderConfig};

fuzz_target!(|input: &[u8]| {
    let config = SenderConfig { max_log_bytes: 2_000, ..SenderConfig::default() };
    let mut sender = Sender::new(Micros(0), 1, config);
    let mut now = Micros(0);
    // Each step: wait in 10 ms (one byte), length of text (one), of a datagram (one), bytes.
    let mut rest = input;
    while let [wait, text, len, tail @ ..] = rest {
        let (datagram, after) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = after;
        now += Micros::from_ms(u64::from(*wait) * 10);
        let _ = sender.push(now, &Delta::text("x".repeat(usize::from(*text))));
        let _ = sender.handle_datagram(now, datagram);
        sender.handle_timeout(now);
        let mut sent = 0;
        while sender.poll_transmit(now, &mut Vec::new()).is_some() {
            sent += 1;
        }
        assert!(sent <= 8, "{sent} packets at once");
        assert!(sender.poll_timeout().is_none_or(|at| at > now));
    }
});
